//! Probing: waiting a little longer than pays, now and then, for workers not seen for long.
//!
//! Under strict censoring a worker that is always cut is never seen again, and a belief about it
//! can never be mended. A probe waits until the moment after which its arrival could not pay
//! anyway; that bounds what it costs, and a budget (a share of all time) bounds how often.

use std::time::Duration;

use paceline_core::{RoundRecord, RoundView, Time, WorkerId};

use crate::stop::break_even;

/// Share of the run's time that probes may take.
const SHARE: f64 = 0.01;
/// A worker not seen for so many rounds is worth a probe.
const STALE: u64 = 20;

/// When each worker was seen, and what may be spent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probe {
    seen: Vec<u64>,
    budget: f64,
    /// About how long a round takes.
    typical: f64,
    /// The probe under way: when the round would have been cut, and when the probe ends.
    under_way: Option<(Time, Time)>,
}

impl Probe {
    /// The round would be cut now: until when it should rather be probed, if at all.
    pub(crate) fn instead_of_cut(
        &mut self,
        view: &RoundView<'_>,
        rate: f64,
        overhead: f64,
    ) -> Option<Time> {
        if let Some((_, until)) = self.under_way {
            return (view.now < until).then_some(until);
        }
        let stale: f64 = view
            .outstanding()
            .filter(|&(worker, _)| self.unseen_for(worker, view.round.0) > STALE)
            .map(|(_, work)| f64::from(work.samples))
            .sum();
        if stale == 0.0 {
            return None;
        }
        let gained: f64 = view.arrivals.iter().map(|a| a.contribution.weight).sum();
        let elapsed = view.now.since(view.opened).as_secs_f64();
        let wait = break_even(gained, stale, rate, overhead) - elapsed;
        if wait <= 0.0 || wait > self.budget {
            return None;
        }
        let until = view.now + Duration::from_secs_f64(wait);
        self.begin(view.now, until);
        Some(until)
    }

    /// How long a wait could be paid for, if it is worth speaking of.
    pub(crate) fn affordable(&self) -> Option<Duration> {
        (self.budget > 0.25 * self.typical).then(|| Duration::from_secs_f64(self.budget))
    }

    /// Somebody waits on this budget, from `cut` until `until` at the latest.
    pub(crate) fn begin(&mut self, cut: Time, until: Time) {
        self.under_way = Some((cut, until));
    }

    /// A round closed.
    pub(crate) fn closed(&mut self, record: &RoundRecord<'_>, overhead: f64) {
        let seconds = record.closed.since(record.opened).as_secs_f64();
        self.budget += SHARE * (seconds + overhead);
        self.typical =
            if self.typical > 0.0 { 0.9 * self.typical + 0.1 * seconds } else { seconds };
        if let Some((cut, _)) = self.under_way.take() {
            self.budget -= record.closed.since(cut).as_secs_f64();
        }
        for &(worker, time) in record.run_times {
            let index = worker.0 as usize;
            if index >= self.seen.len() {
                self.seen.resize(index + 1, record.round.0);
            }
            if !time.is_censored() {
                self.seen[index] = record.round.0;
            }
        }
    }

    fn unseen_for(&self, worker: WorkerId, round: u64) -> u64 {
        self.seen.get(worker.0 as usize).map_or(0, |&seen| round.saturating_sub(seen))
    }
}
