//! Rates in hindsight of deadlines that keep finished micro-batches.

use crate::{Cell, Trace};

/// Rates of rounds that close at a deadline with salvage, and bounds on them, in contributions per
/// second over the whole trace. A finished micro-batch counts by its share of a contribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deadlines {
    /// Rate of waiting for all.
    pub full_rate: f64,
    /// The deadline, the same in every round, with the best rate.
    pub best_fixed: f64,
    /// Its rate.
    pub best_fixed_rate: f64,
    /// The best rate of any choice of deadlines, one per round.
    pub clairvoyant_rate: f64,
    /// Rate if each round's work were spread evenly over the workers present, so that none waits.
    pub balance_rate: f64,
}

/// Computes rates in hindsight, with `overhead` seconds between a close and the next round. A round
/// closes at its deadline, or when all work is done if that is sooner. Without micro-batches in the
/// trace, a worker has one. A lower bound counts as the run-time; rounds without workers are left out.
///
/// A rate only falls between two finishing moments, so those are the deadlines that matter. The
/// clairvoyant's are found as [`hindsight`](crate::hindsight())'s counts are, by Dinkelbach's
/// iteration.
pub fn deadlines(trace: &Trace, overhead: f64) -> Deadlines {
    let share = 1.0 / trace.micro_batches() as f64;
    let rounds: Vec<RoundEnds> = (0..trace.rounds())
        .map(|round| RoundEnds::from_trace(trace, round))
        .filter(|round| !round.moments.is_empty())
        .collect();
    let rate = |time: fn(&RoundEnds) -> f64| {
        let gain: f64 = rounds.iter().map(|round| round.moments.len() as f64 * share).sum();
        let time: f64 = rounds.iter().map(|round| time(round) + overhead).sum();
        if time > 0.0 { gain / time } else { 0.0 }
    };
    let full_rate = rate(RoundEnds::last);
    let (best_fixed, best_fixed_rate) = best_fixed(&rounds, overhead, share);
    Deadlines {
        full_rate,
        best_fixed,
        best_fixed_rate,
        clairvoyant_rate: clairvoyant(&rounds, overhead, share, best_fixed_rate),
        balance_rate: rate(|round| round.even),
    }
}

/// End times within a round.
struct RoundEnds {
    /// Ends of all micro-batches, ascending.
    moments: Vec<f64>,
    /// The end if the work had been spread evenly.
    even: f64,
}

impl RoundEnds {
    fn from_trace(trace: &Trace, round: usize) -> RoundEnds {
        let mut moments = Vec::with_capacity(trace.workers().len() * trace.micro_batches());
        let (mut work, mut workers) = (0.0, 0.0f64);
        for (worker, run_time) in trace.row(round).map(Cell::bound).enumerate() {
            let Some(run_time) = run_time else { continue };
            work += run_time;
            workers += 1.0;
            match trace.micro_ends(round, worker) {
                Some(ends) => moments.extend_from_slice(ends),
                None => moments.push(run_time),
            }
        }
        moments.sort_unstable_by(f64::total_cmp);
        RoundEnds { moments, even: work / workers.max(1.0) }
    }

    fn last(&self) -> f64 {
        self.moments[self.moments.len() - 1]
    }
}

/// Sweeps the deadline over all finishing moments.
fn best_fixed(rounds: &[RoundEnds], overhead: f64, share: f64) -> (f64, f64) {
    let mut moments: Vec<f64> = rounds.iter().flat_map(|round| &round.moments).copied().collect();
    moments.sort_unstable_by(f64::total_cmp);
    let mut lasts: Vec<f64> = rounds.iter().map(RoundEnds::last).collect();
    lasts.sort_unstable_by(f64::total_cmp);

    let (mut best, mut best_rate) = (0.0, 0.0);
    let (mut complete, mut complete_time) = (0, 0.0);
    for (done, &deadline) in moments.iter().enumerate() {
        while lasts.get(complete).is_some_and(|&last| last <= deadline) {
            complete_time += lasts[complete];
            complete += 1;
        }
        let open = (rounds.len() - complete) as f64;
        let time = complete_time + open * deadline + overhead * rounds.len() as f64;
        let rate = (done + 1) as f64 * share / time;
        // Among equal rates, the longer wait, which has more work done.
        if rate >= best_rate {
            (best, best_rate) = (deadline, rate);
        }
    }
    (best, best_rate)
}

fn clairvoyant(rounds: &[RoundEnds], overhead: f64, share: f64, mut rate: f64) -> f64 {
    loop {
        let (mut gain, mut time) = (0.0, 0.0);
        for round in rounds {
            let value = |done: usize| (done + 1) as f64 * share - rate * round.moments[done];
            let best = (0..round.moments.len())
                .max_by(|&a, &b| value(a).total_cmp(&value(b)))
                .expect("something was finished");
            gain += (best + 1) as f64 * share;
            time += round.moments[best] + overhead;
        }
        let next = gain / time;
        if next.is_nan() || next <= rate * (1.0 + 1e-12) {
            return rate;
        }
        rate = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Unit, generate, hindsight};

    #[test]
    fn a_small_trace_has_the_rates_computed_by_hand() {
        let mut trace = Trace::of_size("hand", Unit::Seconds, 2);
        trace.push_micro_round(2, &[1.0, 2.0, 3.0, 6.0]);
        trace.push_micro_round(2, &[1.0, 2.0, 1.0, 2.0]);
        let seen = deadlines(&trace, 0.0);
        assert_eq!(seen.full_rate, 4.0 / 8.0);
        // After 2 s there are 2 of 4 micro-batches in the first round and all in the second.
        assert_eq!((seen.best_fixed, seen.best_fixed_rate), (2.0, 3.0 / 4.0));
        // 1 s of the first (1 of 4) and 2 s of the second: 2.5 contributions in 3 s.
        assert_eq!(seen.clairvoyant_rate, 2.5 / 3.0);
        assert_eq!(seen.balance_rate, 4.0 / 6.0);
        assert_eq!(deadlines(&trace, 1.0).full_rate, 4.0 / 10.0);
    }

    #[test]
    fn without_micro_batches_the_clairvoyant_is_the_oracle_of_counts() {
        let spec = "failure:p=0.05,rounds=300,at=100".parse().expect("a generator");
        let trace = generate(&spec, 2);
        let (seen, counts) = (deadlines(&trace, 0.1), hindsight(&trace, 0.1, 1));
        assert!((seen.full_rate / counts.full_rate - 1.0).abs() < 1e-12);
        assert!((seen.clairvoyant_rate / counts.oracle_rate - 1.0).abs() < 1e-12);
    }

    #[test]
    fn nobody_there_is_no_rate() {
        let mut trace = Trace::of_size("nobody", Unit::Seconds, 1);
        trace.push_round([Cell::Absent]);
        let seen = deadlines(&trace, 0.0);
        assert_eq!((seen.full_rate, seen.best_fixed_rate, seen.clairvoyant_rate), (0.0, 0.0, 0.0));
    }
}
