//! Synthetic clusters as a model sees them.

#![allow(dead_code, reason = "each test file uses a part of it")]

use paceline_model::Seen;
use paceline_trace::{Trace, generate};

/// A drawn trace.
pub(crate) fn trace(spec: &str, seed: u64) -> Trace {
    generate(&spec.parse().expect("a synthetic cluster"), seed)
}

/// One round, cut when `share` of the workers have arrived.
pub(crate) fn seen(trace: &Trace, round: usize, share: f64) -> Seen {
    let cells: Vec<(u32, f64)> = trace
        .row(round)
        .enumerate()
        .filter_map(|(worker, cell)| Some((worker as u32, cell.bound()?)))
        .collect();
    let mut times: Vec<f64> = cells.iter().map(|(_, x)| *x).collect();
    times.sort_unstable_by(f64::total_cmp);
    let last = ((times.len() as f64 * share).ceil() as usize).clamp(1, times.len());
    let cut = times[last - 1];
    let mut seen = Seen::default();
    for (worker, x) in cells {
        seen.workers.push(worker);
        seen.log_times.push(x.min(cut).ln() as f32);
        seen.observed.push(x <= cut);
    }
    seen
}

/// All rounds of it, uncut.
pub(crate) fn whole(spec: &str, seed: u64) -> Vec<Seen> {
    let trace = trace(spec, seed);
    (0..trace.rounds()).map(|round| seen(&trace, round, 1.0)).collect()
}
