//! This machine: its name, its cores, and processes on it.

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    process::Command,
};

use anyhow::{Context, Result, anyhow};
use rustix::{
    process::{Signal, nice, set_parent_process_death_signal},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

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

/// Raises the nice value of this thread by `more`, and of all threads that it starts from now on.
pub(crate) fn give_way(more: i32) -> Result<()> {
    nice(more).with_context(|| format!("failed to raise the nice value by {more}")).map(drop)
}

/// Has this process killed when the thread that started it ends. A worker that is stopped, or whose
/// link is gone, would not learn of it otherwise.
pub(crate) fn end_with_parent() -> Result<()> {
    let killed = set_parent_process_death_signal(Some(Signal::KILL));
    killed.context("failed to tie this process to its parent")
}

/// Replaces this process by a command; returns only if that fails.
pub(crate) fn become_command(command: &[OsString]) -> anyhow::Error {
    let Some((program, args)) = command.split_first() else { return anyhow!("no command") };
    let error = Command::new(program).args(args).exec();
    anyhow!("failed to start {}: {error}", program.display())
}

/// A program in a process group of its own: Ctrl-C is for this process, which then ends the others
/// in order.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

/// The numbers of the cores that this process may run on.
pub(crate) fn core_numbers() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("failed to find the cores of this machine")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
