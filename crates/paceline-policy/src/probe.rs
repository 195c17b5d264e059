//! Probing: occasionally waiting longer than pays, to see workers not seen for long.
//!
//! Under strict censoring a worker that is always cut is never seen again, so a wrong belief about it
//! is never corrected; nor can an expert be scored that would have waited longer. A probe never lasts
//! beyond the moment after which arrivals could not pay anyway, and a budget (a share of all time)
//! bounds the cost of probes. The length that reveals something is unknown, so lengths follow the
//! universal sequence of Luby, Sinclair and Zuckerman (1993): 1 1 2 1 1 2 4 … quarter rounds, which is
//! within a logarithmic factor of the best sequence for any required length.

use paceline_core::{RoundRecord, RoundView, Time, WorkerId};

use crate::{objective::Gain, stop::break_even};

/// Share of the run's time that probes may take.
const SHARE: f64 = 0.01;
/// A worker not seen for this many rounds is worth a probe.
const STALE: u64 = 20;
/// The shortest probe, in typical rounds.
const UNIT: f64 = 0.25;

/// When each worker was last seen, and the budget for probes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probe {
    seen: Vec<u64>,
    /// Seconds left for probes.
    budget: f64,
    /// Typical length of a round, in seconds.
    typical: f64,
    /// Probes made so far.
    made: u64,
    /// The probe under way: when the round would have been cut, and when the probe ends.
    under_way: Option<(Time, Time)>,
}

impl Probe {
    /// Called when the round would be cut: until when to probe instead, if at all. `wanted` asks for
    /// a probe even if every worker was seen recently.
    pub(crate) fn instead_of_cut(
        &mut self,
        view: &RoundView<'_>,
        gain: &Gain,
        rate: f64,
        overhead: f64,
        wanted: bool,
    ) -> Option<Time> {
        if let Some((_, until)) = self.under_way {
            return (view.now < until).then_some(until);
        }
        let length = UNIT * self.typical * luby(self.made + 1) as f64;
        if length > self.budget || self.typical == 0.0 {
            return None;
        }
        let is_stale = |worker| self.unseen_for(worker, view.round.0) > STALE;
        let (mut missing, mut stale) = (0.0, false);
        for (worker, work) in view.outstanding() {
            missing += f64::from(work.samples);
            stale |= is_stale(worker);
        }
        if !stale && !wanted {
            return None;
        }
        let gained: f64 = view.arrivals.iter().map(|a| a.weight).sum();
        let elapsed = view.now.since(view.opened).as_secs_f64();
        let wait = length.min(break_even(gain, gained + missing, rate, overhead) - elapsed);
        if wait <= 0.0 {
            return None;
        }
        let until = view.now + Time::span(wait);
        self.made += 1;
        self.under_way = Some((view.now, until));
        Some(until)
    }

    /// When the round would have been cut, if it is being probed.
    pub(crate) fn cut_was_due(&self) -> Option<Time> {
        self.under_way.map(|(cut, _)| cut)
    }

    /// A round closed; the next opens `overhead` seconds later.
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

/// The i-th term, from 1, of 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 …
fn luby(mut i: u64) -> u64 {
    loop {
        let power = (i + 1).next_power_of_two();
        if power == i + 1 {
            return power / 2;
        }
        i -= power / 2 - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_universal_sequence() {
        let terms: Vec<u64> = (1..=15).map(luby).collect();
        assert_eq!(terms, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
