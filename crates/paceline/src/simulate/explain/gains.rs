//! What a round gains over time, as only hindsight knows it.

use paceline_core::Straggler;
use paceline_trace::Trace;

use super::loss::Cut;

/// Tolerance for the replay's clock, which counts whole nanoseconds.
const TICK: f64 = 1e-9;

/// The gains of a round.
pub(super) struct Gains {
    pub(super) participants: usize,
    /// Seconds from the opening to each gain, ascending.
    moments: Vec<f64>,
    /// Contributions gained each time.
    each: f64,
}

impl Gains {
    /// The gains of a trace's round: contributions, or micro-batches where these count one by one.
    /// `None` if no worker takes part.
    pub(super) fn new(trace: &Trace, round: usize, straggler: Straggler) -> Option<Gains> {
        let mut moments = Vec::new();
        trace.sorted_row(round, &mut moments);
        let participants = moments.len();
        let parts = if straggler.counts_parts() { trace.micro_batches() } else { 1 };
        if parts > 1 {
            let workers = 0..trace.workers().len();
            let ends = workers.filter_map(|worker| trace.micro_ends(round, worker));
            moments = ends.flatten().copied().collect();
            moments.sort_unstable_by(f64::total_cmp);
        }
        let each = 1.0 / parts as f64;
        (participants > 0).then_some(Gains { participants, moments, each })
    }

    /// A cut after `seconds`.
    pub(super) fn cut(&self, seconds: f64) -> Cut {
        let done = self.moments.partition_point(|&moment| moment <= seconds + TICK);
        Cut { accepted: done as f64 * self.each, seconds }
    }

    /// The cut of the greatest value.
    pub(super) fn best(&self, oracle_rate: f64) -> Cut {
        let cuts = self
            .moments
            .iter()
            .enumerate()
            .map(|(before, &seconds)| Cut { accepted: (before + 1) as f64 * self.each, seconds });
        let best = cuts.max_by(|a, b| a.value(oracle_rate).total_cmp(&b.value(oracle_rate)));
        best.expect("a worker takes part")
    }
}
