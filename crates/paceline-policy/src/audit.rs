//! Audits: rounds that wait longer than the policy would, to see the run-times that cuts hide.
//!
//! Under strict censoring a worker that is always cut is never seen again, so a wrong belief about it is never
//! corrected, and an expert that would have waited longer cannot be scored. A round is chosen for an audit
//! before it opens, never by its run-times, so what audits show is unbiased. An audited round waits until all
//! workers have arrived, or until even the arrival of all of them would not pay. The cost of an audit is what
//! the run would have gained meanwhile, less what arrived; a budget, which is a share of all gains, bounds the
//! sum of costs. Audits whose wait did not pay become rare: the pause doubles after each of them, and halves
//! after one that paid.

use std::time::Duration;

use paceline_core::{Round, RoundRecord, RoundView, RunTime, Time, WorkerId};

use crate::{closed::ClosedRound, objective::Gain, rate::GainRate, scene::Scene, stop::break_even};

/// The first round that may be audited. Before, the run's rate is not known well enough to say what pays.
const FIRST: u64 = 6;
/// The longest audited round, in multiples of the last arrival, of this round or usually: a hung worker is
/// not waited for, and one long audit does not make the next one longer.
const MOST: f64 = 16.0;
/// The least and the greatest pause between audits, in rounds.
const PAUSE: (f64, f64) = (2.0, 256.0);
/// Share of the run's gain that audits may cost.
const SHARE: f64 = 0.01;
/// Costs that audits may have before anything was gained, in gains of a full round.
const ADVANCE: f64 = 0.5;
/// The expected cost of the first audit, in gains of a full round.
const GUESS: f64 = 0.25;
/// Weight of the newest audit in the expected cost of the next.
const NEWEST: f64 = 0.3;
/// Most counts of arrivals that are weighed in hindsight; of more, every k-th.
const GRAIN: usize = 256;
/// After so many rounds in a row that gained less than this share of what the run gains in their time, the cluster
/// may have changed: the next round is audited. This happens at most once in so many rounds.
const POOR_ROUNDS: u32 = 3;
const POOR: f64 = 0.5;
const APART: u64 = 32;
/// The least expected cost.
const LEAST: f64 = 0.02;

/// The budget and the schedule of audits, and the audit under way.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    budget: f64,
    expected: f64,
    /// Rounds from an audit to the next, and the first round that may be the next.
    pause: f64,
    next: u64,
    /// Poor rounds in a row, and the first round that may be taken for a change.
    poor: u32,
    settled: u64,
    /// The round that was looked at last, and whether it is audited.
    round: Option<(Round, bool)>,
    /// When the round would have been cut, and its gain by then.
    due: Option<(Time, f64)>,
    /// Micro-batches per contribution if they count one by one, else 1.
    partial: u32,
}

impl Default for Audit {
    fn default() -> Self {
        let (pause, _) = PAUSE;
        Audit {
            budget: ADVANCE,
            expected: GUESS,
            pause,
            next: FIRST,
            poor: 0,
            settled: FIRST,
            round: None,
            due: None,
            partial: 1,
        }
    }
}

impl Audit {
    /// Called when the round would be cut: until when to wait instead, if it is audited.
    pub(crate) fn instead_of_cut(
        &mut self,
        view: &RoundView<'_>,
        scene: &Scene,
        gain: &Gain,
        rate: &GainRate,
    ) -> Option<Time> {
        if !self.audits(view.round) {
            return None;
        }
        let (gained, missing) = (scene.gained(), scene.missing());
        let per_second = rate.or_now(gain, gained, scene.elapsed);
        let arrival = view.arrivals.last().map_or(0.0, |a| a.at.since(view.opened).as_secs_f64());
        let most = MOST * arrival.max(rate.last_arrival());
        let (due, by_then) = self.due.unwrap_or((view.now, gain.value(gained)));
        let since = (by_then, due.since(view.opened).as_secs_f64());
        let pays = break_even(gain, since, gained + missing, per_second, rate.overhead()).max(0.0);
        // Whatever arrives meanwhile, the wait costs at most what it takes.
        let affordable = self.budget * gain.value(gained + missing) / per_second;
        let last = (view.opened + Time::span(pays.min(most))).min(due + Time::span(affordable));
        if view.now >= last {
            return None;
        }
        self.due.get_or_insert((view.now, gain.value(gained)));
        self.partial = view.partial;
        Some(last)
    }

    /// Whether this round is audited. The first call of a round decides it.
    pub(crate) fn audits(&mut self, round: Round) -> bool {
        match self.round {
            Some((decided, audited)) if decided == round => audited,
            _ => {
                let audited = round.0 >= self.next && self.expected <= self.budget;
                self.round = Some((round, audited));
                audited
            }
        }
    }

    /// When the round would have been cut, if it is audited.
    pub(crate) fn cut_was_due(&self) -> Option<Time> {
        self.due.map(|(cut, _)| cut)
    }

    /// A round closed in which all workers would have gained `all`; the run gains `rate` per second. For an
    /// audited round, returns how long it was worth waiting for, in hindsight.
    pub(crate) fn closed(
        &mut self,
        record: &RoundRecord<'_>,
        gain: &Gain,
        all: f64,
        rate: f64,
    ) -> Option<Duration> {
        self.budget += SHARE * gain.value(record.weight) / all;
        self.watch(record, gain, rate);
        let (cut, gained) = self.due.take()?;
        let seconds = record.closed.since(cut).as_secs_f64();
        let cost = (rate * seconds - (gain.value(record.weight) - gained)) / all;
        self.budget -= cost.max(0.0);
        self.expected += NEWEST * (cost.max(LEAST) - self.expected);
        let (least, most) = PAUSE;
        let factor = if cost > 0.0 { 2.0 } else { 0.5 };
        self.pause = (factor * self.pause).clamp(least, most);
        let pause = self.pause * (0.5 + uniform(record.round));
        self.next = record.round.0 + pause.ceil() as u64;
        let round = ClosedRound::new(record, self.partial);
        Some(worth_waiting(&round, gain, cut.since(record.opened), rate))
    }
}

impl Audit {
    /// Looks for a change of the cluster. What audits cost before it says nothing about those after it.
    fn watch(&mut self, record: &RoundRecord<'_>, gain: &Gain, rate: f64) {
        let usual = rate * record.closed.since(record.opened).as_secs_f64();
        let is_poor = gain.value(record.weight) < POOR * usual;
        self.poor = if is_poor { self.poor + 1 } else { 0 };
        if self.poor >= POOR_ROUNDS && record.round.0 >= self.settled {
            (self.pause, self.expected) = (PAUSE.0, GUESS);
            self.budget = self.budget.max(ADVANCE);
            self.next = record.round.0 + 1;
            self.settled = record.round.0 + APART;
        }
    }
}

/// The moment from `due` on with the most gain less `rate` times the wait, since the opening.
fn worth_waiting(round: &ClosedRound, gain: &Gain, due: Duration, rate: f64) -> Duration {
    let value = |count, after| gain.value(round.brings(count, after)) - rate * after;
    let due = due.as_secs_f64();
    let arrival = |count| round.arrival(count).unwrap_or(f64::INFINITY);
    let by_then = (1..=round.arrived()).take_while(|&count| arrival(count) <= due).count();
    let at_due = (value(by_then, due), due);
    let stride = (round.arrived() - by_then).div_ceil(GRAIN).max(1);
    let later = (by_then + 1..=round.arrived()).rev().step_by(stride);
    let later = later.map(|count| (value(count, arrival(count)), arrival(count)));
    let best = later.fold(at_due, |best, other| if other.0 > best.0 { other } else { best });
    Time::span(best.1)
}

/// The run-times as a cut after `until` would have left them.
///
/// Predictors learn from an audited round only as far as it was worth waiting for. The rest is for scores: on
/// round-trip times over the open internet, run-times that no round should wait for made them wait.
pub(crate) fn censored_after(run_times: &mut [(WorkerId, RunTime)], until: Duration) {
    for (_, time) in run_times.iter_mut().filter(|(_, time)| time.bound() > until) {
        *time = RunTime::Censored { at_least: until };
    }
}

/// A number from 0 to 1 for each round: SplitMix64.
fn uniform(round: Round) -> f64 {
    let mut z = round.0.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::Objective;

    const SECOND: Duration = Duration::from_secs(1);

    /// Ten workers of which `arrivals` came, one per second; the rest was given up after the last.
    fn closed(audit: &mut Audit, round: u64, due: u32, arrivals: u32, rate: f64) -> Duration {
        let end = arrivals * SECOND;
        let run_times = (1..=10).map(|worker| match worker <= arrivals {
            true => (WorkerId(worker), RunTime::Observed(worker * SECOND)),
            false => (WorkerId(worker), RunTime::Censored { at_least: end }),
        });
        let run_times: Vec<_> = run_times.collect();
        audit.due = Some((Time::ZERO + due * SECOND, f64::from(due)));
        let record = RoundRecord {
            round: Round(round),
            opened: Time::ZERO,
            cut: Time::ZERO + end,
            closed: Time::ZERO + end,
            weight: f64::from(arrivals),
            run_times: &run_times,
            salvaged: &[],
            loads: &[],
        };
        let gain = Gain::new(Objective::Samples);
        audit.closed(&record, &gain, 10.0, rate).expect("it was audited")
    }

    #[test]
    fn an_audit_waits_for_its_round_and_its_budget() {
        let mut audit = Audit::default();
        let audited = |audit: &mut Audit| (0..20).find(|&round| audit.audits(Round(round)));
        assert_eq!(audited(&mut audit), Some(FIRST));
        audit.budget = GUESS / 2.0;
        assert_eq!(audited(&mut audit), None);
    }

    #[test]
    fn audits_that_cost_become_rare_and_those_that_pay_become_frequent() {
        let mut audit = Audit { settled: u64::MAX, ..Audit::default() };
        for round in [6, 20, 40] {
            closed(&mut audit, round, 2, 8, 3.0);
        }
        assert_eq!(audit.pause, 16.0);
        assert!((48..=64).contains(&audit.next), "{}", audit.next);
        // 6 arrivals in 6 seconds, of which the run would have gained 18.
        assert!((audit.budget - (ADVANCE + 3.0 * (0.008 - 1.2))).abs() < 1e-9, "{}", audit.budget);
        closed(&mut audit, 60, 2, 8, 0.5);
        assert_eq!(audit.pause, 8.0);
    }

    #[test]
    fn rounds_that_suddenly_gain_little_are_audited() {
        let mut audit = Audit { next: 500, pause: 256.0, budget: 0.0, ..Audit::default() };
        for round in [100, 101] {
            closed(&mut audit, round, 2, 2, 10.0);
        }
        audit.next = 500;
        closed(&mut audit, 102, 2, 2, 10.0);
        assert!(audit.next < 110 && audit.budget > 0.0, "{audit:?}");
    }

    #[test]
    fn a_round_is_shown_as_far_as_it_was_worth_waiting_for() {
        let mut audit = Audit::default();
        assert_eq!(
            closed(&mut audit, 6, 2, 8, 3.0),
            2 * SECOND,
            "waiting cost more than it brought"
        );
        assert_eq!(closed(&mut audit, 9, 2, 8, 0.5), 8 * SECOND);
        let mut run_times = [
            (WorkerId(0), RunTime::Observed(SECOND)),
            (WorkerId(1), RunTime::Observed(3 * SECOND)),
            (WorkerId(2), RunTime::Censored { at_least: 4 * SECOND }),
        ];
        censored_after(&mut run_times, 2 * SECOND);
        let cut = RunTime::Censored { at_least: 2 * SECOND };
        assert_eq!(run_times.map(|(_, time)| time), [RunTime::Observed(SECOND), cut, cut]);
    }

    #[test]
    fn rounds_draw_evenly() {
        let low = (0..10_000).filter(|&round| uniform(Round(round)) < 0.5).count();
        assert!((4_850..5_150).contains(&low), "{low}");
    }
}
