//! Random streams that stay what they are.

use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use rand_distr::{Distribution, Exp1, OpenClosed01, StandardNormal};

/// The parts of a synthetic cluster that draw, each from a stream of its own: a parameter of one
/// part never changes what another draws.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Level = 0,
    Own = 1,
    Common = 2,
    State = 3,
    Slowness = 4,
    Noise = 5,
    Stall = 6,
}

/// The draws of one part.
///
/// ChaCha with 8 rounds, by its own name and not as a library's current default: its output is fixed
/// by specification, one seed has 2⁶⁴ streams, and it is compiled in any case, as the generator
/// behind `rand`.
pub(super) struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of `part` under `seed`.
    pub(super) fn new(seed: u64, part: Part) -> Stream {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(part as u64);
        Stream(rng)
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
        let first = |seed, part| Stream::new(seed, part).uniform();
        assert_eq!(first(1, Part::Level), 0.381489413238261);
        assert_eq!(first(1, Part::Noise), 0.35389294379515657);
        assert_ne!(first(2, Part::Level), first(1, Part::Level));
    }
}
