//! Traces of run-times in memory.

/// The run-time of one worker in one round, as far as known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell {
    /// The worker was absent, or failed.
    Absent,
    /// The run-time.
    Observed(f64),
    /// A lower bound of the run-time.
    Censored(f64),
}

impl Cell {
    /// The run-time or its lower bound.
    pub fn bound(self) -> Option<f64> {
        match self {
            Cell::Absent => None,
            Cell::Observed(x) | Cell::Censored(x) => Some(x),
        }
    }

    /// The cell with its time multiplied by `factor`.
    pub fn scaled(self, by: f64) -> Cell {
        match self {
            Cell::Absent => Cell::Absent,
            Cell::Observed(x) => Cell::Observed(by * x),
            Cell::Censored(x) => Cell::Censored(by * x),
        }
    }

    /// As a number: NaN is absent, a negative one a lower bound.
    pub(crate) fn pack(self) -> f64 {
        match self {
            Cell::Absent => f64::NAN,
            Cell::Observed(x) => x,
            Cell::Censored(x) => -x,
        }
    }

    fn unpack(packed: f64) -> Cell {
        if packed.is_nan() {
            Cell::Absent
        } else if packed < 0.0 {
            Cell::Censored(-packed)
        } else {
            Cell::Observed(packed)
        }
    }
}

/// The unit of run-times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// Seconds.
    #[default]
    Seconds,
    /// Multiples of an unknown time: rates compare, but hours are unknown.
    Relative,
}

/// End of each of a worker's micro-batches, since the start of the round.
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatches {
    per_round: usize,
    ends: Vec<f64>,
}

/// Run-times of workers over rounds.
#[derive(Debug, Clone)]
pub struct Trace {
    name: String,
    unit: Unit,
    workers: Vec<String>,
    /// Cells round by round. NaN is absent, a negative number a lower bound.
    cells: Vec<f64>,
    micro: Option<MicroBatches>,
    waits_included: bool,
}

impl Trace {
    /// An empty trace of these workers; rounds are pushed.
    pub fn new(name: impl Into<String>, unit: Unit, workers: Vec<String>) -> Trace {
        assert!(!workers.is_empty(), "a trace has workers");
        Trace {
            name: name.into(),
            unit,
            workers,
            cells: Vec::new(),
            micro: None,
            waits_included: false,
        }
    }

    /// An empty trace of `n` workers called by their numbers.
    pub fn of_size(name: impl Into<String>, unit: Unit, n: usize) -> Trace {
        Trace::new(name, unit, (0..n).map(|i| i.to_string()).collect())
    }

    /// A trace of packed cells, round by round.
    pub(crate) fn of_packed(name: &str, workers: Vec<String>, cells: Vec<f64>) -> Trace {
        assert!(cells.len().is_multiple_of(workers.len()), "one cell a worker in each round");
        Trace { cells, ..Trace::new(name, Unit::Seconds, workers) }
    }

    /// Adds a round.
    ///
    /// # Panics
    /// If it is not one cell per worker, or a run-time is not positive and finite.
    pub fn push_round(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let before = self.cells.len();
        self.cells.extend(cells.into_iter().map(|cell| {
            if let Some(x) = cell.bound() {
                assert!(x > 0.0 && x.is_finite(), "a run-time is positive and finite, not {x}");
            }
            cell.pack()
        }));
        assert_eq!(self.cells.len() - before, self.workers.len(), "one cell a worker");
    }

    /// Adds a round whose workers finish their micro-batches at these moments (worker by worker,
    /// ascending); the last is the run-time.
    ///
    /// # Panics
    /// If it is not `per_round` moments per worker, the same in every round.
    pub fn push_micro_round(&mut self, per_round: usize, ends: &[f64]) {
        assert_eq!(ends.len(), self.workers.len() * per_round, "so many moments a worker");
        let rounds = self.rounds();
        let micro = self.micro.get_or_insert(MicroBatches { per_round, ends: Vec::new() });
        assert!(micro.per_round == per_round && micro.ends.len() == rounds * ends.len());
        micro.ends.extend_from_slice(ends);
        self.push_round(ends.chunks_exact(per_round).map(|worker| {
            assert!(worker.is_sorted(), "micro-batches finish in turn");
            Cell::Observed(worker[per_round - 1])
        }));
    }

    /// Its name: a file's stem, a preset's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same trace under another name.
    pub fn named(mut self, name: impl Into<String>) -> Trace {
        self.name = name.into();
        self
    }

    /// The unit of its run-times.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The same numbers, in this unit.
    pub fn in_unit(mut self, unit: Unit) -> Trace {
        self.unit = unit;
        self
    }

    /// Whether run-times include waits for other workers, which the recorder could not tell apart. All
    /// workers then seem to take as long as the slowest.
    pub fn waits_included(&self) -> bool {
        self.waits_included
    }

    /// The same trace, with run-times that include waits for other workers, or not.
    pub fn with_waits(mut self, included: bool) -> Trace {
        self.waits_included = included;
        self
    }

    /// Workers' names.
    pub fn workers(&self) -> &[String] {
        &self.workers
    }

    /// The number of rounds.
    pub fn rounds(&self) -> usize {
        self.cells.len() / self.workers.len()
    }

    /// These rounds alone.
    ///
    /// # Panics
    /// If the trace does not have these rounds.
    pub fn slice(&self, rounds: std::ops::Range<usize>) -> Trace {
        let n = self.workers.len();
        let micro = self.micro.as_ref().map(|micro| MicroBatches {
            per_round: micro.per_round,
            ends: micro.ends[rounds.start * n * micro.per_round..rounds.end * n * micro.per_round]
                .to_vec(),
        });
        let cells = self.cells[rounds.start * n..rounds.end * n].to_vec();
        let (name, workers) = (self.name.clone(), self.workers.clone());
        Trace { name, unit: self.unit, workers, cells, micro, waits_included: self.waits_included }
    }

    /// One cell.
    pub fn cell(&self, round: usize, worker: usize) -> Cell {
        Cell::unpack(self.cells[round * self.workers.len() + worker])
    }

    /// One round, in worker order.
    pub fn row(&self, round: usize) -> impl ExactSizeIterator<Item = Cell> + '_ {
        let n = self.workers.len();
        self.cells[round * n..][..n].iter().map(|&packed| Cell::unpack(packed))
    }

    /// Writes the run-times of a round (lower bounds included), ascending, into `sorted`.
    pub fn sorted_row(&self, round: usize, sorted: &mut Vec<f64>) {
        sorted.clear();
        sorted.extend(self.row(round).filter_map(Cell::bound));
        sorted.sort_unstable_by(f64::total_cmp);
    }

    /// Micro-batches per worker and round; 1 if the trace has none.
    pub fn micro_batches(&self) -> usize {
        self.micro.as_ref().map_or(1, |micro| micro.per_round)
    }

    /// When a worker finished each of its micro-batches, if the trace has them.
    pub fn micro_ends(&self, round: usize, worker: usize) -> Option<&[f64]> {
        let micro = self.micro.as_ref()?;
        let at = (round * self.workers.len() + worker) * micro.per_round;
        Some(&micro.ends[at..at + micro.per_round])
    }

    /// The median of all run-times, lower bounds included.
    pub fn median(&self) -> f64 {
        let mut all: Vec<f64> =
            self.cells.iter().filter(|x| !x.is_nan()).map(|x| x.abs()).collect();
        if all.is_empty() {
            return 0.0;
        }
        let middle = all.len() / 2;
        *all.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    /// The share of cells that are only lower bounds.
    pub fn censored_share(&self) -> f64 {
        let (mut there, mut censored) = (0u64, 0u64);
        for x in &self.cells {
            there += u64::from(!x.is_nan());
            censored += u64::from(*x < 0.0);
        }
        censored as f64 / there.max(1) as f64
    }
}

impl PartialEq for Trace {
    /// Absent equals absent, which NaN would not.
    fn eq(&self, other: &Trace) -> bool {
        let Trace { name, unit, workers, cells, micro, waits_included } = self;
        let same = |(a, b): (&f64, &f64)| Cell::unpack(*a) == Cell::unpack(*b);
        (name, unit, workers, micro) == (&other.name, &other.unit, &other.workers, &other.micro)
            && *waits_included == other.waits_included
            && cells.len() == other.cells.len()
            && cells.iter().zip(&other.cells).all(same)
    }
}
