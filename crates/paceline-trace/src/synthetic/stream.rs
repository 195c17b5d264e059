//! Reproducible random streams.

use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use rand_distr::{Distribution, Exp1, OpenClosed01, StandardNormal};

/// The components of a synthetic cluster, each with a random stream of its own: a parameter of one
/// component never changes what another draws.
#[derive(Debug, Clone, Copy)]
pub(super) enum Component {
    Level = 0,
    Own = 1,
    Common = 2,
    State = 3,
    Slowness = 4,
    Noise = 5,
    Stall = 6,
    Minority = 7,
    Roving = 8,
    Shift = 9,
}

/// The draws of one component.
///
/// ChaCha with 8 rounds, by its own name and not as a library's current default: its output is fixed
/// by specification, one seed has 2⁶⁴ streams, and it is compiled in any case, as the generator
/// behind `rand`.
pub(super) struct ComponentStream(ChaCha8Rng);

impl ComponentStream {
    /// The stream of `component` under `seed`.
    pub(super) fn new(seed: u64, component: Component) -> ComponentStream {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(component as u64);
        ComponentStream(rng)
    }

    /// Stream `number` of a `purpose` besides the components, under `seed`.
    pub(super) fn numbered(seed: u64, purpose: u64, number: u64) -> ComponentStream {
        let mut key = [0; 32];
        for (bytes, part) in key.chunks_exact_mut(8).zip([seed, purpose, number]) {
            bytes.copy_from_slice(&part.to_le_bytes());
        }
        ComponentStream(ChaCha8Rng::from_seed(key))
    }

    /// A seed for a cluster, below 2³² for short commands.
    pub(super) fn seed(&mut self) -> u64 {
        u64::from(self.0.random::<u32>())
    }

    /// Standard normal.
    pub(super) fn normal(&mut self) -> f64 {
        StandardNormal.sample(&mut self.0)
    }

    /// Exponential with mean 1.
    pub(super) fn exponential(&mut self) -> f64 {
        Exp1.sample(&mut self.0)
    }

    /// Uniform over 0 ≤ u < 1.
    pub(super) fn uniform(&mut self) -> f64 {
        self.0.random()
    }

    /// A whole number below `end`, each as likely as the others to 2⁻⁵³.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((self.uniform() * end as f64) as usize).min(end - 1)
    }

    /// Uniform over 0 < u ≤ 1.
    pub(super) fn uniform_above_zero(&mut self) -> f64 {
        OpenClosed01.sample(&mut self.0)
    }
}

/// Pareto with least value 1, from `u` over 0 < u ≤ 1. Less 1 it is Lomax (Pareto II).
pub(super) fn pareto(u: f64, shape: f64) -> f64 {
    u.powf(-1.0 / shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_keep_their_values_and_differ() {
        let first = |seed, component| ComponentStream::new(seed, component).uniform();
        assert_eq!(first(1, Component::Level), 0.381489413238261);
        assert_eq!(first(1, Component::Noise), 0.35389294379515657);
        assert_ne!(first(2, Component::Level), first(1, Component::Level));
    }
}
