//! Conversion of values to 16-bit floats, and back.
//!
//! The loops have no branches, so that [`pulp`] vectorises them to the processor's full width without
//! half-precision instructions. For `f16` these are the conversions of Giesen ("half to float done
//! quic", 2012), which avoid subnormal operands because those are slow.

use pulp::Arch;

use crate::Half;

/// Rounds every value to the nearest of `half`, ties to even. Infinities and NaNs are kept; values
/// beyond the largest finite one by half a step or more become infinite.
///
/// # Panics
/// If `values` and `bits` differ in length.
pub fn narrow(half: Half, values: &[f32], bits: &mut [u16]) {
    assert_eq!(values.len(), bits.len(), "values and their bits differ in length");
    match half {
        Half::Bf16 => Arch::new().dispatch(|| each(values, bits, to_bf16)),
        Half::F16 => Arch::new().dispatch(|| each(values, bits, to_f16)),
    }
}

/// Converts 16-bit floats to `f32`, exactly.
///
/// # Panics
/// If `bits` and `values` differ in length.
pub fn widen(half: Half, bits: &[u16], values: &mut [f32]) {
    assert_eq!(values.len(), bits.len(), "values and their bits differ in length");
    match half {
        Half::Bf16 => Arch::new().dispatch(|| each(bits, values, from_bf16)),
        Half::F16 => Arch::new().dispatch(|| each(bits, values, from_f16)),
    }
}

#[inline(always)]
fn each<T: Copy, U>(from: &[T], to: &mut [U], convert: impl Fn(T) -> U) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = convert(from);
    }
}

/// Bits of an infinite `f32`.
const INFINITE: u32 = 0xff << 23;

/// 2⁻¹⁴, the smallest normal `f16`.
const LEAST_F16: u32 = (127 - 14) << 23;

/// 2¹⁶, beyond every finite `f16`.
const BEYOND_F16: u32 = (127 + 16) << 23;

/// Difference between the exponent biases of `f32` and `f16`.
const REBIAS: u32 = (127 - 15) << 23;

#[inline(always)]
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let high = bits >> 16;
    let rounded = bits.wrapping_add(0x7fff + (high & 1)) >> 16;
    // Rounding could carry a NaN into a number.
    let nan = high | 0x40;
    (if bits & !SIGN > INFINITE { nan } else { rounded }) as u16
}

#[inline(always)]
fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

const SIGN: u32 = 1 << 31;

#[inline(always)]
fn to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let size = bits & !SIGN;
    let odd = (size >> 13) & 1;
    let normal = size.wrapping_sub(REBIAS).wrapping_add(0xfff + odd) >> 13;
    // Adding one half leaves a subnormal's bits at the end of the sum, rounded by the addition.
    let subnormal = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = 0x7e00 | (size >> 13 & 0x3ff);
    let finite = if size < LEAST_F16 { subnormal } else { normal };
    let special = if size > INFINITE { nan } else { 0x7c00 };
    ((bits & SIGN) >> 16 | if size < BEYOND_F16 { finite } else { special }) as u16
}

#[inline(always)]
fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let size = u32::from(bits & 0x7fff) << 13;
    let exponent = size & (0x1f << 23);
    let normal = size + REBIAS;
    // Adding 2⁻¹⁴ to the bits and subtracting it as a number normalises the value.
    let subnormal = (f32::from_bits(size + LEAST_F16) - f32::from_bits(LEAST_F16)).to_bits();
    let special = size | INFINITE;
    let size = if exponent == 0 { subnormal } else { normal };
    f32::from_bits(sign | if exponent == 0x1f << 23 { special } else { size })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HALVES: [Half; 2] = [Half::Bf16, Half::F16];

    fn narrowed(half: Half, values: &[f32]) -> Vec<u16> {
        let mut bits = vec![0; values.len()];
        narrow(half, values, &mut bits);
        bits
    }

    fn widened(half: Half, bits: &[u16]) -> Vec<f32> {
        let mut values = vec![0.0; bits.len()];
        widen(half, bits, &mut values);
        values
    }

    fn reference(half: Half, x: f32) -> u16 {
        match half {
            Half::Bf16 => half::bf16::from_f32(x).to_bits(),
            Half::F16 => half::f16::from_f32(x).to_bits(),
        }
    }

    #[track_caller]
    fn check(half: Half, values: &[f32]) {
        let expected: Vec<u16> = values.iter().map(|&x| reference(half, x)).collect();
        assert_eq!(narrowed(half, values), expected, "{half:?} of {values:?}");
    }

    #[test]
    fn every_half_is_the_value_that_it_stands_for_and_comes_back_the_same() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        for half in HALVES {
            let values = widened(half, &all);
            for (&bits, &value) in all.iter().zip(&values) {
                let expected = match half {
                    Half::Bf16 => half::bf16::from_bits(bits).to_f32(),
                    Half::F16 => half::f16::from_bits(bits).to_f32(),
                };
                assert!(value == expected || value.is_nan() && expected.is_nan(), "{bits:x}");
                assert_eq!(value.is_sign_negative(), expected.is_sign_negative(), "{bits:x}");
            }
            for ((&bits, value), back) in all.iter().zip(&values).zip(narrowed(half, &values)) {
                assert!(back == bits || value.is_nan() && widened(half, &[back])[0].is_nan());
            }
        }
    }

    #[test]
    fn between_two_halves_the_nearest_is_taken_and_the_even_one_of_two() {
        for half in HALVES {
            for bits in 0..u16::MAX {
                let [low, high] = widened(half, &[bits, bits + 1])[..] else { unreachable!() };
                if !low.is_finite() || !high.is_finite() {
                    continue;
                }
                let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
                let even = bits + (bits & 1);
                // Of the magnitudes, whatever the sign.
                let (below, above) = (
                    f32::from_bits(middle.to_bits().wrapping_sub(1)),
                    f32::from_bits(middle.to_bits() + 1),
                );
                assert_eq!(narrowed(half, &[below, middle, above]), [bits, even, bits + 1]);
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so_and_what_is_too_large_becomes_so() {
        let inf = f32::INFINITY;
        for half in HALVES {
            let special = [inf, -inf, f32::NAN, f32::from_bits(0x7f80_0001), -f32::NAN];
            let back = widened(half, &narrowed(half, &special));
            assert_eq!(back[..2], [inf, -inf]);
            assert!(back[2..].iter().all(|x| x.is_nan()), "{back:?}");
        }
        let edge = [65504.0, 65519.996, 65520.0, -65520.0, 1e30, 1e-8, -1e-8];
        let back = widened(Half::F16, &narrowed(Half::F16, &edge));
        assert_eq!(back, [65504.0, 65504.0, inf, -inf, inf, 0.0, -0.0]);
        assert_eq!(widened(Half::Bf16, &narrowed(Half::Bf16, &[f32::MAX])), [inf]);
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn a_buffer_of_another_length_is_refused() {
        narrow(Half::F16, &[1.0; 3], &mut [0; 4]);
    }

    proptest! {
        #[test]
        fn narrowing_matches_a_scalar_reference(
            bits in prop::collection::vec(any::<u32>(), 0..200),
            near_f16 in prop::collection::vec(0x3280_0000u32..0x4800_0000, 0..200),
        ) {
            let values: Vec<f32> = bits.into_iter().chain(near_f16).map(f32::from_bits).collect();
            HALVES.into_iter().for_each(|half| check(half, &values));
        }
    }
}
