//! The paper's rule: before the round, commit to the count with the best expected rate.
//!
//! c* = argmax g(c/n) / (E[x_(c)] + o), the gain g being c itself for throughput. The expected order
//! statistic is the time by which the mean distribution of the workers reaches
//! (c − π/8) / (n − π/4 + 1): Elfving's formula, which for a normal is the one in the paper and holds
//! for any continuous distribution to the same order. Joint draws, where a predictor has them, replace
//! the formula.

use std::f64::consts::PI;

use paceline_core::WorkerId;

use crate::predict::Predictor;

/// Moments at which the mean distribution is evaluated, evenly spaced in log time.
const GRID: usize = 192;
/// Most workers to average over; of more, every k-th.
const SAMPLE: usize = 512;

/// Joint draws behind expected order statistics.
const DRAWS: usize = 64;

/// The count of these workers to wait for; `typical` is the approximate length of a round, `gain` the
/// gain from a share of the workers.
pub(crate) fn best_count(
    predictor: &dyn Predictor,
    workers: &[WorkerId],
    typical: f64,
    overhead: f64,
    gain: impl Fn(f64) -> f64,
) -> usize {
    let n = workers.len();
    let stride = n.div_ceil(SAMPLE).max(1);
    let sample: Vec<WorkerId> = workers.iter().step_by(stride).copied().collect();
    let times = match predictor.draws(&sample, DRAWS) {
        Some(draws) => mean_order_statistics(draws, n),
        None => expected_order_statistics(predictor, &sample, n, typical),
    };
    let rate = |c: usize| gain(c as f64 / n as f64) / (times[c - 1] + overhead);
    (1..=n).max_by(|&a, &b| rate(a).total_cmp(&rate(b))).unwrap_or(1)
}

/// The means of sorted draws, for `n` workers of which each draw is a sample.
fn mean_order_statistics(draws: Vec<Vec<f32>>, n: usize) -> Vec<f64> {
    let (count, m) = (draws.len() as f64, draws.first().map_or(0, Vec::len));
    let mut means = vec![0.0f64; m];
    for mut draw in draws {
        draw.sort_unstable_by(f32::total_cmp);
        means.iter_mut().zip(draw).for_each(|(mean, y)| *mean += f64::from(y).exp() / count);
    }
    let of = |place: usize| {
        let at = ((place as f64 + 0.5) * m as f64 / n as f64 - 0.5).clamp(0.0, (m - 1) as f64);
        let (below, part) = (at as usize, at.fract());
        means[below] + part * (means[(below + 1).min(m - 1)] - means[below])
    };
    (0..n).map(of).collect()
}

/// E[x_(1)], …, E[x_(n)]; infinite beyond the prediction's range.
fn expected_order_statistics(
    predictor: &dyn Predictor,
    workers: &[WorkerId],
    n: usize,
    typical: f64,
) -> Vec<f64> {
    let (from, to) = ((typical / 50.0).ln(), (typical * 200.0).ln());
    let mut times = Vec::with_capacity(n);
    let (mut before, mut reached) = (from, 0.0);
    for step in 0..GRID {
        let at = from + (to - from) * (step + 1) as f64 / GRID as f64;
        let silent: f64 = workers.iter().map(|&w| predictor.survival(w, at)).sum();
        let share = 1.0 - silent / workers.len() as f64;
        while times.len() < n {
            let wanted = (times.len() as f64 + 1.0 - PI / 8.0) / (n as f64 - PI / 4.0 + 1.0);
            if share < wanted {
                break;
            }
            let part = ((wanted - reached) / (share - reached).max(1e-12)).clamp(0.0, 1.0);
            times.push((before + part * (at - before)).exp());
        }
        (before, reached) = (at, share);
    }
    times.resize(n, f64::INFINITY);
    times
}
