//! When a worker stands still: for a while, again and again.

use std::time::Duration;

/// A cycle of `every`: the worker runs, and stands still for the last `lasts` of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stall {
    every: Duration,
    lasts: Duration,
}

/// Shorter stalls cannot be told from the scheduler's own.
const SHORTEST: Duration = Duration::from_millis(1);

impl Stall {
    /// `None` unless the worker runs in between, and both are at least a millisecond.
    pub(crate) fn new(every: Duration, lasts: Duration) -> Option<Self> {
        let runs = every.checked_sub(lasts)?;
        (lasts >= SHORTEST && runs >= SHORTEST).then_some(Stall { every, lasts })
    }

    pub(crate) fn lasts(self) -> Duration {
        self.lasts
    }

    /// Whether the worker stands still, so long after the beginning.
    pub(crate) fn is_on(self, after: Duration) -> bool {
        self.phase(after) >= self.every - self.lasts
    }

    /// How long from then until that changes; more than nothing.
    pub(crate) fn changes_in(self, after: Duration) -> Duration {
        let phase = self.phase(after);
        let change = if self.is_on(after) { self.every } else { self.every - self.lasts };
        change - phase
    }

    fn phase(self, after: Duration) -> Duration {
        let nanos = after.as_nanos() % self.every.as_nanos();
        Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
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
