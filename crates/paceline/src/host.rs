//! This machine: its name, its cores, and keeping one busy.

use std::io::Read;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Host and process, for people.
pub(crate) fn name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}

/// Keeps this process on one core.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("failed to stay on core {core}"))
}

/// Cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Keeps a core busy until standard input closes, which it does when whoever started it is gone.
pub(crate) fn hog(core: Option<usize>) -> Result<()> {
    if let Some(core) = core {
        pin(core)?;
    }
    std::thread::spawn(|| {
        loop {
            std::hint::spin_loop();
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
