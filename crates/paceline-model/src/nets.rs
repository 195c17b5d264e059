//! The networks and their forward passes on a tape.
//!
//! Weights are shared over workers and over groups, so the model does not depend on their number.

use crate::{
    mixture::PARTS,
    state::Factors,
    tape::{Tape, Var},
    weights::{COMMON_MEMORY, MEMORY, Weights},
};

/// Log scales stay within ± this, so that the square of a scale is a finite `f32` whatever the weights
/// are. The least spread of a worker, 1e-5, has −11.5.
const LARGEST_LOG_SCALE: f32 = 20.0;

/// A matrix and a bias.
#[derive(Debug, Clone, Copy)]
struct LinearLayer {
    weight: Var,
    bias: Var,
}

impl LinearLayer {
    fn apply(self, tape: &mut Tape, x: Var) -> Var {
        tape.affine(x, self.weight, self.bias)
    }
}

/// A layer with a hyperbolic tangent, and one without.
#[derive(Debug, Clone, Copy)]
struct Perceptron {
    hidden: LinearLayer,
    out: LinearLayer,
}

impl Perceptron {
    fn apply(self, tape: &mut Tape, x: Var) -> Var {
        let hidden = self.hidden.apply(tape, x);
        let hidden = tape.tanh(hidden);
        self.out.apply(tape, hidden)
    }
}

/// A gated recurrent unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recurrent {
    gates: LinearLayer,
    candidate: LinearLayer,
    memory: usize,
}

impl Recurrent {
    /// The next state, after these inputs.
    pub(crate) fn step(self, tape: &mut Tape, signs: Var, state: Var) -> Var {
        let both = tape.concat(&[signs, state]);
        let gates = self.gates.apply(tape, both);
        let gates = tape.sigmoid(gates);
        let keep = tape.columns(gates, 0, self.memory);
        let reset = tape.columns(gates, self.memory, self.memory);
        let kept = tape.mul(reset, state);
        let both = tape.concat(&[signs, kept]);
        let candidate = self.candidate.apply(tape, both);
        let candidate = tape.tanh(candidate);
        let difference = tape.sub(state, candidate);
        let kept = tape.mul(keep, difference);
        tape.add(candidate, kept)
    }
}

/// The networks of a common factor: of the cluster, or of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FactorNets {
    pub(crate) recurrent: Recurrent,
    transition: Perceptron,
    inference: Perceptron,
}

impl FactorNets {
    /// The prediction of the next factor: a mixture for each row. The factor stays, or returns to its
    /// usual value, or jumps to its value when away.
    pub(crate) fn transition(
        &self,
        tape: &mut Tape,
        factor: Var,
        memory: Var,
        factors: &Factors,
    ) -> Var {
        let (home, away) = (tape.column(&factors.home), tape.column(&factors.away));
        let from_home = tape.sub(factor, home);
        let scaled = tape.scale(from_home, 0.25);
        let context = tape.concat(&[scaled, memory]);
        let out = self.transition.apply(tape, context);
        let logits = tape.columns(out, 0, PARTS);
        let persistence = tape.columns(out, 3, 1);
        let persistence = tape.sigmoid(persistence);
        let kept = tape.mul(persistence, from_home);
        let kept = tape.add(home, kept);
        let offset = |tape: &mut Tape, part: usize| tape.columns(out, 4 + part, 1);
        let stays = offset(tape, 0);
        let stays = tape.add(kept, stays);
        let returns = offset(tape, 1);
        let returns = tape.add(home, returns);
        let jumps = offset(tape, 2);
        let jumps = tape.add(away, jumps);
        // The variability while it stays is an input, so that one network fits steady and variable
        // clusters.
        let sizes: Vec<f32> = factors.log_size.iter().flat_map(|&size| [size, 0.0, 0.0]).collect();
        let sizes = tape.leaf(factors.log_size.len(), PARTS, &sizes);
        let log_scales = tape.columns(out, 7, PARTS);
        let log_scales = tape.add(log_scales, sizes);
        let log_scales = tape.clamp(log_scales, LARGEST_LOG_SCALE);
        tape.concat(&[logits, stays, returns, jumps, log_scales])
    }

    /// The posterior's trust in the round's own estimate, correction and log spread, for each row;
    /// `gains` are the Kalman gains, as logits.
    pub(crate) fn inference(
        &self,
        tape: &mut Tape,
        summary: Var,
        gains: &[f32],
    ) -> (Var, Var, Var) {
        let out = self.inference.apply(tape, summary);
        let trust = tape.columns(out, 0, 1);
        let gains = tape.column(gains);
        let trust = tape.add(trust, gains);
        let trust = tape.sigmoid(trust);
        let log_spread = tape.columns(out, 2, 1);
        (trust, tape.columns(out, 1, 1), tape.clamp(log_spread, LARGEST_LOG_SCALE))
    }
}

/// The predicted mixtures of workers, before common factors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emission {
    pub(crate) logits: Var,
    pub(crate) locations: Var,
    pub(crate) log_scales: Var,
}

/// All networks.
#[derive(Debug)]
pub(crate) struct Nets {
    /// Every weight, in order.
    pub(crate) weights: Vec<Var>,
    pub(crate) worker: Recurrent,
    emission: Perceptron,
    shape: Var,
    spread: Perceptron,
    pub(crate) cluster: FactorNets,
    pub(crate) group: FactorNets,
}

impl Nets {
    pub(crate) fn load(weights: &Weights, tape: &mut Tape) -> Nets {
        let weights = weights.load(tape);
        let mut rest = weights.iter().copied();
        let mut next = || rest.next().expect("as many weights as the networks have");
        let mut layer = || LinearLayer { weight: next(), bias: next() };
        let worker = Recurrent { gates: layer(), candidate: layer(), memory: MEMORY };
        let emission = Perceptron { hidden: layer(), out: layer() };
        let spread = Perceptron { hidden: layer(), out: layer() };
        let mut common = || FactorNets {
            recurrent: Recurrent { gates: layer(), candidate: layer(), memory: COMMON_MEMORY },
            transition: Perceptron { hidden: layer(), out: layer() },
            inference: Perceptron { hidden: layer(), out: layer() },
        };
        let (cluster, group) = (common(), common());
        let shape = next();
        Nets { weights, worker, emission, shape, spread, cluster, group }
    }

    /// The predicted mixtures of workers with these states, given the level and spread of each, and the
    /// deviation of its run-times from the level (last, recent mean).
    pub(crate) fn emission(
        &self,
        tape: &mut Tape,
        memory: Var,
        levels: &[f32],
        spreads: &[f32],
        recent: [&[f32]; 2],
    ) -> Emission {
        let n = levels.len();
        let out = self.emission.apply(tape, memory);
        let column = |tape: &mut Tape, at: usize| tape.columns(out, at, 1);

        let mixing = tape.columns(out, 0, PARTS);
        let mixing = tape.softmax(mixing);
        let mut offsets = Vec::with_capacity(PARTS * n);
        for i in 0..n {
            offsets.extend([spreads[i] * recent[0][i], spreads[i] * recent[1][i], 0.0]);
        }
        let offsets = tape.leaf(n, PARTS, &offsets);
        let mixed = tape.mul(mixing, offsets);
        let (ones, zero) = (tape.leaf(PARTS, 1, &[1.0; PARTS]), tape.leaf(1, 1, &[0.0]));
        let follows = tape.affine(mixed, ones, zero);
        let (level, spread) = (tape.column(levels), tape.column(spreads));
        let beside = column(tape, 3);
        let beside = tape.mul(beside, spread);
        let location = tape.add(level, follows);
        let location = tape.add(location, beside);

        let shape = tape.gather(self.shape, &vec![0; n]);
        let of_shape = |tape: &mut Tape, at: usize| tape.columns(shape, at, 1);
        let shoulder = of_shape(tape, 0);
        let shoulder = tape.mul(shoulder, spread);
        let shoulder = tape.add(location, shoulder);
        let stall = of_shape(tape, 2);
        let stall = tape.add(location, stall);

        let logs: Vec<f32> = spreads.iter().map(|&s| crate::math::ln(s) - 0.6).collect();
        let base = tape.column(&logs);
        let wider = column(tape, 4);
        let core_scale = tape.add(base, wider);
        let shoulder_scale = of_shape(tape, 1);
        let shoulder_scale = tape.add(core_scale, shoulder_scale);
        let stall_scale = of_shape(tape, 3);

        let none = tape.column(&vec![0.0; n]);
        let rare = tape.columns(out, 5, 2);
        let log_scales = tape.concat(&[core_scale, shoulder_scale, stall_scale]);
        Emission {
            logits: tape.concat(&[none, rare]),
            locations: tape.concat(&[location, shoulder, stall]),
            log_scales: tape.clamp(log_scales, LARGEST_LOG_SCALE),
        }
    }

    /// The log widening of workers' spread at this factor of their group.
    pub(crate) fn spread(&self, tape: &mut Tape, factor: Var) -> Var {
        let scaled = tape.scale(factor, 0.25);
        let wider = self.spread.apply(tape, scaled);
        tape.clamp(wider, LARGEST_LOG_SCALE)
    }
}
