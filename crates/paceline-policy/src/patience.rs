//! Limits on how long a round waits for workers that may never arrive.
//!
//! A hung worker is live and silent. Predictors learn from workers that arrived, so a prediction can
//! keep promising its arrival, and a policy that waits for a count does not look at the clock. The
//! limits here bound every wait of a learned policy by a multiple of observed run-times, once a first
//! worker has arrived. They are long: where predictions are right, the policy stops before them.
//!
//! **In the first round** nothing is known about the silent workers, so their run-times get a heavy-tailed
//! prior: Pareto with shape 1, each of n − j silent workers arriving with hazard 1/t. A cut at the last
//! arrival, after a seconds, would have gained j/a per second, and (n − j)/t falls below that at
//! t = a·(n − j)/j. The rate of the open round itself, j/t, falls as fast as the hazard: a rule that
//! compares these two waits for ever where fewer than half have arrived.
//!
//! **Later** a worker that was silent for [`SILENT`] times as long as the last arrival took is given up:
//! for a while no round waits only for workers that are given up. Otherwise long rounds would lower the
//! run's rate, and a lower rate makes waiting look cheap.

use std::{collections::BTreeMap, time::Duration};

use paceline_core::{Decision, Round, RoundRecord, RoundView, Time, WorkerId};

use crate::{learned::not_worth_waiting, rate::GainRate};

/// Longest round, in multiples of the last arrival or of the usual last arrival, whichever is later.
/// Not in multiples of round lengths: limits would lengthen rounds, and rounds limits.
const MOST: f64 = 32.0;
/// Bounds of the first round's limit, in multiples of the last arrival.
const FIRST: (f64, f64) = (2.0, 16.0);
/// Silence after which a worker is given up, in multiples of the last arrival.
const SILENT: u32 = 16;
/// Rounds for which a worker is given up at first; doubled each further time.
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
    /// Rounds for which it is given up.
    pause: u64,
}

impl Patience {
    /// Bounds the decision of a predicting policy by the first round's limit, or the later limits.
    pub(crate) fn bounded(
        &mut self,
        decision: Decision,
        view: &RoundView<'_>,
        rate: &GainRate,
    ) -> Decision {
        if rate.last_arrival() > 0.0 {
            return self.limited(decision, view, rate);
        }
        let (all, arrived) = (view.participants() as f64, view.arrivals.len() as f64);
        let (least, most) = FIRST;
        ended(decision, view, (all / arrived).clamp(least, most) * last_arrival(view))
    }

    /// Bounds a decision by [`MOST`] times the last arrival, of this round or usually.
    pub(crate) fn limited(
        &mut self,
        decision: Decision,
        view: &RoundView<'_>,
        rate: &GainRate,
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
        // The policy is asked again when all others have arrived.
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
        // A round that waits for others says nothing new about a worker that is given up.
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

/// Ends a wait `latest` seconds after the opening. Without an arrival the round cannot close, and the
/// first arrival asks again.
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
