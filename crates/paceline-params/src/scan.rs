//! Reductions over a gradient: whether it is finite, and its norm.
//!
//! A block is scanned while it is still in the cache, where wide vectors pay: [`pulp`] picks the
//! widest at run time. The results do not depend on the width.

use pulp::Arch;

/// Elements scanned before the scan may stop.
const CHUNK: usize = 1024;

/// Independent partial sums; wide enough for two 512-bit accumulators of `f64`.
const LANES: usize = 16;

/// `Ok` if every element is finite, else the index of the first that is not.
pub fn all_finite(values: &[f32]) -> Result<(), usize> {
    Arch::new().dispatch(|| {
        for (i, chunk) in values.chunks(CHUNK).enumerate() {
            // x − x is +0 for finite x and NaN otherwise. Without an early exit, and without a
            // comparison, the inner loop is a subtraction and an or for each vector.
            #[expect(clippy::eq_op, reason = "that is the point")]
            let bits = chunk.iter().fold(0, |bits, x| bits | (x - x).to_bits());
            if bits != 0
                && let Some(at) = chunk.iter().position(|x| !x.is_finite())
            {
                return Err(i * CHUNK + at);
            }
        }
        Ok(())
    })
}

/// The sum of the squares, in double precision and in an order that depends on the length alone,
/// so that it is the same bit for bit from run to run.
///
/// It is finite exactly if every element is: the squares of `f32` stay far below the largest `f64`.
/// A caller that needs the norm anyway gets the check for free, and calls [`all_finite`] only for
/// the index.
pub fn norm_squared(values: &[f32]) -> f64 {
    Arch::new().dispatch(|| {
        let (chunks, tail) = values.as_chunks::<LANES>();
        let mut sums = [0.0f64; LANES];
        for chunk in chunks {
            for (sum, &x) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(x) * f64::from(x);
            }
        }
        for (sum, &x) in sums.iter_mut().zip(tail) {
            *sum += f64::from(x) * f64::from(x);
        }
        sums.iter().sum()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_non_finite_element_is_named() {
        for at in [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 5] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![f32::MAX; 4 * CHUNK];
                assert_eq!(all_finite(&values), Ok(()));
                values[at] = bad;
                values[4 * CHUNK - 1] = f32::NAN;
                assert_eq!(all_finite(&values), Err(at));
            }
        }
        assert_eq!(all_finite(&[]), Ok(()));
    }

    #[test]
    fn the_norm_of_the_largest_floats_does_not_overflow() {
        let values = vec![f32::MAX; 1000];
        let expected = 1000.0 * f64::from(f32::MAX).powi(2);
        assert!((norm_squared(&values) / expected - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn the_norm_matches_a_plain_sum(values in prop::collection::vec(-1e3f32..1e3, 0..200)) {
            let plain: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            prop_assert!((norm_squared(&values) - plain).abs() <= 1e-12 * plain);
        }

        #[test]
        fn the_norm_is_finite_exactly_where_the_values_are(
            values in prop::collection::vec(any::<f32>(), 0..200),
        ) {
            prop_assert_eq!(norm_squared(&values).is_finite(), all_finite(&values).is_ok());
            let reference = values.iter().position(|x| !x.is_finite());
            prop_assert_eq!(all_finite(&values).err(), reference);
        }
    }
}
