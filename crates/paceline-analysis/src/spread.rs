//! The spread of run-times: between workers, over time, and in the tail.

use paceline_trace::Trace;
use serde::Serialize;

use crate::residual::{Residuals, bounds};

/// The spread of run-times. Ratios have no unit; `median` and `mean` have the trace's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunTimeSpread {
    /// Median of all run-times.
    pub median: f64,
    /// Mean of all run-times.
    pub mean: f64,
    /// Standard deviation over mean within a round, on average over rounds.
    pub within_rounds: f64,
    /// Standard deviation of the workers' own levels, as a share (0.05: most within ± 5 %).
    pub between_workers: f64,
    /// Standard deviation of the rounds' medians, as a share.
    pub over_time: f64,
    /// Run-times over the median of their round.
    pub tail: TailQuantiles,
    /// The slowest of a round over its median.
    pub slowest: TailQuantiles,
    /// The share of absent cells.
    pub absent: f64,
}

/// Quantiles of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TailQuantiles {
    /// Half are below.
    pub p50: f64,
    /// Nine in ten are below.
    pub p90: f64,
    /// 99 in a hundred are below.
    pub p99: f64,
    /// 999 in a thousand are below.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

impl TailQuantiles {
    pub(crate) fn from_sorted(sorted: &[f64]) -> TailQuantiles {
        let at = |q: f64| {
            let rank = (sorted.len() as f64 * q).ceil() as usize;
            sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
        };
        TailQuantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }
}

impl RunTimeSpread {
    /// `levels` are the workers' own, in the logarithm; `ratios` and `slowest` those of
    /// [`Ratios`](crate::survival::Ratios), sorted.
    pub(crate) fn from_trace(
        trace: &Trace,
        residuals: &Residuals,
        levels: &[f64],
        ratios: &[f64],
        slowest: &[f64],
    ) -> RunTimeSpread {
        let (mut sum, mut there, mut variation, mut rounds) = (0.0, 0usize, 0.0, 0usize);
        for round in 0..trace.rounds() {
            let (mut count, mut total, mut squares) = (0usize, 0.0, 0.0);
            for x in bounds(trace, round).filter(|x| !x.is_nan()) {
                count += 1;
                total += x;
                squares += x * x;
            }
            if count > 0 {
                let mean = total / count as f64;
                variation += (squares / count as f64 - mean * mean).max(0.0).sqrt() / mean;
                rounds += 1;
            }
            sum += total;
            there += count;
        }
        RunTimeSpread {
            median: trace.median(),
            mean: sum / there.max(1) as f64,
            within_rounds: variation / rounds.max(1) as f64,
            between_workers: share(levels),
            over_time: share(&residuals.medians),
            tail: TailQuantiles::from_sorted(ratios),
            slowest: TailQuantiles::from_sorted(slowest),
            absent: 1.0 - there as f64 / (trace.workers().len() * trace.rounds()).max(1) as f64,
        }
    }
}

/// The standard deviation of logarithms, as a share.
fn share(logs: &[f64]) -> f64 {
    let logs: Vec<f64> = logs.iter().copied().filter(|log| !log.is_nan()).collect();
    if logs.len() < 2 {
        return 0.0;
    }
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / logs.len() as f64;
    variance.sqrt().exp_m1()
}
