//! Standstills, again and again: when they are due ([`Stall`]), and a worker's process that is stopped for
//! them ([`Stopper`]).

use std::{
    process::Child,
    time::{Duration, Instant},
};

use paceline_core::parse_duration;
use rustix::process::{Pid, Signal, kill_process};

/// A cycle of `every`: a process runs, and stands still for the last `lasts` of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    every: Duration,
    lasts: Duration,
}

/// Shorter stalls cannot be told from the scheduler's own.
const SHORTEST: Duration = Duration::from_millis(1);

impl Stall {
    /// `None` unless the process runs in between, and both are at least a millisecond.
    pub fn new(every: Duration, lasts: Duration) -> Option<Self> {
        let runs = every.checked_sub(lasts)?;
        (lasts >= SHORTEST && runs >= SHORTEST).then_some(Stall { every, lasts })
    }

    /// Reads `EVERY:FOR`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (every, lasts) = text.split_once(':')?;
        Stall::new(parse_duration(every)?, parse_duration(lasts)?)
    }

    /// How long it stands still in each cycle.
    pub fn lasts(self) -> Duration {
        self.lasts
    }

    /// Whether the process stands still, so long after the beginning.
    pub fn is_on(self, after: Duration) -> bool {
        self.phase(after) >= self.every - self.lasts
    }

    /// How long from then until that changes; more than nothing.
    pub fn changes_in(self, after: Duration) -> Duration {
        let phase = self.phase(after);
        let change = if self.is_on(after) { self.every } else { self.every - self.lasts };
        change - phase
    }

    fn phase(self, after: Duration) -> Duration {
        let nanos = after.as_nanos() % self.every.as_nanos();
        Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
    }
}

/// Stops a worker's process by signals while any of its stalls is on.
#[derive(Debug)]
pub struct Stopper {
    stalls: Vec<Stall>,
    began: Instant,
    /// By a signal of ours, and not continued yet.
    stopped: bool,
}

impl Stopper {
    /// Counts the stalls from now on.
    pub fn new(stalls: Vec<Stall>) -> Self {
        Stopper { stalls, began: Instant::now(), stopped: false }
    }

    /// Stops `child` or lets it go on, as is due. Returns when to call again: after `most`, or sooner if a
    /// stall begins or ends before. The process must not have been waited for, so that its id is still
    /// its own.
    pub fn apply(&mut self, child: &Child, most: Duration) -> Duration {
        let now = self.began.elapsed();
        let stop = self.stalls.iter().any(|stall| stall.is_on(now));
        if stop != self.stopped {
            let signal = if stop { Signal::STOP } else { Signal::CONT };
            let _ = kill_process(Pid::from_child(child), signal);
            self.stopped = stop;
        }
        self.stalls.iter().map(|stall| stall.changes_in(now)).fold(most, Duration::min)
    }

    /// Another process has taken the place of the one that was stopped, and runs.
    pub fn restarted(&mut self) {
        self.stopped = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_stall_takes_the_end_of_every_cycle() {
        let stall = Stall::new(ms(1000), ms(300)).unwrap();
        for (after, on, change) in [
            (0, false, 700),
            (699, false, 1),
            (700, true, 300),
            (999, true, 1),
            (1000, false, 700),
            (7_777, true, 223),
        ] {
            assert_eq!(stall.is_on(ms(after)), on, "after {after} ms");
            assert_eq!(stall.changes_in(ms(after)), ms(change), "after {after} ms");
        }
    }

    #[test]
    fn a_worker_runs_between_its_stalls() {
        assert_eq!(Stall::new(ms(300), ms(300)), None);
        assert_eq!(Stall::new(ms(300), ms(500)), None);
        assert_eq!(Stall::new(ms(300), ms(0)), None);
    }
}
