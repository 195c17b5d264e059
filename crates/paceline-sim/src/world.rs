//! Sources of a replay's run-times: recorded traces and generated clusters.

use paceline_core::WorkerId;
use paceline_trace::{Cell, RoundSource, Trace, Unit};
use rand::{SeedableRng, rngs::ChaCha8Rng, seq::SliceRandom};

/// Run-times, round by round.
pub trait World {
    /// The largest number of workers.
    fn workers(&self) -> usize;

    /// Advances to the next round; the last took `seconds` from opening to opening.
    fn next_round(&mut self, seconds: f64);

    /// A worker's run-time in this round, in seconds; `None` if it is absent.
    fn run_time(&self, worker: usize) -> Option<f64>;

    /// When a worker finishes each of its micro-batches, in seconds, if known.
    fn micro_ends(&self, worker: usize) -> Option<&[f64]>;

    /// Micro-batches per worker and round.
    fn micro_batches(&self) -> usize;
}

/// The workers that join (true) and leave (false) with the world's current round, given the `live`
/// ones.
pub fn comings_and_goings(
    world: &dyn World,
    live: impl Iterator<Item = WorkerId>,
) -> Vec<(WorkerId, bool)> {
    let mut live = live.peekable();
    let workers = (0..world.workers() as u32).map(WorkerId);
    let change = |worker: WorkerId| {
        let was = live.next_if_eq(&worker).is_some();
        let is = world.run_time(worker.0 as usize).is_some();
        (was != is).then_some((worker, is))
    };
    workers.filter_map(change).collect()
}

/// A recorded trace. A run-time belongs to its round, however long the previous round took.
#[derive(Debug, Clone)]
pub struct Recorded<'a> {
    trace: &'a Trace,
    /// The trace's round to begin with; the others follow, circularly.
    start: usize,
    /// `order[i]`: the trace's worker that is worker i here.
    order: Vec<usize>,
    /// Rounds replayed, including the current one.
    passed: usize,
}

impl<'a> Recorded<'a> {
    /// The trace under a seed: 0 leaves the trace unchanged; others begin at another round and
    /// number the workers in another order.
    pub fn new(trace: &'a Trace, seed: u64) -> Recorded<'a> {
        let mut order: Vec<usize> = (0..trace.workers().len()).collect();
        let mut start = 0;
        if seed > 0 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut rounds: Vec<usize> = (0..trace.rounds()).collect();
            rounds.shuffle(&mut rng);
            start = rounds.first().copied().unwrap_or(0);
            order.shuffle(&mut rng);
        }
        Recorded { trace, start, order, passed: 0 }
    }

    /// The trace's round that the replay begins with.
    pub fn start(&self) -> usize {
        self.start
    }

    fn row(&self) -> usize {
        (self.start + self.passed.max(1) - 1) % self.trace.rounds()
    }
}

impl World for Recorded<'_> {
    fn workers(&self) -> usize {
        self.order.len()
    }

    fn next_round(&mut self, _seconds: f64) {
        self.passed += 1;
    }

    fn run_time(&self, worker: usize) -> Option<f64> {
        self.trace.cell(self.row(), self.order[worker]).bound()
    }

    fn micro_ends(&self, worker: usize) -> Option<&[f64]> {
        self.trace.micro_ends(self.row(), self.order[worker])
    }

    fn micro_batches(&self) -> usize {
        self.trace.micro_batches()
    }
}

/// A generated cluster, whose phases may follow the clock, so that run-times depend on how long
/// earlier rounds took. Records what it draws as a trace.
pub struct Drawn<S> {
    source: S,
    row: Vec<f64>,
    drawn: Trace,
}

impl<S: RoundSource> Drawn<S> {
    /// A world that draws its rounds from `source`.
    pub fn new(name: &str, source: S) -> Drawn<S> {
        let n = source.workers();
        Drawn { row: vec![f64::NAN; n], drawn: Trace::of_size(name, Unit::Relative, n), source }
    }

    /// The rounds drawn so far.
    pub fn into_trace(self) -> Trace {
        self.drawn
    }
}

impl<S: RoundSource> World for Drawn<S> {
    fn workers(&self) -> usize {
        self.row.len()
    }

    fn next_round(&mut self, seconds: f64) {
        let elapsed = seconds / self.source.undisturbed_mean();
        self.source.next_round(elapsed, &mut self.row);
        let cell = |&x: &f64| if x.is_nan() { Cell::Absent } else { Cell::Observed(x) };
        self.drawn.push_round(self.row.iter().map(cell));
    }

    fn run_time(&self, worker: usize) -> Option<f64> {
        Some(self.row[worker]).filter(|x| !x.is_nan())
    }

    fn micro_ends(&self, _worker: usize) -> Option<&[f64]> {
        None
    }

    fn micro_batches(&self) -> usize {
        1
    }
}
