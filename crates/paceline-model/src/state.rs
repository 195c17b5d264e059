//! What the model carries from round to round, and one round of it.

use crate::{
    Outlook, Seen,
    grouping::Grouping,
    inference::{Posterior, RoundOf, Whole, prior_moments},
    math::{exp, ln, sigmoid},
    mixture::{PARTS, WIDTH, shares},
    nets::{Common, Emission, Nets},
    standing::{Residual, Standing},
    tape::{NONE, Tape, Var},
    weights::{COMMON_MEMORY, MEMORY},
};

/// Everything that is known after a round, as plain numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) standing: Standing,
    pub(crate) grouping: Grouping,
    /// Recurrent states, row by row.
    pub(crate) memory: Vec<f32>,
    pub(crate) cluster: Factors,
    pub(crate) groups: Factors,
}

/// The factors of what moves many at once: one for the cluster, one for each group. In units of
/// the cluster's spread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Factors {
    pub(crate) memory: Vec<f32>,
    pub(crate) at: Vec<f32>,
    /// The logarithm of how much they vary: as much as makes half of them fall into the middle half
    /// of what is expected.
    pub(crate) log_size: Vec<f32>,
    /// Where they usually are, and where they were when they were not there.
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

    /// Takes in where they were, against the mixtures where they had been expected.
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
            // It may have moved for good.
            *home += (at - *home).clamp(-HOME_RATE * AWAY, HOME_RATE * AWAY) * HOME_RATE;
        }
    }

    /// The same after groups changed: for each now, which it was before.
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

/// The share of the cluster's factor that becomes part of the levels, a round, of what is beyond
/// this: levels of workers that are never seen would follow it for ever.
const SETTLES: f32 = 0.02;
const SETTLED: f32 = 1.0;
/// A factor is never farther out than this: the lattice of predictions ends there.
const FARTHEST: f32 = 50.0;
/// How much a factor varies before anything is known (log), and how fast that follows.
const START_SIZE: f32 = -1.2;
const SIZE_RATE: f32 = 0.05;
/// A factor so far from where it usually is is away; how far that is before anything is known, and
/// how fast both places follow.
const AWAY: f32 = 2.0;
const START_AWAY: f32 = 5.0;
const HOME_RATE: f32 = 0.05;
const AWAY_RATE: f32 = 0.2;

/// The state of some rounds on a tape, so that gradients reach back through them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carry {
    memory: Var,
    cluster: Moving,
    /// None where there are no groups.
    groups: Option<Moving>,
}

#[derive(Debug, Clone, Copy)]
struct Moving {
    memory: Var,
    at: Var,
}

impl Moving {
    fn load(factors: &Factors, tape: &mut Tape) -> Moving {
        let rows = factors.at.len();
        let memory = tape.leaf(rows, COMMON_MEMORY, &factors.memory);
        Moving { memory, at: tape.column(&factors.at) }
    }

    fn store(self, factors: &mut Factors, tape: &Tape) {
        factors.memory.copy_from_slice(tape.value(self.memory));
        for (at, &found) in factors.at.iter_mut().zip(tape.value(self.at)) {
            *at = found.clamp(-FARTHEST, FARTHEST);
        }
    }
}

/// What a round came to.
pub(crate) struct Stepped {
    /// Minus the evidence lower bound of the round, if it was asked for.
    pub(crate) loss: Option<Var>,
    /// What moved each worker of the round, in log time, together with others.
    pub(crate) moved: Vec<f32>,
    /// Residuals from levels, in spreads, without the group's factor: what groups are found from.
    pub(crate) residuals: Vec<(usize, f64)>,
}

/// Draws and what to compute.
pub(crate) struct Mode<'a> {
    /// Standard normal draws for the posterior's samples; its means without.
    pub(crate) noise: Option<&'a mut dyn FnMut() -> f32>,
    /// What really happened, where the round shows less of it: what the likelihood is of.
    pub(crate) truth: Option<&'a Seen>,
    /// What these weights predicted of the round, where nothing is to be learned.
    pub(crate) predicted: Option<&'a Outlook>,
}

impl State {
    /// Makes room for the workers of a round; the first one sets levels.
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
            cluster: Moving::load(&self.cluster, tape),
            groups: (!self.groups.at.is_empty()).then(|| Moving::load(&self.groups, tape)),
        }
    }

    /// Takes the state after so many rounds from a tape.
    pub(crate) fn store(&mut self, carry: &Carry, tape: &Tape, rounds: usize) {
        self.memory.copy_from_slice(tape.value(carry.memory));
        carry.cluster.store(&mut self.cluster, tape);
        // Only the sum of factor and level is ever used. What the cluster's factor is for long
        // becomes part of the levels, so that it does not wander.
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

    /// Of every `stride`-th worker, numbered anew.
    pub(crate) fn every(&self, stride: usize) -> State {
        State {
            standing: self.standing.every(stride),
            grouping: self.grouping.every(stride),
            memory: self.memory.chunks_exact(MEMORY).step_by(stride).flatten().copied().collect(),
            cluster: self.cluster.clone(),
            groups: self.groups.clone(),
        }
    }

    /// Groups may have changed.
    pub(crate) fn find_groups(&mut self, residuals: &[(usize, f64)]) {
        if let Some(before) = self.grouping.learn(residuals.iter().copied()) {
            self.groups.regroup(&before);
        }
    }

    /// Where the cluster's factor, and each group's, is expected next: a mixture a row.
    pub(crate) fn priors(&self, tape: &mut Tape, nets: &Nets) -> (Vec<f32>, Vec<f32>) {
        let carry = self.load(tape);
        let of = |tape: &mut Tape, common: &Common, moving: Moving, factors: &Factors| {
            let params = common.transition(tape, moving.at, moving.memory, factors);
            tape.value(params).to_vec()
        };
        let cluster = of(tape, &nets.cluster, carry.cluster, &self.cluster);
        let groups = carry.groups.map(|groups| of(tape, &nets.group, groups, &self.groups));
        (cluster, groups.unwrap_or_default())
    }

    /// What is expected of these workers, before anything that moves many at once.
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

    /// Takes in a round: infers what moved many at once, scores it, and moves on.
    pub(crate) fn step(
        &mut self,
        tape: &mut Tape,
        nets: &Nets,
        carry: &mut Carry,
        seen: &Seen,
        mode: &mut Mode<'_>,
    ) -> Stepped {
        let everyone = seen.workers.len() == self.standing.workers();
        let rows = (!everyone).then_some(&seen.workers[..]);
        // What was predicted for the round need not be computed again, unless it is to be learned.
        let known = mode.predicted.filter(|known| known.covers(&seen.workers));
        let emission = known.is_none().then(|| self.emission(tape, nets, carry.memory, rows));
        let group_of = self.group_of(&seen.workers);
        let unit = self.standing.unit;
        let mut round = RoundOf { seen, unit, tape, locations: Vec::new(), scales: Vec::new() };
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

        // The cluster first, groups at what is expected of them; then they, given the cluster.
        let before = carry.cluster;
        let params = nets.cluster.transition(round.tape, before.at, before.memory, &self.cluster);
        let prior = prior_moments(round.tape.value(params));
        let offs: Vec<f32> = group_of.iter().map(|&group| expected_of(group)).collect();
        let located = emission
            .as_ref()
            .filter(|_| mode.truth.is_some())
            .map(|emission| round.located(emission));
        let whole = Whole { offs: round.offs(|i| offs[i]), of: vec![0; seen.workers.len()] };
        let cluster = round.infer(&nets.cluster, params, &prior, &whole, located, mode);
        let cluster_at = round.tape.value(cluster.at)[0];
        let groups = group_prior.map(|(params, moments)| {
            let whole = Whole { offs: round.offs(|_| cluster_at), of: group_of.clone() };
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

        // Levels follow what is most likely, not a draw of it.
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
        Stepped { loss, moved, residuals }
    }

    /// The group of each of these workers.
    fn group_of(&self, workers: &[u32]) -> Vec<u32> {
        let of = |worker: usize| self.grouping.of(worker).map_or(NONE, |group| group as u32);
        workers.iter().map(|&worker| of(worker as usize)).collect()
    }

    /// Levels and spreads follow.
    fn learn(&mut self, seen: &Seen, locations: &[f32], moved: &[f32]) -> Vec<(usize, Residual)> {
        let mut residuals = Vec::with_capacity(seen.workers.len());
        for (i, &worker) in seen.workers.iter().enumerate() {
            let (worker, y) = (worker as usize, seen.log_times[i] - moved[i]);
            let residual = self.standing.residual(worker, y, locations[i], seen.observed[i]);
            self.standing.learn(worker, y, residual);
            residuals.push((worker, residual));
        }
        self.standing.settle(&residuals);
        residuals
    }

    /// What the workers' recurrent states are told.
    fn signs(&self, seen: &Seen, residuals: &[(usize, Residual)]) -> Vec<f32> {
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

/// The recurrent state of what moves many, after a round.
fn remember(tape: &mut Tape, common: &Common, before: Moving, now: &Posterior) -> Moving {
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
    Moving { memory: common.recurrent.step(tape, signs, before.memory), at: now.at }
}

/// The recurrent states of workers, after a round in which these took part (all, if not said).
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

/// The chance of less than `at` under a mixture.
fn cdf(params: &[f32], at: f32) -> f32 {
    let shares = shares(&params[..PARTS]);
    (0..PARTS)
        .map(|k| shares[k] * sigmoid((at - params[PARTS + k]) * exp(-params[2 * PARTS + k])))
        .sum()
}
