//! Adding contributions into an accumulator, several in one pass.

use std::ops::Range;

/// Sources per pass over the accumulator; with more, the processor prefetches its streams badly.
const FUSED: usize = 8;

/// Elements per tile, so that the accumulator's tile (64 KiB) stays in the cache from one group of
/// sources to the next: n sources then cost n + 2 streams of memory, where adding them one by one
/// costs 3n.
const TILE: usize = 16_384;

/// Adds every source into `acc`, or where `first` is set overwrites `acc` with their sum (zeros
/// for no sources), so that an accumulator from a pool needs no clearing.
///
/// The result is bit for bit that of adding the sources one after another in their order:
/// `((acc + s0) + s1) + …`, or `((s0 + s1) + s2) + …` where `first` is set. Only the payload of a
/// NaN is left open.
///
/// # Panics
/// If a source and `acc` differ in length.
pub fn fold(acc: &mut [f32], first: bool, sources: &[&[f32]]) {
    for source in sources {
        assert_eq!(source.len(), acc.len(), "a source differs in length from the accumulator");
    }
    if first && sources.is_empty() {
        acc.fill(0.0);
    }
    for start in (0..acc.len()).step_by(TILE) {
        let tile = start..(start + TILE).min(acc.len());
        for (i, group) in sources.chunks(FUSED).enumerate() {
            let acc = &mut acc[tile.clone()];
            if first && i == 0 {
                fold_group::<true>(acc, group, tile.clone());
            } else {
                fold_group::<false>(acc, group, tile.clone());
            }
        }
    }
}

/// Adds `factor` times `source` into `acc`: a contribution that counts for more or less than its
/// own weight, such as a stale one.
///
/// # Panics
/// If `source` and `acc` differ in length.
pub fn add_scaled(acc: &mut [f32], factor: f32, source: &[f32]) {
    assert_eq!(source.len(), acc.len(), "the source differs in length from the accumulator");
    for (sum, value) in acc.iter_mut().zip(source) {
        *sum += factor * value;
    }
}

/// Overwrites `to` with `factor` times `source`. Returns whether all values are finite.
///
/// # Panics
/// If `source` and `to` differ in length.
pub fn copy_scaled(to: &mut [f32], factor: f32, source: &[f32]) -> bool {
    assert_eq!(source.len(), to.len(), "the source differs in length from the destination");
    // An infinity or NaN has all bits of the exponent set. A maximum of integers is vectorised.
    let mut largest = 0;
    for (to, value) in to.iter_mut().zip(source) {
        *to = factor * value;
        largest = largest.max(to.to_bits() & f32::INFINITY.to_bits());
    }
    largest < f32::INFINITY.to_bits()
}

fn fold_group<const FIRST: bool>(acc: &mut [f32], group: &[&[f32]], tile: Range<usize>) {
    match *group {
        [a] => fold_fused::<FIRST, 1>(acc, [a], tile),
        [a, b] => fold_fused::<FIRST, 2>(acc, [a, b], tile),
        [a, b, c] => fold_fused::<FIRST, 3>(acc, [a, b, c], tile),
        [a, b, c, d] => fold_fused::<FIRST, 4>(acc, [a, b, c, d], tile),
        [a, b, c, d, e] => fold_fused::<FIRST, 5>(acc, [a, b, c, d, e], tile),
        [a, b, c, d, e, f] => fold_fused::<FIRST, 6>(acc, [a, b, c, d, e, f], tile),
        [a, b, c, d, e, f, g] => fold_fused::<FIRST, 7>(acc, [a, b, c, d, e, f, g], tile),
        [a, b, c, d, e, f, g, h] => fold_fused::<FIRST, 8>(acc, [a, b, c, d, e, f, g, h], tile),
        _ => unreachable!("groups hold 1 to {FUSED} sources"),
    }
}

fn fold_fused<const FIRST: bool, const N: usize>(
    acc: &mut [f32],
    sources: [&[f32]; N],
    tile: Range<usize>,
) {
    let len = acc.len();
    // Slices of one known length spare the loop its bounds checks, which lets it vectorise.
    let sources = sources.map(|source| &source[tile.clone()][..len]);
    for i in 0..len {
        let mut sum = if FIRST { sources[0][i] } else { acc[i] + sources[0][i] };
        for source in &sources[1..] {
            sum += source[i];
        }
        acc[i] = sum;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reference(acc: &[f32], first: bool, sources: &[&[f32]]) -> Vec<f32> {
        let mut sum = if first { vec![0.0; acc.len()] } else { acc.to_vec() };
        for (k, source) in sources.iter().enumerate() {
            for (sum, &value) in sum.iter_mut().zip(*source) {
                *sum = if first && k == 0 { value } else { *sum + value };
            }
        }
        sum
    }

    /// Bits, with all NaNs alike.
    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
    }

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            f32::from_bits((state & 0x8fff_ffff) | 0x3000_0000)
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn many_sources_over_many_tiles_match_the_scalar_reference() {
        for len in [1, TILE - 1, TILE, TILE + 1, 3 * TILE + 17] {
            let sources: Vec<_> = (0..18).map(|k| noise(k + 1, len)).collect();
            let sources: Vec<_> = sources.iter().map(Vec::as_slice).collect();
            for count in 0..=sources.len() {
                for first in [false, true] {
                    let mut acc = noise(99, len);
                    let expected = reference(&acc, first, &sources[..count]);
                    fold(&mut acc, first, &sources[..count]);
                    assert_eq!(bits(&acc), bits(&expected), "{count} sources of {len}, {first}");
                }
            }
        }
    }

    #[test]
    fn a_first_sum_keeps_negative_zero() {
        let mut acc = [f32::NAN];
        fold(&mut acc, true, &[&[-0.0]]);
        assert_eq!(acc[0].to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    #[should_panic(expected = "a source differs in length")]
    fn a_short_source_is_refused_before_anything_is_added() {
        fold(&mut [0.0; 4], false, &[&[1.0; 4], &[1.0; 3]]);
    }

    #[test]
    fn a_scaled_source_counts_by_its_factor() {
        let mut acc = [1.0, 2.0];
        add_scaled(&mut acc, 0.5, &[4.0, -8.0]);
        assert_eq!(acc, [3.0, -2.0]);
    }

    proptest! {
        #[test]
        fn folding_is_adding_in_order(
            rows in prop::collection::vec(prop::array::uniform20(any::<f32>()), 1..24),
            first: bool,
        ) {
            let mut columns: Vec<Vec<f32>> =
                (0..20).map(|k| rows.iter().map(|row| row[k]).collect()).collect();
            let acc = columns.pop().unwrap();
            let sources: Vec<_> = columns.iter().map(Vec::as_slice).collect();
            for count in 0..=sources.len() {
                let expected = reference(&acc, first, &sources[..count]);
                let mut sum = acc.clone();
                fold(&mut sum, first, &sources[..count]);
                prop_assert_eq!(bits(&sum), bits(&expected));
            }
        }
    }
}
