//! The model's state from round to round, and one round's step.

use crate::{
    Outlook, Seen,
    grouping::Grouping,
    inference::{DeviationsByRow, Posterior, RoundInference, prior_moments},
    math::{exp, ln, sigmoid},
    mixture::{PARTS, WIDTH, shares},
    nets::{Emission, FactorNets, Nets},
    standing::{Standing, WorkerResidual},
    tape::{NONE, Tape, Var},
    weights::{COMMON_MEMORY, MEMORY},
};

/// The state after a round, as plain numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelState {
    pub(crate) standing: Standing,
    pub(crate) grouping: Grouping,
    /// Recurrent states, row by row.
    pub(crate) memory: Vec<f32>,
    pub(crate) cluster: Factors,
    pub(crate) groups: Factors,
}

/// The common factors: of the cluster, or one per group. In units of the cluster's spread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Factors {
    pub(crate) memory: Vec<f32>,
    pub(crate) at: Vec<f32>,
    /// The logarithm of their variability, such that half of them fall into the middle half of the
    /// prediction.
    pub(crate) log_size: Vec<f32>,
    /// Their usual value, and their value when away from it.
    pub(crate) home: Vec<f32>,
    pub(crate) away: Vec<f32>,
}

impl Factors {
    fn grow(&mut self, count: usize) {
        self.memory.resize(count * COMMON_MEMORY, 0.0);
        self.at.resize(count, 0.0);
        self.log_size.resize(count, START_SIZE);
        self.home.resize(count, 0.0);
        self.away.resize(count, START_AWAY);
    }

    /// Learns their values, given the mixtures that predicted them.
    fn learn(&mut self, at: &[f32], expected: &[f32]) {
        let rows = at.iter().zip(expected.chunks_exact(WIDTH));
        for (size, (&at, params)) in self.log_size.iter_mut().zip(rows) {
            let outside = (cdf(params, at) - 0.5).abs() > 0.25;
            let step = if outside { SIZE_RATE } else { -SIZE_RATE };
            *size = (*size + step).clamp(-5.0, 3.0);
        }
        for ((home, away), &at) in self.home.iter_mut().zip(&mut self.away).zip(at) {
            match (at - *home).abs() > AWAY {
                true => *away += AWAY_RATE * (at - *away),
                false => *home += HOME_RATE * (at - *home),
            }
            // The usual value may have changed for good.
            *home += (at - *home).clamp(-HOME_RATE * AWAY, HOME_RATE * AWAY) * HOME_RATE;
        }
    }

    /// Reorders the factors after groups changed: for each current group, which it was before.
    fn regroup(&mut self, before: &[Option<usize>]) {
        let old = std::mem::take(self);
        self.grow(before.len());
        for (now, was) in before.iter().enumerate() {
            if let Some(was) = *was {
                (self.at[now], self.log_size[now]) = (old.at[was], old.log_size[was]);
                (self.home[now], self.away[now]) = (old.home[was], old.away[was]);
                let (to, from) = (now * COMMON_MEMORY, was * COMMON_MEMORY);
                self.memory[to..to + COMMON_MEMORY]
                    .copy_from_slice(&old.memory[from..from + COMMON_MEMORY]);
            }
        }
    }
}

/// The share of the cluster's factor beyond [`SETTLED`] that moves into the levels per round: levels of
/// workers that are never seen would follow it for ever.
const SETTLES: f32 = 0.02;
const SETTLED: f32 = 1.0;
/// Largest factor: the lattice of predictions ends there.
const FARTHEST: f32 = 50.0;
/// Initial log variability of a factor, and its rate of change.
const START_SIZE: f32 = -1.2;
const SIZE_RATE: f32 = 0.05;
/// Distance from its usual value at which a factor counts as away; its initial value when away; and
/// the rates at which both values follow.
const AWAY: f32 = 2.0;
const START_AWAY: f32 = 5.0;
const HOME_RATE: f32 = 0.05;
const AWAY_RATE: f32 = 0.2;

/// The state of some rounds on a tape, so that gradients reach back through them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carry {
    memory: Var,
    cluster: FactorVars,
    /// `None` without groups.
    groups: Option<FactorVars>,
}

#[derive(Debug, Clone, Copy)]
struct FactorVars {
    memory: Var,
    at: Var,
}

impl FactorVars {
    fn load(factors: &Factors, tape: &mut Tape) -> FactorVars {
        let rows = factors.at.len();
        let memory = tape.leaf(rows, COMMON_MEMORY, &factors.memory);
        FactorVars { memory, at: tape.column(&factors.at) }
    }

    fn store(self, factors: &mut Factors, tape: &Tape) {
        factors.memory.copy_from_slice(tape.value(self.memory));
        for (at, &found) in factors.at.iter_mut().zip(tape.value(self.at)) {
            *at = found.clamp(-FARTHEST, FARTHEST);
        }
    }
}

/// The result of one round's step.
pub(crate) struct StepOutcome {
    /// The negative evidence lower bound of the round, if requested.
    pub(crate) loss: Option<Var>,
    /// The sum of each worker's common factors, in log time.
    pub(crate) moved: Vec<f32>,
    /// Residuals from levels, in spreads, with the group's factor included: groups are found from them.
    pub(crate) residuals: Vec<(usize, f64)>,
}

/// Options of a step.
pub(crate) struct Mode<'a> {
    /// Standard normal draws for the posterior's samples; `None` uses its means.
    pub(crate) noise: Option<&'a mut dyn FnMut() -> f32>,
    /// The uncut round for the likelihood, if the round shown is cut.
    pub(crate) truth: Option<&'a Seen>,
    /// These weights' prediction of the round, to reuse if no gradients are needed.
    pub(crate) predicted: Option<&'a Outlook>,
}

impl ModelState {
    /// Makes room for the workers of a round; the first round sets levels.
    pub(crate) fn admit(&mut self, seen: &Seen) {
        if seen.workers.is_empty() {
            return;
        }
        if self.standing.is_new() && self.standing.workers() == 0 {
            self.standing.begin(&seen.log_times, &seen.observed);
            self.cluster.grow(1);
        }
        let workers = seen.workers.iter().map(|&w| w as usize + 1).max().unwrap_or(0);
        self.standing.grow(workers);
        self.memory.resize(self.standing.workers() * MEMORY, 0.0);
    }

    pub(crate) fn load(&self, tape: &mut Tape) -> Carry {
        Carry {
            memory: tape.leaf(self.standing.workers(), MEMORY, &self.memory),
            cluster: FactorVars::load(&self.cluster, tape),
            groups: (!self.groups.at.is_empty()).then(|| FactorVars::load(&self.groups, tape)),
        }
    }

    /// Stores the state after `rounds` rounds from a tape.
    pub(crate) fn store(&mut self, carry: &Carry, tape: &Tape, rounds: usize) {
        self.memory.copy_from_slice(tape.value(carry.memory));
        carry.cluster.store(&mut self.cluster, tape);
        // Only the sum of factor and level is ever used. A lasting offset of the cluster's factor
        // moves into the levels, so that the factor does not drift.
        let far = self.cluster.at[0] - self.cluster.at[0].clamp(-SETTLED, SETTLED);
        let settled = far * (1.0 - (1.0 - SETTLES).powi(rounds as i32));
        self.cluster.at[0] -= settled;
        self.cluster.home[0] -= settled;
        self.cluster.away[0] -= settled;
        self.standing.shift(settled * self.standing.unit);
        if let Some(groups) = carry.groups {
            groups.store(&mut self.groups, tape);
        }
    }

    /// The state of every `stride`-th worker, renumbered.
    pub(crate) fn every(&self, stride: usize) -> ModelState {
        ModelState {
            standing: self.standing.every(stride),
            grouping: self.grouping.every(stride),
            memory: self.memory.chunks_exact(MEMORY).step_by(stride).flatten().copied().collect(),
            cluster: self.cluster.clone(),
            groups: self.groups.clone(),
        }
    }

    /// Updates the groups by a round's residuals.
    pub(crate) fn find_groups(&mut self, residuals: &[(usize, f64)]) {
        if let Some(before) = self.grouping.learn(residuals.iter().copied()) {
            self.groups.regroup(&before);
        }
    }

    /// The predicted mixtures of the cluster's factor and of each group's, one per row.
    pub(crate) fn priors(&self, tape: &mut Tape, nets: &Nets) -> (Vec<f32>, Vec<f32>) {
        let carry = self.load(tape);
        let of = |tape: &mut Tape, common: &FactorNets, moving: FactorVars, factors: &Factors| {
            let params = common.transition(tape, moving.at, moving.memory, factors);
            tape.value(params).to_vec()
        };
        let cluster = of(tape, &nets.cluster, carry.cluster, &self.cluster);
        let groups = carry.groups.map(|groups| of(tape, &nets.group, groups, &self.groups));
        (cluster, groups.unwrap_or_default())
    }

    /// The predicted mixtures of these workers, before common factors.
    pub(crate) fn emission(
        &self,
        tape: &mut Tape,
        nets: &Nets,
        memory: Var,
        rows: Option<&[u32]>,
    ) -> Emission {
        let standing = &self.standing;
        match rows {
            None => nets.emission(
                tape,
                memory,
                &standing.level,
                &standing.spread,
                [&standing.last, &standing.late],
            ),
            Some(rows) => {
                let pick = |all: &[f32]| -> Vec<f32> {
                    rows.iter().map(|&row| all[row as usize]).collect()
                };
                let memory = tape.gather(memory, rows);
                let (level, spread) = (pick(&standing.level), pick(&standing.spread));
                let (last, late) = (pick(&standing.last), pick(&standing.late));
                nets.emission(tape, memory, &level, &spread, [&last, &late])
            }
        }
    }

    /// Processes a round: infers the common factors, computes the loss, and advances the state.
    pub(crate) fn step(
        &mut self,
        tape: &mut Tape,
        nets: &Nets,
        carry: &mut Carry,
        seen: &Seen,
        mode: &mut Mode<'_>,
    ) -> StepOutcome {
        let everyone = seen.workers.len() == self.standing.workers();
        let rows = (!everyone).then_some(&seen.workers[..]);
        // A prediction of the round is reused, unless gradients are needed.
        let known = mode.predicted.filter(|known| known.covers(&seen.workers));
        let emission = known.is_none().then(|| self.emission(tape, nets, carry.memory, rows));
        let group_of = self.group_of(&seen.workers);
        let unit = self.standing.unit;
        let mut round =
            RoundInference { seen, unit, tape, locations: Vec::new(), scales: Vec::new() };
        match (known, &emission) {
            (Some(known), _) => (round.locations, round.scales) = known.cores(&seen.workers),
            (None, Some(emission)) => round.read(emission),
            (None, None) => unreachable!("what is not known is computed"),
        }
        let group_prior = carry.groups.map(|groups| {
            let params = nets.group.transition(round.tape, groups.at, groups.memory, &self.groups);
            (params, prior_moments(round.tape.value(params)))
        });
        let expected_of = |group: u32| match &group_prior {
            Some((_, moments)) if group != NONE => moments[group as usize].0,
            _ => 0.0,
        };

        // First the cluster's factor, with groups at their expectation; then the groups', given it.
        let before = carry.cluster;
        let params = nets.cluster.transition(round.tape, before.at, before.memory, &self.cluster);
        let prior = prior_moments(round.tape.value(params));
        let offs: Vec<f32> = group_of.iter().map(|&group| expected_of(group)).collect();
        let located = emission
            .as_ref()
            .filter(|_| mode.truth.is_some())
            .map(|emission| round.located(emission));
        let whole =
            DeviationsByRow { offs: round.offs(|i| offs[i]), rows: vec![0; seen.workers.len()] };
        let cluster = round.infer(&nets.cluster, params, &prior, &whole, located, mode);
        let cluster_at = round.tape.value(cluster.at)[0];
        let groups = group_prior.map(|(params, moments)| {
            let whole =
                DeviationsByRow { offs: round.offs(|_| cluster_at), rows: group_of.clone() };
            let located = located.map(|located| round.beyond(located, &cluster));
            round.infer(&nets.group, params, &moments, &whole, located, mode)
        });

        let n = seen.workers.len();
        let mut factor = round.tape.gather(cluster.at, &vec![0; n]);
        if let Some(groups) = &groups {
            let of_group = round.tape.gather(groups.at, &group_of);
            factor = round.tape.add(factor, of_group);
        }
        let moved_by = round.tape.scale(factor, unit);
        let learned = mode.truth.zip(emission.as_ref());
        let loss = learned.map(|(truth, emission)| {
            let wider = groups.as_ref().map(|groups| {
                let wider = nets.spread(round.tape, groups.at);
                round.tape.gather(wider, &group_of)
            });
            let likelihood = round.likelihood(emission, moved_by, wider, truth);
            let mut loss = round.tape.scale(likelihood, -1.0);
            let of_groups = groups.as_ref().map(|groups| groups.divergence);
            for divergence in [Some(cluster.divergence), of_groups].into_iter().flatten() {
                loss = round.tape.add(loss, divergence);
            }
            loss
        });

        // Levels follow the posterior mean, not a draw.
        let cluster_moved = cluster.mean[0] * unit;
        let of_group = |group: u32| groups.as_ref().map_or(0.0, |g| unit * g.mean[group as usize]);
        let moved: Vec<f32> = group_of
            .iter()
            .map(|&group| cluster_moved + if group == NONE { 0.0 } else { of_group(group) })
            .collect();
        let locations = round.locations;
        self.cluster.learn(&cluster.mean, tape.value(cluster.prior));
        carry.cluster = remember(tape, &nets.cluster, carry.cluster, &cluster);
        if let (Some(before), Some(now)) = (carry.groups, &groups) {
            self.groups.learn(&now.mean, tape.value(now.prior));
            carry.groups = Some(remember(tape, &nets.group, before, now));
        }
        let residuals = self.learn(seen, &locations, &moved);
        let signs = self.signs(seen, &residuals);
        let signs = tape.leaf(n, crate::weights::SIGNS, &signs);
        carry.memory = remember_workers(tape, nets, carry.memory, signs, rows);
        let without_group = residuals.iter().zip(&moved).map(|(&(worker, residual), &moved)| {
            let group = (moved - cluster_moved) / self.standing.spread[worker];
            (worker, f64::from(residual.from_level + group))
        });
        let residuals = without_group.collect();
        StepOutcome { loss, moved, residuals }
    }

    /// The group of each of these workers.
    fn group_of(&self, workers: &[u32]) -> Vec<u32> {
        let of = |worker: usize| self.grouping.group_of(worker).map_or(NONE, |group| group as u32);
        workers.iter().map(|&worker| of(worker as usize)).collect()
    }

    /// Updates levels and spreads.
    fn learn(
        &mut self,
        seen: &Seen,
        locations: &[f32],
        moved: &[f32],
    ) -> Vec<(usize, WorkerResidual)> {
        let mut residuals = Vec::with_capacity(seen.workers.len());
        for (i, &worker) in seen.workers.iter().enumerate() {
            let (worker, y) = (worker as usize, seen.log_times[i] - moved[i]);
            let residual = self.standing.residual(worker, y, locations[i], seen.observed[i]);
            self.standing.learn(worker, y, residual);
            residuals.push((worker, residual));
        }
        self.standing.end_round(&residuals);
        residuals
    }

    /// The inputs of the workers' recurrent units.
    fn signs(&self, seen: &Seen, residuals: &[(usize, WorkerResidual)]) -> Vec<f32> {
        use crate::math::squash;
        let mut signs = Vec::with_capacity(seen.workers.len() * crate::weights::SIGNS);
        for &(worker, residual) in residuals {
            let observed = f32::from(u8::from(residual.observed));
            signs.extend([
                squash(residual.surprise),
                squash(self.standing.last[worker]),
                squash(self.standing.late[worker]),
                observed,
                1.0 - observed,
            ]);
        }
        signs
    }
}

/// The recurrent state of common factors after a round.
fn remember(
    tape: &mut Tape,
    common: &FactorNets,
    before: FactorVars,
    now: &Posterior,
) -> FactorVars {
    let expected = tape.column(&now.expected);
    let surprise = tape.sub(now.at, expected);
    let surprise = tape.scale(surprise, 0.5);
    let surprise = tape.tanh(surprise);
    let at = tape.scale(now.at, 0.25);
    let at = tape.tanh(at);
    let counts: Vec<f32> = now
        .counts
        .iter()
        .flat_map(|(seen, all)| [0.25 * ln(1.0 + seen), seen / all.max(1.0)])
        .collect();
    let counts = tape.leaf(now.counts.len(), 2, &counts);
    let signs = tape.concat(&[at, surprise, counts]);
    FactorVars { memory: common.recurrent.step(tape, signs, before.memory), at: now.at }
}

/// The recurrent states of workers after a round in which these took part (`None`: all).
fn remember_workers(
    tape: &mut Tape,
    nets: &Nets,
    memory: Var,
    signs: Var,
    rows: Option<&[u32]>,
) -> Var {
    let Some(rows) = rows else { return nets.worker.step(tape, signs, memory) };
    let before = tape.gather(memory, rows);
    let next = nets.worker.step(tape, signs, before);
    tape.replace(memory, next, rows)
}

/// The probability of less than `at` under a mixture.
fn cdf(params: &[f32], at: f32) -> f32 {
    let shares = shares(&params[..PARTS]);
    (0..PARTS)
        .map(|k| shares[k] * sigmoid((at - params[PARTS + k]) * exp(-params[2 * PARTS + k])))
        .sum()
}
