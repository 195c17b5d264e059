//! Explicit random streams: the same values on every platform and in every release.

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

/// A stream of random numbers named by a seed and a list of labels.
///
/// Draws use integers and correctly rounded `f32` operations only, and never the sampling code of a
/// library, so that drawn values never change.
pub(crate) struct RandomStream(Xoshiro256PlusPlus);

impl RandomStream {
    /// The stream of `seed` at `labels`; streams with different labels are unrelated.
    pub(crate) fn new(seed: u64, labels: &[u64]) -> Self {
        let key = labels.iter().fold(splitmix(seed), |key, &label| splitmix(key ^ splitmix(label)));
        let mut bytes = [0; 32];
        let mut word = key;
        for chunk in bytes.chunks_exact_mut(8) {
            word = splitmix(word);
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Self(Xoshiro256PlusPlus::from_seed(bytes))
    }

    /// The next 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A whole number in `0..n`; `n` is far below 2³², so the bias is far below 2⁻³².
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(n)) >> 32) as u32
    }

    /// A number in `[0, 1)` with 24 random bits.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// A number in `[low, high)`.
    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a bijection of `u64` that scatters nearby values.
fn splitmix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_stable_and_depend_on_every_label() {
        let first = |seed, labels: &[u64]| RandomStream::new(seed, labels).bits();
        assert_eq!(first(1, &[2, 3]), first(1, &[2, 3]));
        let others = [first(1, &[2, 4]), first(1, &[3, 2]), first(2, &[2, 3]), first(1, &[2])];
        assert!(others.iter().all(|&other| other != first(1, &[2, 3])));
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut stream = RandomStream::new(7, &[]);
        let mut sum = 0.0;
        for _ in 0..10_000 {
            assert!(stream.below(10) < 10);
            let u = stream.between(-2.0, 4.0);
            assert!((-2.0..4.0).contains(&u));
            sum += f64::from(u);
        }
        assert!((sum / 10_000.0 - 1.0).abs() < 0.1, "mean {}", sum / 10_000.0);
    }
}
