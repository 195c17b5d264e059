//! Counters of a shard's work in a round.

use std::{ops::AddAssign, time::Duration};

use serde::{Deserialize, Serialize};

/// Traffic of a shard from one published version to the next: the pulls of that version, and the
/// contributions that arrived meanwhile. Only frames of admitted data connections are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShardCounts {
    /// Bytes from workers over sockets, headers included.
    pub bytes_in: u64,
    /// Bytes to workers over sockets.
    pub bytes_out: u64,
    /// Bytes read through memory shared with workers instead of sockets: gradients folded and parameters
    /// published, once per gradient and per pull.
    pub bytes_shared: u64,
    /// Frames from workers.
    pub frames_in: u64,
    /// Frames to workers.
    pub frames_out: u64,
    /// Blocks of parameters sent, or pointed to in shared memory.
    pub blocks_fresh: u64,
    /// Blocks of parameters not sent: the worker that pulled keeps its last values.
    pub blocks_stale: u64,
    /// Blocks of gradients that are in the update on other shards and did not arrive here in time.
    #[serde(default)]
    pub blocks_missed: u64,
    /// Time spent on summing contributions.
    pub fold: Duration,
    /// The most inputs that were queued for the shard at once.
    pub queue: u32,
}

impl AddAssign for ShardCounts {
    /// Saturates: a shard in another process may report any value.
    fn add_assign(&mut self, more: ShardCounts) {
        self.bytes_in = self.bytes_in.saturating_add(more.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(more.bytes_out);
        self.bytes_shared = self.bytes_shared.saturating_add(more.bytes_shared);
        self.frames_in = self.frames_in.saturating_add(more.frames_in);
        self.frames_out = self.frames_out.saturating_add(more.frames_out);
        self.blocks_fresh = self.blocks_fresh.saturating_add(more.blocks_fresh);
        self.blocks_stale = self.blocks_stale.saturating_add(more.blocks_stale);
        self.blocks_missed = self.blocks_missed.saturating_add(more.blocks_missed);
        self.fold = self.fold.saturating_add(more.fold);
        self.queue = self.queue.max(more.queue);
    }
}

/// A shard's part in a round, or in all rounds of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShardWork {
    /// From the close command to the report that the update is published, on the coordinator's clock.
    pub wait: Duration,
    /// The longest time in a round from a worker's announcement to the arrival of its part here.
    #[serde(default)]
    pub parts: Duration,
    /// The shard's traffic.
    #[serde(flatten)]
    pub counts: ShardCounts,
}

impl AddAssign for ShardWork {
    fn add_assign(&mut self, more: ShardWork) {
        self.wait = self.wait.saturating_add(more.wait);
        self.parts = self.parts.saturating_add(more.parts);
        self.counts += more.counts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_the_deepest_queue_stays() {
        let counts = |n: u64| ShardCounts {
            bytes_in: n,
            bytes_out: 2 * n,
            bytes_shared: 8 * n,
            frames_in: 3 * n,
            frames_out: 4 * n,
            blocks_fresh: 5 * n,
            blocks_stale: 6 * n,
            blocks_missed: 9 * n,
            fold: Duration::from_nanos(7 * n),
            queue: n as u32,
        };
        let work = |n: u64| ShardWork {
            wait: Duration::from_nanos(n),
            parts: Duration::from_nanos(2 * n),
            counts: counts(n),
        };
        let mut total = work(2);
        total += work(1);
        let expected = ShardCounts { queue: 2, ..counts(3) };
        assert_eq!(total, ShardWork { counts: expected, ..work(3) });
    }
}
