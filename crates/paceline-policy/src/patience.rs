//! The longest that a round waits for workers that may never come.
//!
//! A hung worker is live and silent. Predictors learn from workers that arrived, so a prediction can go
//! on promising its arrival, and a policy that waits for a count does not look at the clock. The limits
//! here bound every wait of a learned policy by a multiple of what has been seen, once a first worker
//! has arrived. They are long: where predictions are right, the policy stops before them.
//!
//! **In the first round** nothing is known of the silent workers, so their run-times get a heavy-tailed
//! prior: Pareto with shape 1, each of n − j silent workers arriving with hazard 1/t. A cut at the last
//! arrival, after a seconds, would have brought j/a per second, and (n − j)/t falls below that at
//! t = a·(n − j)/j. The rate of the open round itself, j/t, falls as fast as the hazard: a rule that
//! compares these two waits for ever where fewer than half have arrived.
//!
//! **Later** a worker that was silent for [`SILENT`] times as long as the last arrival took is given up: for
//! a while no round waits for such workers alone. Otherwise long rounds would lower the run's rate, and a
//! lower rate makes waiting look cheap.

use std::{collections::BTreeMap, time::Duration};

use paceline_core::{Decision, Round, RoundRecord, RoundView, Time, WorkerId};

use crate::{learned::not_worth_waiting, rate::Rate};

/// The most times as long as the last arrival, or as the usual last arrival if that is later, that a
/// round lasts. Not times the length of rounds: limits would lengthen rounds, and rounds limits.
const MOST: f64 = 32.0;
/// The least and the most times as long as the last arrival that the first round lasts, if a policy
/// wants to wait.
const FIRST: (f64, f64) = (2.0, 16.0);
/// Times as long as the last arrival that a worker is silent in a round before it is given up.
const SILENT: u32 = 16;
/// Rounds for which a worker is given up, the first time; twice as many each further time.
const PAUSE: u64 = 64;

/// The workers that are given up, and the limits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patience {
    given_up: BTreeMap<WorkerId, GivenUp>,
}

/// A worker for which a round has waited very long.
#[derive(Debug, Clone, Copy)]
struct GivenUp {
    /// The first round that waits for it again.
    until: Round,
    /// Rounds that it is given up for.
    pause: u64,
}

impl Patience {
    /// The decision of a policy that predicts: ended at the first round's limit, or at the later ones'.
    pub(crate) fn bounded(
        &mut self,
        decision: Decision,
        view: &RoundView<'_>,
        rate: &Rate,
    ) -> Decision {
        if rate.last_arrival() > 0.0 {
            return self.limited(decision, view, rate);
        }
        let (all, arrived) = (view.participants() as f64, view.arrivals.len() as f64);
        let (least, most) = FIRST;
        ended(decision, view, (all / arrived).clamp(least, most) * last_arrival(view))
    }

    /// The decision, ended [`MOST`] times as long after the opening as the last arrival, here or usually.
    pub(crate) fn limited(
        &mut self,
        decision: Decision,
        view: &RoundView<'_>,
        rate: &Rate,
    ) -> Decision {
        let Decision::Wait { until, arrivals } = decision else { return decision };
        let is_waited_for =
            |worker| self.given_up.get(&worker).is_none_or(|given_up| view.round >= given_up.until);
        let waited_for = match self.given_up.is_empty() {
            true => view.outstanding_count(),
            false => view.outstanding().filter(|(worker, _)| is_waited_for(*worker)).count(),
        };
        if waited_for == 0 && !view.arrivals.is_empty() {
            return not_worth_waiting(view);
        }
        // When all others are in, the question comes again.
        let decision = Decision::Wait { until, arrivals: arrivals.min(waited_for.max(1)) };
        ended(decision, view, MOST * last_arrival(view).max(rate.last_arrival()))
    }

    /// A round closed. A worker that arrived is waited for again; one that was silent for very long is
    /// given up.
    pub(crate) fn closed(&mut self, record: &RoundRecord<'_>) {
        let observed = record.run_times.iter().filter(|(_, time)| !time.is_censored());
        let last = observed.map(|(_, time)| time.bound()).max().unwrap_or(Duration::MAX);
        for &(worker, time) in record.run_times {
            match time.is_censored() {
                true if time.bound() >= last.saturating_mul(SILENT) => {
                    self.give_up(worker, record.round);
                }
                true => {}
                false => drop(self.given_up.remove(&worker)),
            }
        }
    }

    fn give_up(&mut self, worker: WorkerId, round: Round) {
        let before = self.given_up.get(&worker).copied();
        // A round that waits for others says nothing new of a worker that is given up.
        if before.is_none_or(|before| round >= before.until) {
            let pause = before.map_or(PAUSE, |before| before.pause.saturating_mul(2));
            let until = Round(round.0.saturating_add(pause));
            self.given_up.insert(worker, GivenUp { until, pause });
        }
    }
}

fn last_arrival(view: &RoundView<'_>) -> f64 {
    let last = view.arrivals.last();
    last.map_or(0.0, |arrival| arrival.at.since(view.opened).as_secs_f64())
}

/// Ends a wait `latest` seconds after the opening. While nobody has arrived there is nothing to close
/// the round with, and the first arrival asks again.
fn ended(decision: Decision, view: &RoundView<'_>, latest: f64) -> Decision {
    let Decision::Wait { until, arrivals } = decision else { return decision };
    if view.arrivals.is_empty() {
        return Decision::Wait { until, arrivals: 1 };
    }
    let end = view.opened + Time::span(latest);
    match view.now >= end {
        true => not_worth_waiting(view),
        false => Decision::Wait { until: Some(until.map_or(end, |at| at.min(end))), arrivals },
    }
}
