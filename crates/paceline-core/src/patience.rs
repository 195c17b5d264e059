//! How long a round waits for samples that came back too often, and an epoch for its last ones.
//!
//! A worker may hang while its heartbeats go on. Patience with it ends after a multiple of the usual
//! run-time: the round is then cut without it, and its samples go to others. Where a straggler keeps its
//! samples (`finish`, and policies that admit older versions), a second worker may hold them, too, from
//! that moment on. Where data cannot move nobody else can do the work, so patience is greater.

use std::time::Duration;

/// Patience, in usual run-times.
const FACTOR: f64 = 8.0;
/// The same where data cannot move.
const FACTOR_AT_HOME: f64 = 64.0;
/// Patience never ends sooner.
const LEAST: Duration = Duration::from_millis(100);
/// Run-times that the usual one remembers.
const MEMORY: f64 = 64.0;

/// Knows how long work usually takes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patience {
    /// Samples live with one worker each.
    at_home: bool,
    /// Mean run-time of contributions that came whole, in seconds.
    usual: Option<f64>,
}

impl Patience {
    /// Patience where data cannot move.
    pub(crate) fn at_home() -> Patience {
        Patience { at_home: true, usual: None }
    }

    /// A contribution came whole after this time.
    pub(crate) fn observe(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        let usual = self.usual.unwrap_or(took);
        self.usual = Some(usual + (took - usual) / MEMORY);
    }

    /// How long a contribution is waited for, from its start. Without end before any has come whole.
    pub(crate) fn duration(&self) -> Option<Duration> {
        let factor = if self.at_home { FACTOR_AT_HOME } else { FACTOR };
        self.usual.map(|usual| LEAST.max(Duration::from_secs_f64(usual * factor)))
    }

    /// How long a contribution keeps its samples to itself, if another worker may hold them at all.
    pub(crate) fn for_second_holder(&self) -> Option<Duration> {
        self.duration().filter(|_| !self.at_home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_multiple_of_the_usual_run_time_and_greater_where_data_cannot_move() {
        let mut patience = Patience::default();
        assert_eq!(patience.duration(), None, "nothing has come");
        patience.observe(Duration::from_millis(1));
        assert_eq!(patience.duration(), Some(LEAST));
        (0..1000).for_each(|_| patience.observe(Duration::from_secs(2)));
        assert_eq!(patience.duration().unwrap().as_secs_f64().round(), 16.0);
        let mut patience = Patience::at_home();
        patience.observe(Duration::from_secs(1));
        assert_eq!(patience.duration(), Some(Duration::from_secs(64)));
        assert_eq!(patience.for_second_holder(), None, "nobody else can do its work");
    }
}
