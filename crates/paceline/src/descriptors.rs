//! File descriptors: as many as this process may have, and a check that a run does not need more.

use anyhow::{Result, bail};
use paceline_wire::RESERVED_DESCRIPTORS;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors of a run without workers and shards: runtime, log, listener, threads that start
/// processes.
const BASE: u64 = 64;

/// Descriptors of a shard: four segments that it publishes in, each held twice.
const PER_SHARD: u64 = 8;

/// Raises the soft limit to the hard limit. Shells set a soft limit of 1,024 for programs that keep
/// descriptors in a `select` bit set, which nothing here does.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!("failed to raise the limit of file descriptors: {error}");
        }
    }
}

/// Refuses a run that needs more descriptors than this process may have, before anything is started.
/// `shards` are those in this process; `own_workers`: it starts the workers, too.
pub(crate) fn check(workers: u32, shards: u32, own_workers: bool) -> Result<()> {
    let needed = needed(workers, shards, own_workers);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => bail!(
            "{workers} workers and {shards} shards need up to {needed} file descriptors in this \
             process, and its hard limit is {limit}: raise it (`ulimit -n {needed}` as root, \
             LimitNOFILE= for a service, --ulimit nofile={needed} for a container), or use fewer \
             workers or shards"
        ),
        _ => Ok(()),
    }
}

/// Each worker has a control connection, and to each shard a data connection with, while it joins, a
/// socket to hand over shared memory. A worker that is started from here has a log file.
fn needed(workers: u32, shards: u32, own_workers: bool) -> u64 {
    let shards = u64::from(shards);
    let per_worker = 1 + 2 * shards + u64::from(own_workers);
    RESERVED_DESCRIPTORS + BASE + PER_SHARD * shards + u64::from(workers) * per_worker
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_grows_with_workers_times_shards() {
        assert_eq!(needed(4, 2, true), 64 + 64 + 16 + 4 * 6);
        assert_eq!(needed(256, 2, true), 64 + 64 + 16 + 256 * 6);
        assert_eq!(needed(1024, 0, false), 64 + 64 + 1024);
    }
}
