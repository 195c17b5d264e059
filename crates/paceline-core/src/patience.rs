//! Patience: the bound on waiting for samples that were returned too often, and for an epoch's last samples.
//!
//! A worker may hang while its heartbeats continue. Patience with it ends after a multiple of the usual
//! run-time: the round is then cut without it, and other workers get its samples. Where a straggler keeps its
//! samples (`finish`, and policies that admit older versions), a second worker may get them, too, from that
//! moment on. Where data cannot move, no other worker can do the work, so patience is longer.

use std::time::Duration;

/// Patience, in multiples of the usual run-time.
const FACTOR: f64 = 8.0;
/// The same where data cannot move.
const FACTOR_AT_HOME: f64 = 64.0;
/// The shortest patience.
const LEAST: Duration = Duration::from_millis(100);
/// Run-times that the usual run-time averages over.
const MEMORY: f64 = 64.0;

/// Tracks how long work usually takes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patience {
    /// Whether each sample is bound to one worker.
    at_home: bool,
    /// Mean run-time of whole contributions, in seconds.
    usual: Option<f64>,
}

impl Patience {
    /// Patience where data cannot move.
    pub(crate) fn at_home() -> Patience {
        Patience { at_home: true, usual: None }
    }

    /// A whole contribution arrived after this time.
    pub(crate) fn observe(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        let usual = self.usual.unwrap_or(took);
        // One that was stopped for long says nothing of the others.
        let took = took.min(FACTOR * usual);
        self.usual = Some(usual + (took - usual) / MEMORY);
    }

    /// How long to wait for a contribution, from its start. `None`, without limit, before the first whole
    /// one.
    pub(crate) fn duration(&self) -> Option<Duration> {
        let factor = if self.at_home { FACTOR_AT_HOME } else { FACTOR };
        self.usual.map(|usual| LEAST.max(Duration::from_secs_f64(usual * factor)))
    }

    /// How long a contribution waits for the part that a shard at its bound owes, from its start.
    pub(crate) fn for_shards(&self) -> Option<Duration> {
        Patience { at_home: true, ..self.clone() }.duration()
    }

    /// How long a contribution holds its samples alone, if a second worker may hold them at all.
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
