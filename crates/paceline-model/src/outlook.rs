//! What is expected of the next round, and what it comes to as workers arrive or stay silent.
//!
//! Given what moves many at once (the cluster's factor and each group's), workers are independent.
//! So the joint prediction is a distribution over each factor and a mixture for each worker about
//! them. Factors live on one lattice: arrivals and silence weigh its cells by their likelihood,
//! which depends only on the sum of a worker's two factors. That is workers × cells of arithmetic,
//! then one short convolution for each group; nothing is drawn at random.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use crate::{
    factor::{Factor, Step},
    kernel::{Case, Evidence, LANES, Parts, judge, survive},
    math::{exp, ln},
    mixture::{PARTS, WIDTH, quantile, shares},
    nets::{Emission, Nets},
    state::State,
    tape::Tape,
};

/// The most workers that a group's factor is judged by; of more, every k-th.
const JUDGES: usize = 12;
/// The most workers in no group that the cluster's is judged by.
const LOOSE_JUDGES: usize = 48;
/// One worker says no more than this against a shift.
const LOUDEST: f32 = -12.0;
/// The most cases that a group's workers are told apart by.
const CASES: usize = 4;
/// Shifts closer than this (in units of the cluster's spread) are told apart by nobody.
const MERGE: f32 = 0.5;

/// What is expected of one worker about the shift of its group: a mixture of three logistics.
#[derive(Debug, Clone, Copy)]
struct Worker {
    parts: Parts,
    group: usize,
    judge: bool,
}

/// A group, or the workers that are in none.
#[derive(Debug, Clone)]
struct Group {
    factor: Factor,
    /// Total shifts of its workers, in log time, cell by cell, and how much they narrow.
    shifts: Vec<f32>,
    narrower: Vec<f32>,
    /// Log likelihoods over the cells: of those who arrived, and of all.
    arrived: Vec<f32>,
    seen: Vec<f32>,
    cases: Vec<Case>,
}

/// The prediction of a round.
#[derive(Debug, Clone, Default)]
pub struct Outlook {
    workers: Vec<Worker>,
    groups: Vec<Group>,
    cluster: Factor,
    step: Step,
    /// Who has arrived and when, as far as it has been taken in.
    taken_in: Vec<(u32, f32)>,
    /// Whether silence counts in the present cases.
    silence: bool,
}

impl Outlook {
    /// What a state leads to expect.
    pub(crate) fn of(state: &State, nets: &Nets, tape: &mut Tape) -> Outlook {
        let unit = state.standing.unit;
        let memory = tape.leaf(state.standing.workers(), crate::weights::MEMORY, &state.memory);
        let emission = state.emission(tape, nets, memory, None);
        let (cluster, groups) = state.priors(tape, nets);
        let step = Step::of(&cluster, &groups, unit);
        let cluster = Factor::of(&cluster, &step);
        let factors = groups.chunks_exact(WIDTH).map(|params| Factor::of(params, &step));
        let groups: Vec<Group> = factors
            .chain([Factor::none()])
            .map(|factor| Group::new(factor, &cluster, &step, nets, tape))
            .collect();
        let mut outlook = Outlook { groups, cluster, step, ..Outlook::default() };
        outlook.workers = outlook.read_workers(state, tape, &emission);
        outlook.expect();
        outlook
    }

    fn read_workers(&self, state: &State, tape: &Tape, emission: &Emission) -> Vec<Worker> {
        let mut counts = vec![0usize; self.groups.len()];
        let loose = self.groups.len() - 1;
        let group_of = |worker: usize| state.grouping.of(worker).unwrap_or(loose);
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
                let parts = Parts {
                    shares: shares(logits),
                    locations: three(locations),
                    per_scales: three(log_scales).map(|log| exp(-log)),
                };
                Worker { parts, group, judge: turn && state.standing.is_seen(worker) }
            })
            .collect()
    }

    /// Whether it says something of all these workers.
    pub(crate) fn covers(&self, workers: &[u32]) -> bool {
        workers.last().is_some_and(|&last| (last as usize) < self.workers.len())
    }

    /// Locations and scales of the cores of these workers.
    pub(crate) fn cores(&self, workers: &[u32]) -> (Vec<f32>, Vec<f32>) {
        let parts = workers.iter().map(|&worker| &self.workers[worker as usize].parts);
        parts.map(|parts| (parts.locations[0], 1.0 / parts.per_scales[0])).unzip()
    }

    /// Goes back to what is expected of a round of which nothing has been seen.
    pub fn expect(&mut self) {
        self.taken_in.clear();
        self.silence = false;
        for group in &mut self.groups {
            group.arrived.fill(0.0);
            group.seen.fill(0.0);
        }
        self.weigh();
    }

    /// Takes in who arrived (with log run-times) and who is silent (since when, as a logarithm).
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

    /// Takes back what was concluded from silence. Says whether that may change anything.
    pub fn doubt(&mut self) -> bool {
        if !std::mem::take(&mut self.silence) {
            return false;
        }
        let before: Vec<(f32, f32)> = self.groups.iter().map(Group::expected).collect();
        for group in &mut self.groups {
            group.seen.copy_from_slice(&group.arrived);
        }
        self.weigh();
        let close = 0.02 * self.step.unit;
        let moved = |(group, before): (&Group, (f32, f32))| {
            let now = group.expected();
            (now.0 - before.0).abs() > close || (now.1 - before.1).abs() > close
        };
        self.groups.iter().zip(before).any(moved)
    }

    /// Those who arrived since it was last looked; if it is another round, or another order, from
    /// the beginning.
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

    /// Keeps only the first so many arrivals.
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
        let Group { shifts, narrower, arrived: known, seen, .. } = &mut self.groups[worker.group];
        let into = if arrived { known } else { seen };
        judge(&worker.parts, y, arrived, (shifts, narrower), LOUDEST, into);
    }

    /// Weighs the cells of all factors by what was seen, and makes the cases of each group.
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
            group.settle(&on_cells, self.step.merged(MERGE));
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

    /// Of a worker nobody has seen: what all the others do.
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

    /// Joint draws of the round before anything of it is seen: for each, the log run-times of these
    /// workers.
    pub fn draw(&self, workers: &[u32], draws: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..draws)
            .map(|_| {
                let cluster = self.cluster.draw(rng.random(), rng.random());
                let cases: Vec<Case> = self
                    .groups
                    .iter()
                    .map(|group| {
                        let at = cluster + group.factor.draw(rng.random(), rng.random());
                        let cell = self.step.position(at) - group.from(&self.cluster);
                        // A draw may lie beyond the cells.
                        Case { shift: at * self.step.unit, ..group.case(cell, 1.0) }
                    })
                    .collect();
                let one = |&worker: &u32| {
                    // Whoever nobody has seen is like one of the others.
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

impl Worker {
    /// Adds the chances of more than each time, in all cases, `share` of them.
    fn survival(&self, log_times: &[f64], cases: &[Case], share: f64, into: &mut [f64]) {
        for (log_times, into) in log_times.chunks(LANES).zip(into.chunks_mut(LANES)) {
            let (mut moments, mut sums) = ([0.0f32; LANES], [0.0f32; LANES]);
            moments.iter_mut().zip(log_times).for_each(|(moment, &y)| *moment = y as f32);
            survive(&self.parts, cases, &moments, &mut sums);
            into.iter_mut().zip(sums).for_each(|(into, sum)| *into += share * f64::from(sum));
        }
    }

    /// A log run-time in a case, from two numbers between 0 and 1.
    fn draw(&self, case: &Case, part: f32, level: f32) -> f32 {
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

impl Group {
    fn new(factor: Factor, cluster: &Factor, step: &Step, nets: &Nets, tape: &mut Tape) -> Group {
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
        Group { factor, shifts, narrower, arrived: none.clone(), seen: none, cases: Vec::new() }
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

    fn case(&self, cell: f32, weight: f32) -> Case {
        let last = self.shifts.len() - 1;
        let x = cell.clamp(0.0, last as f32);
        let i = (x as usize).min(last.saturating_sub(1));
        let (t, next) = (x - i as f32, (i + 1).min(last));
        let between = |table: &[f32]| table[i] + t * (table[next] - table[i]);
        Case { shift: between(&self.shifts), narrower: between(&self.narrower), weight }
    }

    /// The few cases that weights on cells come to: what lies close together is one.
    fn settle(&mut self, weights: &[f32], merge: usize) {
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
