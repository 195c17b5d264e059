//! The model's weights: named matrices in a fixed order, and their initial values.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use crate::tape::{Tape, Var};

/// Size of a worker's recurrent state.
pub(crate) const MEMORY: usize = 16;
/// Size of the recurrent state of the cluster and of a group.
pub(crate) const COMMON_MEMORY: usize = 8;
/// Inputs of a worker's recurrent unit.
pub(crate) const SIGNS: usize = 5;
/// Inputs of the cluster's and a group's recurrent unit.
pub(crate) const COMMON_SIGNS: usize = 4;
/// Inputs of the inference network.
pub(crate) const SUMMARY: usize = 7;

const TENSORS: usize = 37;

/// Names and shapes, in order. A layer is its matrix and its bias.
const SHAPES: [(&str, usize, usize); TENSORS] = [
    ("worker.gates.weight", SIGNS + MEMORY, 2 * MEMORY),
    ("worker.gates.bias", 1, 2 * MEMORY),
    ("worker.candidate.weight", SIGNS + MEMORY, MEMORY),
    ("worker.candidate.bias", 1, MEMORY),
    ("emission.hidden.weight", MEMORY, 16),
    ("emission.hidden.bias", 1, 16),
    ("emission.out.weight", 16, 7),
    ("emission.out.bias", 1, 7),
    ("spread.hidden.weight", 1, 8),
    ("spread.hidden.bias", 1, 8),
    ("spread.out.weight", 8, 1),
    ("spread.out.bias", 1, 1),
    ("cluster.gates.weight", COMMON_SIGNS + COMMON_MEMORY, 2 * COMMON_MEMORY),
    ("cluster.gates.bias", 1, 2 * COMMON_MEMORY),
    ("cluster.candidate.weight", COMMON_SIGNS + COMMON_MEMORY, COMMON_MEMORY),
    ("cluster.candidate.bias", 1, COMMON_MEMORY),
    ("cluster.transition.hidden.weight", 1 + COMMON_MEMORY, 16),
    ("cluster.transition.hidden.bias", 1, 16),
    ("cluster.transition.out.weight", 16, 10),
    ("cluster.transition.out.bias", 1, 10),
    ("cluster.inference.hidden.weight", SUMMARY, 12),
    ("cluster.inference.hidden.bias", 1, 12),
    ("cluster.inference.out.weight", 12, 3),
    ("cluster.inference.out.bias", 1, 3),
    ("group.gates.weight", COMMON_SIGNS + COMMON_MEMORY, 2 * COMMON_MEMORY),
    ("group.gates.bias", 1, 2 * COMMON_MEMORY),
    ("group.candidate.weight", COMMON_SIGNS + COMMON_MEMORY, COMMON_MEMORY),
    ("group.candidate.bias", 1, COMMON_MEMORY),
    ("group.transition.hidden.weight", 1 + COMMON_MEMORY, 16),
    ("group.transition.hidden.bias", 1, 16),
    ("group.transition.out.weight", 16, 10),
    ("group.transition.out.bias", 1, 10),
    ("group.inference.hidden.weight", SUMMARY, 12),
    ("group.inference.hidden.bias", 1, 12),
    ("group.inference.out.weight", 12, 3),
    ("group.inference.out.bias", 1, 3),
    ("emission.shape", 1, 4),
];

/// Initial values of the biases that have a meaning.
const STARTS: [(&str, &[f32]); 6] = [
    // Follow the last run-time and the recent mean about equally; few shoulders, fewer stalls.
    ("emission.out.bias", &[0.0, 1.0, 0.5, 0.0, 0.0, -1.5, -4.0]),
    // Offsets and log scales: of the shoulder relative to the core, of a stall in log time.
    ("emission.shape", &[0.5, 0.7, 1.0, -0.5]),
    // Three logits; persistence; three offsets; three log scales.
    ("cluster.transition.out.bias", &[1.5, -1.0, -3.0, 2.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.5]),
    ("group.transition.out.bias", &[1.5, -1.5, -3.0, 2.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.5]),
    // Trust in the round's own estimate beyond Kalman's gain; correction; log spread.
    ("cluster.inference.out.bias", &[0.0, 0.0, 0.0]),
    ("group.inference.out.bias", &[0.0, 0.0, 0.0]),
];

/// One named matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its name in a file.
    pub name: &'static str,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Row by row.
    pub values: Vec<f32>,
}

/// All weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// In a fixed order.
    pub tensors: Vec<Tensor>,
}

impl Weights {
    /// Initial weights.
    pub(crate) fn start(seed: u64) -> Weights {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let tensors = SHAPES.map(|(name, rows, cols)| {
            let start = STARTS.iter().find(|(known, _)| *known == name);
            let size = match name.contains(".out.") {
                true => 0.3 / (rows as f32).sqrt(),
                false => 1.0 / (rows as f32).sqrt(),
            };
            let values = match start {
                Some((_, values)) => values.to_vec(),
                None if rows == 1 && name.ends_with("bias") => vec![0.0; cols],
                None => (0..rows * cols).map(|_| rng.random_range(-size..size)).collect(),
            };
            Tensor { name, shape: [rows, cols], values }
        });
        Weights { tensors: tensors.to_vec() }
    }

    /// The number of weights.
    pub fn count(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.values.len()).sum()
    }

    /// Moves a share of the way towards others.
    pub(crate) fn follow(&mut self, others: &Weights, share: f32) {
        for (tensor, other) in self.tensors.iter_mut().zip(&others.tensors) {
            let values = tensor.values.iter_mut().zip(&other.values);
            values.for_each(|(value, other)| *value += share * (other - *value));
        }
    }

    /// Puts all on a tape, in order.
    pub(crate) fn load(&self, tape: &mut Tape) -> Vec<Var> {
        let tensors = self.tensors.iter();
        tensors.map(|t| tape.leaf(t.shape[0], t.shape[1], &t.values)).collect()
    }
}

/// Adam, with gradients scaled down to a largest norm.
#[derive(Debug, Clone)]
pub(crate) struct Adam {
    rate: f32,
    /// Rate of the weights that learn from rare events.
    rare_rate: f32,
    steps: i32,
    mean: Vec<Vec<f32>>,
    square: Vec<Vec<f32>>,
}

impl Adam {
    const DECAY: (f32, f32) = (0.9, 0.999);
    const LARGEST: f32 = 0.5;
    /// Regimes begin and end rarely, so transition networks learn from rare events.
    const RARE: &str = ".transition.";

    pub(crate) fn new(weights: &Weights, rate: f32) -> Adam {
        let zeros: Vec<Vec<f32>> =
            weights.tensors.iter().map(|tensor| vec![0.0; tensor.values.len()]).collect();
        Adam { rate, rare_rate: rate, steps: 0, mean: zeros.clone(), square: zeros }
    }

    pub(crate) fn set_rates(&mut self, rate: f32, rare_rate: f32) {
        (self.rate, self.rare_rate) = (rate, rare_rate);
    }

    /// One descent step. A gradient that is not finite is skipped.
    pub(crate) fn step(&mut self, weights: &mut Weights, grads: &[Vec<f32>]) {
        let norm = grads.iter().flatten().map(|g| g * g).sum::<f32>().sqrt();
        if !norm.is_finite() {
            return;
        }
        let scale = (Adam::LARGEST / norm.max(1e-12)).min(1.0);
        self.steps += 1;
        let (keep, keep_square) = Adam::DECAY;
        let unbias = 1.0 - keep.powi(self.steps);
        let unbias_square = 1.0 - keep_square.powi(self.steps);
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((tensor, grad), (mean, square)) in weights.tensors.iter_mut().zip(grads).zip(moments) {
            let rate = if tensor.name.contains(Adam::RARE) { self.rare_rate } else { self.rate };
            let all = tensor.values.iter_mut().zip(grad).zip(mean.iter_mut().zip(square));
            for ((value, grad), (mean, square)) in all {
                let grad = grad * scale;
                *mean = keep * *mean + (1.0 - keep) * grad;
                *square = keep_square * *square + (1.0 - keep_square) * grad * grad;
                let size = (*square / unbias_square).sqrt() + 1e-8;
                *value -= rate * *mean / unbias / size;
            }
        }
    }
}
