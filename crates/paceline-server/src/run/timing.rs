//! When the run's loop wakes: the time at which the policy may learn, and how late timers fire.

use std::{collections::VecDeque, time::Duration};

use paceline_core::Time;

/// How long after a round's opening the policy starts to learn; half of the last round if that is less.
/// Workers fetch the parameters first, and learning would take a core from them.
const FETCHING: Duration = Duration::from_millis(3);
/// Wake-ups of which the median is taken.
const MEMORY: usize = 15;
/// Wake-ups before the policy hears of the first median.
const ENOUGH: usize = 5;
/// The policy hears of a median that differs from the last one by this share of it.
const CHANGE: f64 = 0.25;

/// The time at which the policy may learn.
#[derive(Default)]
pub(super) struct Study {
    /// When the last round opened.
    pub(super) opened: Time,
    pub(super) at: Option<Time>,
}

impl Study {
    pub(super) fn open(&mut self, at: Time) {
        let last = at.since(std::mem::replace(&mut self.opened, at));
        self.at = Some(at + FETCHING.min(last / 2));
    }

    /// Whether it is time to learn, or no time is set.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let due = self.at.is_none_or(|at| at <= now);
        self.at = self.at.filter(|_| !due);
        due
    }
}

/// How late recent timers fired.
#[derive(Default)]
pub(super) struct Lateness {
    recent: VecDeque<Duration>,
    told: Option<Duration>,
}

impl Lateness {
    /// A timer fired `late`. Gives the usual lateness if it has changed.
    pub(super) fn fired(&mut self, late: Duration) -> Option<Duration> {
        self.recent.push_back(late);
        if self.recent.len() > MEMORY {
            self.recent.pop_front();
        }
        let mut sorted: Vec<Duration> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        let usual = sorted[sorted.len() / 2];
        let changed = self.told.is_none_or(|told| usual.abs_diff(told) > told.mul_f64(CHANGE));
        (self.recent.len() >= ENOUGH && changed).then(|| *self.told.insert(usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_usual_lateness_is_a_median_told_when_it_changes() {
        let mut lateness = Lateness::default();
        let mut told = |late: &[u32]| -> Vec<Duration> {
            late.iter().filter_map(|&late| lateness.fired(late * MS)).collect()
        };
        assert_eq!(told(&[1, 500, 2, 1]), [], "too few");
        assert_eq!(told(&[1]), [MS]);
        assert_eq!(told(&[1; 10]), []);
        assert_eq!(told(&[4; MEMORY]), [4 * MS], "a host that became busy");
    }
}
