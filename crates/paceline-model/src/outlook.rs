//! The prediction of the next round, and its update as workers arrive or stay silent.
//!
//! Given the factors (the cluster's and each group's), workers are independent. So the joint prediction
//! is a distribution over each factor and a mixture for each worker about them. Factors share one
//! lattice: arrivals and silence weigh its cells by their likelihood, which depends only on the sum of a
//! worker's two factors. That is workers × cells of arithmetic, then one short convolution per group;
//! nothing is drawn at random.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use crate::{
    factor::{Factor, Lattice},
    kernel::{Evidence, LANES, LogisticMixture, ShiftCase, judge, survive},
    math::{exp, ln},
    mixture::{PARTS, WIDTH, quantile, shares},
    nets::{Emission, Nets},
    state::ModelState,
    tape::Tape,
};

/// Most members that a group's factor is inferred from; of more, every k-th.
const JUDGES: usize = 12;
/// Most workers without a group that the cluster's factor is inferred from.
const LOOSE_JUDGES: usize = 48;
/// Least log likelihood of one worker, which bounds its influence.
const LOUDEST: f32 = -12.0;
/// Most cases per group.
const CASES: usize = 4;
/// Shifts closer than this (in units of the cluster's spread) are merged.
const MERGE: f32 = 0.5;

/// The prediction for one worker, relative to the shift of its group: a mixture of three logistics.
#[derive(Debug, Clone, Copy)]
struct WorkerMixture {
    parts: LogisticMixture,
    group: usize,
    judge: bool,
}

/// A group, or the workers without a group.
#[derive(Debug, Clone)]
struct GroupOutlook {
    factor: Factor,
    /// Total shift of its workers per cell, in log time, and the narrowing of their spread.
    shifts: Vec<f32>,
    narrower: Vec<f32>,
    /// Log likelihoods over the cells: of arrivals, and of all workers.
    arrived: Vec<f32>,
    seen: Vec<f32>,
    cases: Vec<ShiftCase>,
}

/// The prediction of a round.
#[derive(Debug, Clone, Default)]
pub struct Outlook {
    workers: Vec<WorkerMixture>,
    groups: Vec<GroupOutlook>,
    cluster: Factor,
    step: Lattice,
    /// Arrivals that have been processed, with log run-times.
    taken_in: Vec<(u32, f32)>,
    /// Whether silence counts in the current cases.
    silence: bool,
}

impl Outlook {
    /// The prediction that follows from a state.
    pub(crate) fn from_state(state: &ModelState, nets: &Nets, tape: &mut Tape) -> Outlook {
        let unit = state.standing.unit;
        let memory = tape.leaf(state.standing.workers(), crate::weights::MEMORY, &state.memory);
        let emission = state.emission(tape, nets, memory, None);
        let (cluster, groups) = state.priors(tape, nets);
        let step = Lattice::covering(&cluster, &groups, unit);
        let cluster = Factor::from_mixture(&cluster, &step);
        let factors = groups.chunks_exact(WIDTH).map(|params| Factor::from_mixture(params, &step));
        let groups: Vec<GroupOutlook> = factors
            .chain([Factor::none()])
            .map(|factor| GroupOutlook::new(factor, &cluster, &step, nets, tape))
            .collect();
        let mut outlook = Outlook { groups, cluster, step, ..Outlook::default() };
        outlook.workers = outlook.read_workers(state, tape, &emission);
        outlook.expect();
        outlook
    }

    fn read_workers(
        &self,
        state: &ModelState,
        tape: &Tape,
        emission: &Emission,
    ) -> Vec<WorkerMixture> {
        let mut counts = vec![0usize; self.groups.len()];
        let loose = self.groups.len() - 1;
        let group_of = |worker: usize| state.grouping.group_of(worker).unwrap_or(loose);
        (0..state.standing.workers()).for_each(|worker| counts[group_of(worker)] += 1);
        let most = |group: usize| if group == loose { LOOSE_JUDGES } else { JUDGES };
        let strides: Vec<usize> =
            counts.iter().enumerate().map(|(g, n)| n.div_ceil(most(g)).max(1)).collect();
        let mut met = vec![0usize; self.groups.len()];
        let rows = |var| tape.value(var).chunks_exact(PARTS);
        let three = |row: &[f32]| [row[0], row[1], row[2]];
        rows(emission.logits)
            .zip(rows(emission.locations).zip(rows(emission.log_scales)))
            .enumerate()
            .map(|(worker, (logits, (locations, log_scales)))| {
                let group = group_of(worker);
                let turn = met[group].is_multiple_of(strides[group]);
                met[group] += 1;
                let parts = LogisticMixture {
                    shares: shares(logits),
                    locations: three(locations),
                    per_scales: three(log_scales).map(|log| exp(-log)),
                };
                WorkerMixture { parts, group, judge: turn && state.standing.is_seen(worker) }
            })
            .collect()
    }

    /// Whether it predicts all these workers.
    pub(crate) fn covers(&self, workers: &[u32]) -> bool {
        workers.last().is_some_and(|&last| (last as usize) < self.workers.len())
    }

    /// Locations and scales of the cores of these workers.
    pub(crate) fn cores(&self, workers: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let parts = workers.iter().map(|&worker| &self.workers[worker as usize].parts);
        parts.map(|parts| (parts.locations[0], 1.0 / parts.per_scales[0])).unzip()
    }

    /// Resets to the expectation for a round of which nothing has been seen.
    pub fn expect(&mut self) {
        self.taken_in.clear();
        self.silence = false;
        for group in &mut self.groups {
            group.arrived.fill(0.0);
            group.seen.fill(0.0);
        }
        self.weigh();
    }

    /// Conditions on arrivals (with log run-times) and on silent workers (with the log of their
    /// silence).
    pub fn look(
        &mut self,
        arrived: impl Iterator<Item = (u32, f32)>,
        silent: impl Iterator<Item = (u32, f32)>,
    ) {
        self.take_arrivals(arrived);
        for group in &mut self.groups {
            group.seen.copy_from_slice(&group.arrived);
        }
        for (worker, y) in silent {
            self.take(worker, y, false);
        }
        self.silence = true;
        self.weigh();
    }

    /// Discards conclusions from silence. Returns whether that may change anything.
    pub fn doubt(&mut self) -> bool {
        if !std::mem::take(&mut self.silence) {
            return false;
        }
        let before: Vec<(f32, f32)> = self.groups.iter().map(GroupOutlook::expected).collect();
        for group in &mut self.groups {
            group.seen.copy_from_slice(&group.arrived);
        }
        self.weigh();
        let close = 0.02 * self.step.unit;
        let moved = |(group, before): (&GroupOutlook, (f32, f32))| {
            let now = group.expected();
            (now.0 - before.0).abs() > close || (now.1 - before.1).abs() > close
        };
        self.groups.iter().zip(before).any(moved)
    }

    /// Processes the arrivals since the last call; from the beginning, if the round or the order is
    /// another.
    fn take_arrivals(&mut self, arrived: impl Iterator<Item = (u32, f32)>) {
        let mut count = 0;
        for one in arrived {
            if self.taken_in.get(count) != Some(&one) {
                self.keep(count);
                self.taken_in.push(one);
                self.take(one.0, one.1, true);
            }
            count += 1;
        }
        self.keep(count);
    }

    /// Keeps only the first `count` arrivals.
    fn keep(&mut self, count: usize) {
        if self.taken_in.len() <= count {
            return;
        }
        self.taken_in.truncate(count);
        self.groups.iter_mut().for_each(|group| group.arrived.fill(0.0));
        for (worker, y) in self.taken_in.clone() {
            self.take(worker, y, true);
        }
    }

    fn take(&mut self, worker: u32, y: f32, arrived: bool) {
        let Some(worker) = self.workers.get(worker as usize).filter(|worker| worker.judge) else {
            return;
        };
        let GroupOutlook { shifts, narrower, arrived: known, seen, .. } =
            &mut self.groups[worker.group];
        let into = if arrived { known } else { seen };
        judge(&worker.parts, y, arrived, (shifts, narrower), LOUDEST, into);
    }

    /// Weighs the cells of all factors by the evidence, and computes the cases of each group.
    fn weigh(&mut self) {
        let mut cluster: Vec<f32> = self.cluster.mass.iter().map(|&mass| ln(mass)).collect();
        let groups = self.groups.iter();
        let evidence: Vec<Evidence> = groups
            .map(|group| Evidence::weigh(&group.seen, &group.factor.mass, &mut cluster))
            .collect();
        let most = cluster.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        cluster.iter_mut().for_each(|log| *log = exp((*log - most).max(-30.0)));
        let total: f32 = cluster.iter().sum();
        cluster.iter_mut().for_each(|weight| *weight /= total);
        for (group, evidence) in self.groups.iter_mut().zip(evidence) {
            let mut on_cells = vec![0.0; group.seen.len()];
            evidence.spread(&group.factor.mass, &cluster, &mut on_cells);
            group.merge_cells(&on_cells, self.step.merged(MERGE));
        }
    }

    /// The probability that a worker takes longer than e to the power of each of `log_times`
    /// seconds.
    pub fn survival(&self, worker: u32, log_times: &[f64], into: &mut [f64]) {
        let Some(worker) = self.workers.get(worker as usize) else {
            return self.newcomers(log_times, into);
        };
        into.fill(0.0);
        let cases = &self.groups[worker.group].cases;
        worker.survival(log_times, cases, 1.0, into);
    }

    /// Survival of a worker that was never seen: the mean of all others.
    fn newcomers(&self, log_times: &[f64], into: &mut [f64]) {
        let stride = self.workers.len().div_ceil(16).max(1);
        let sample = self.workers.iter().step_by(stride);
        let share = 1.0 / sample.len().max(1) as f64;
        into.fill(if self.workers.is_empty() { 1.0 } else { 0.0 });
        for worker in sample {
            worker.survival(log_times, &self.groups[worker.group].cases, share, into);
        }
    }

    /// A draw of a worker's log run-time beyond a bound; `level` is between 0 and 1.
    pub(crate) fn beyond(&self, worker: u32, bound: f32, level: f32) -> f32 {
        let survival = |y: f32| {
            let mut found = [0.0];
            self.survival(worker, &[f64::from(y)], &mut found);
            found[0] as f32
        };
        let target = survival(bound) * (1.0 - level);
        let (mut from, mut to) = (bound, bound + 8.0);
        for _ in 0..24 {
            let middle = 0.5 * (from + to);
            match survival(middle) > target {
                true => from = middle,
                false => to = middle,
            }
        }
        to
    }

    /// Joint draws of a round of which nothing has been seen: for each, the log run-times of these
    /// workers.
    pub fn draw(&self, workers: &[u32], draws: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..draws)
            .map(|_| {
                let cluster = self.cluster.draw(rng.random(), rng.random());
                let cases: Vec<ShiftCase> = self
                    .groups
                    .iter()
                    .map(|group| {
                        let at = cluster + group.factor.draw(rng.random(), rng.random());
                        let cell = self.step.position(at) - group.from(&self.cluster);
                        // A draw may lie beyond the cells.
                        ShiftCase { shift: at * self.step.unit, ..group.case(cell, 1.0) }
                    })
                    .collect();
                let one = |&worker: &u32| {
                    // A worker that was never seen is drawn like one of the others.
                    let known = worker as usize % self.workers.len().max(1);
                    let worker = self.workers.get(known);
                    let (part, level) = (rng.random(), rng.random());
                    worker.map_or(0.0, |worker| worker.draw(&cases[worker.group], part, level))
                };
                workers.iter().map(one).collect()
            })
            .collect()
    }
}

impl WorkerMixture {
    /// Adds `share` times the survival at each time, over all cases.
    fn survival(&self, log_times: &[f64], cases: &[ShiftCase], share: f64, into: &mut [f64]) {
        for (log_times, into) in log_times.chunks(LANES).zip(into.chunks_mut(LANES)) {
            let (mut moments, mut sums) = ([0.0f32; LANES], [0.0f32; LANES]);
            moments.iter_mut().zip(log_times).for_each(|(moment, &y)| *moment = y as f32);
            survive(&self.parts, cases, &moments, &mut sums);
            into.iter_mut().zip(sums).for_each(|(into, sum)| *into += share * f64::from(sum));
        }
    }

    /// A log run-time in a case, from two numbers between 0 and 1.
    fn draw(&self, case: &ShiftCase, part: f32, level: f32) -> f32 {
        let mut k = 0;
        let mut below = self.parts.shares[0];
        while part > below && k + 1 < PARTS {
            k += 1;
            below += self.parts.shares[k];
        }
        let narrows = if k == PARTS - 1 { 1.0 } else { case.narrower };
        let scale = 1.0 / (self.parts.per_scales[k] * narrows);
        case.shift + quantile(self.parts.locations[k], scale, level)
    }
}

impl GroupOutlook {
    fn new(
        factor: Factor,
        cluster: &Factor,
        step: &Lattice,
        nets: &Nets,
        tape: &mut Tape,
    ) -> GroupOutlook {
        let cells = factor.mass.len() + cluster.mass.len() - 1;
        let from = factor.from + cluster.from;
        let at: Vec<f32> = (0..cells).map(|cell| step.at(from + cell as i32)).collect();
        let mut narrower = vec![1.0; cells];
        if !factor.is_none() {
            let center = cluster.center(step);
            let factors: Vec<f32> = at.iter().map(|at| at - center).collect();
            let factors = tape.column(&factors);
            let wider = nets.spread(tape, factors);
            narrower.iter_mut().zip(tape.value(wider)).for_each(|(n, &wider)| *n = exp(-wider));
        }
        let shifts = at.iter().map(|at| at * step.unit).collect();
        let none = vec![0.0; cells];
        GroupOutlook {
            factor,
            shifts,
            narrower,
            arrived: none.clone(),
            seen: none,
            cases: Vec::new(),
        }
    }

    /// Mean and mean size of the shift.
    fn expected(&self) -> (f32, f32) {
        let sum = |of: fn(f32) -> f32| -> f32 {
            self.cases.iter().map(|case| case.weight * of(case.shift)).sum()
        };
        (sum(|shift| shift), sum(f32::abs))
    }

    /// The first cell of its total shifts.
    fn from(&self, cluster: &Factor) -> f32 {
        (self.factor.from + cluster.from) as f32
    }

    fn case(&self, cell: f32, weight: f32) -> ShiftCase {
        let last = self.shifts.len() - 1;
        let x = cell.clamp(0.0, last as f32);
        let i = (x as usize).min(last.saturating_sub(1));
        let (t, next) = (x - i as f32, (i + 1).min(last));
        let between = |table: &[f32]| table[i] + t * (table[next] - table[i]);
        ShiftCase { shift: between(&self.shifts), narrower: between(&self.narrower), weight }
    }

    /// Reduces the weights on cells to a few cases by merging cells that are close.
    fn merge_cells(&mut self, weights: &[f32], merge: usize) {
        let mut width = merge.max(1);
        loop {
            self.cases.clear();
            let (mut sum, mut at, mut first) = (0.0f32, 0.0f32, 0);
            let mut total = 0.0;
            for (cell, &weight) in weights.iter().enumerate().filter(|(_, w)| **w > 1e-5) {
                if sum > 0.0 && cell - first > width {
                    self.push_case(at, sum, &mut total);
                    (sum, at) = (0.0, 0.0);
                }
                if sum == 0.0 {
                    first = cell;
                }
                sum += weight;
                at += weight * cell as f32;
            }
            self.push_case(at, sum, &mut total);
            if self.cases.len() <= CASES {
                self.cases.iter_mut().for_each(|case| case.weight /= total);
                return;
            }
            width *= 2;
        }
    }

    fn push_case(&mut self, at: f32, sum: f32, total: &mut f32) {
        if sum > 2e-3 {
            *total += sum;
            self.cases.push(self.case(at / sum, sum));
        }
    }
}
