//! Scores of a predictor, one round ahead: likelihood, CRPS, calibration.

use paceline_core::{Round, RunTime, WorkerId};

use crate::{
    intervals::{ConformalInterval, LEVELS},
    predict::{Predictor, log_seconds},
};

/// Most workers scored per round; of more, every k-th, with a different first one each round.
const SCORED: usize = 32;
/// Grid points of the CRPS integral, evenly spaced in log time about the middle of the round.
const GRID: usize = 192;
/// The grid's ends relative to the middle, in log time: from 1/20 to 50 times the middle.
const REACH: (f64, f64) = (-3.0, 3.9);
/// Draws behind the intervals of order statistics.
const DRAWS: usize = 400;
/// Order statistics whose intervals are checked, as shares of the workers.
pub const PLACES: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.97];

/// Means over scored run-times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PredictionScore {
    /// Run-times scored.
    pub run_times: usize,
    /// Log density of the log run-time in nats, or log survival if it is censored.
    pub log_likelihood: f64,
    /// Continuous ranked probability score of the run-time, over the median run-time. Smaller is
    /// better.
    pub crps: f64,
    /// Share of run-times inside the central intervals of [`LEVELS`].
    pub coverage: [f64; LEVELS.len()],
    /// For each of [`PLACES`], the share of rounds whose order statistic lay inside the central
    /// intervals of [`LEVELS`], if the predictor draws workers jointly.
    pub order: Option<OrderCoverage>,
}

/// Shares of rounds, by place and level.
#[derive(Debug, Clone, PartialEq)]
pub struct OrderCoverage {
    /// Inside the prediction's own intervals.
    pub raw: Vec<[f64; LEVELS.len()]>,
    /// Inside the same intervals after conformal adaptation ([`ConformalInterval`]).
    pub followed: Vec<[f64; LEVELS.len()]>,
}

/// Shows a predictor one round after another, and scores its predictions of all but the first
/// `warm_up`.
pub fn score(
    predictor: &mut dyn Predictor,
    rounds: &[Vec<(WorkerId, RunTime)>],
    warm_up: usize,
) -> PredictionScore {
    let mut sums = ScoreSums::default();
    for (round, times) in rounds.iter().enumerate().filter(|(_, times)| !times.is_empty()) {
        if round >= warm_up.max(1) {
            predictor.expect();
            sums.add(predictor, times, round);
        }
        predictor.learn(Round(round as u64), times);
    }
    sums.mean()
}

#[derive(Default)]
struct ScoreSums {
    run_times: usize,
    log_likelihood: f64,
    crps: f64,
    scored: usize,
    coverage: [f64; LEVELS.len()],
    raw: [[f64; LEVELS.len()]; PLACES.len()],
    followed: [[f64; LEVELS.len()]; PLACES.len()],
    intervals: [ConformalInterval; PLACES.len()],
    rounds: f64,
}

impl ScoreSums {
    fn add(&mut self, predictor: &dyn Predictor, times: &[(WorkerId, RunTime)], round: usize) {
        let mut all: Vec<f64> = times.iter().map(|(_, time)| log_seconds(*time)).collect();
        let middle = *all.select_nth_unstable_by(times.len() / 2, f64::total_cmp).1;
        let stride = times.len().div_ceil(SCORED).max(1);
        for &(worker, time) in times.iter().skip(round % stride).step_by(stride) {
            self.add_one(predictor, worker, time, middle);
        }
        self.add_order(predictor, times);
    }

    fn add_one(&mut self, predictor: &dyn Predictor, worker: WorkerId, time: RunTime, middle: f64) {
        let y = log_seconds(time);
        self.run_times += 1;
        if time.is_censored() {
            self.log_likelihood += predictor.survival(worker, y).max(1e-9).ln();
            return;
        }
        const STEP: f64 = 2e-3;
        let ahead = predictor.survival(worker, y - STEP) - predictor.survival(worker, y + STEP);
        self.log_likelihood += (ahead / (2.0 * STEP)).max(1e-6).ln();
        let below = 1.0 - predictor.survival(worker, y);
        for (inside, level) in self.coverage.iter_mut().zip(LEVELS) {
            *inside += f64::from(u8::from((below - 0.5).abs() <= 0.5 * level));
        }
        self.scored += 1;
        self.crps += crps(predictor, worker, y, middle);
    }

    fn add_order(&mut self, predictor: &dyn Predictor, times: &[(WorkerId, RunTime)]) {
        let workers: Vec<WorkerId> = times.iter().map(|(worker, _)| *worker).collect();
        let whole = times.iter().all(|(_, time)| !time.is_censored());
        let Some(mut draws) = predictor.draws(&workers, DRAWS).filter(|_| whole) else { return };
        draws.iter_mut().for_each(|draw| draw.sort_unstable_by(f32::total_cmp));
        let mut sorted: Vec<f64> = times.iter().map(|(_, time)| log_seconds(*time)).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        self.rounds += 1.0;
        for (i, share) in PLACES.into_iter().enumerate() {
            let place = ((sorted.len() - 1) as f64 * share).round() as usize;
            let mut drawn: Vec<f64> = draws.iter().map(|draw| f64::from(draw[place])).collect();
            drawn.sort_unstable_by(f64::total_cmp);
            let found = sorted[place];
            for (inside, (from, to)) in
                self.raw[i].iter_mut().zip(ConformalInterval::default().ends(&drawn))
            {
                *inside += f64::from(u8::from((from..=to).contains(&found)));
            }
            let followed = self.intervals[i].learn(&drawn, found);
            for (inside, held) in self.followed[i].iter_mut().zip(followed) {
                *inside += f64::from(u8::from(held));
            }
        }
    }

    fn mean(self) -> PredictionScore {
        let scored = self.scored.max(1) as f64;
        PredictionScore {
            run_times: self.run_times,
            log_likelihood: self.log_likelihood / self.run_times.max(1) as f64,
            crps: self.crps / scored,
            coverage: self.coverage.map(|inside| inside / scored),
            order: (self.rounds > 0.0).then(|| {
                let mean = |rows: [[f64; LEVELS.len()]; PLACES.len()]| {
                    rows.map(|row| row.map(|inside| inside / self.rounds)).to_vec()
                };
                OrderCoverage { raw: mean(self.raw), followed: mean(self.followed) }
            }),
        }
    }
}

/// ∫ (F(x) − 1{y ≤ x})² dx over the round's middle, x being time.
fn crps(predictor: &dyn Predictor, worker: WorkerId, y: f64, middle: f64) -> f64 {
    let step = (REACH.1 - REACH.0) / GRID as f64;
    let logs: Vec<f64> = (0..GRID).map(|g| middle + REACH.0 + (g as f64 + 0.5) * step).collect();
    let mut survival = vec![0.0; GRID];
    predictor.survivals(worker, &logs, &mut survival);
    let cells = logs.iter().zip(survival);
    cells
        .map(|(&log, above)| {
            let off = if y <= log { above } else { 1.0 - above };
            off * off * (log - middle).exp() * step
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::{SeedableRng, rngs::ChaCha8Rng};
    use rand_distr::{Distribution, LogNormal};

    use super::*;
    use crate::{Empirical, Filter};

    #[test]
    fn a_predictor_that_knows_workers_scores_better_than_a_pooled_one() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let noise = LogNormal::new(0.0, 0.05).expect("a distribution");
        let rounds: Vec<Vec<(WorkerId, RunTime)>> = (0..300)
            .map(|_| {
                let time = |worker: u32| {
                    let x = f64::from(1 + worker % 3) * noise.sample(&mut rng);
                    (WorkerId(worker), RunTime::Observed(Duration::from_secs_f64(x)))
                };
                (0..12).map(time).collect()
            })
            .collect();
        let filter = score(&mut Filter::default(), &rounds, 50);
        let empirical = score(&mut Empirical::default(), &rounds, 50);
        assert!(filter.crps < 0.5 * empirical.crps, "{filter:?} {empirical:?}");
        assert!(filter.log_likelihood > empirical.log_likelihood + 0.5);
        assert!((filter.coverage[1] - 0.9).abs() < 0.06, "{filter:?}");
    }
}
