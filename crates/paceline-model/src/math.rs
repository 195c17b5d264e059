//! Exponentials and logarithms without calls and branches, so that loops over them vectorise.
//!
//! Accurate to a few units in the last place, which is far more than run-times need.

/// e to the `x`, with `x` clamped to ±87.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding and subtracting this rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 87.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    // ln 2 in two parts, so that the difference loses no bits.
    let rest = x - whole * 0.693_359_4 - whole * -2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * rest + 1.398_2e-3;
    let p = p * rest + 8.333_452e-3;
    let p = p * rest + 4.166_579_6e-2;
    let p = p * rest + 1.666_666_5e-1;
    let p = p * rest + 0.5;
    let p = p * rest * rest + rest + 1.0;
    // The whole number lies in the low bits of the rounded sum.
    p * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

/// The natural logarithm of a positive number; smaller numbers than the least normal float count as
/// that.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    let bits = x.max(f32::MIN_POSITIVE).to_bits();
    // The mantissa in [√½, √2).
    let shifted = bits.wrapping_sub(0x3f35_04f3);
    let exponent = ((shifted as i32) >> 23) as f32;
    let mantissa = f32::from_bits((shifted & 0x007f_ffff) + 0x3f35_04f3) - 1.0;
    let square = mantissa * mantissa;
    let p = 7.037_684e-2;
    let p = p * mantissa - 1.151_461e-1;
    let p = p * mantissa + 1.167_699_9e-1;
    let p = p * mantissa - 1.242_014_1e-1;
    let p = p * mantissa + 1.424_932_3e-1;
    let p = p * mantissa - 1.666_805_8e-1;
    let p = p * mantissa + 2.000_071_5e-1;
    let p = p * mantissa - 2.499_999_4e-1;
    let p = p * mantissa + 3.333_333e-1;
    mantissa + square * (p * mantissa - 0.5) + exponent * std::f32::consts::LN_2
}

/// 1 / (1 + e^−x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    2.0 * sigmoid(2.0 * x) - 1.0
}

/// The sign times the logarithm of 1 + the size, which compresses outliers.
#[inline(always)]
pub(crate) fn squash(x: f32) -> f32 {
    ln(1.0 + x.abs()).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_functions_agree_with_the_exact_ones() {
        for k in -8600..8600 {
            let x = k as f32 * 0.01;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 1e-6, "exp {x}");
            let y = exp(x);
            assert!((f64::from(ln(y)) - f64::from(y).ln()).abs() < 1e-5, "ln {y}");
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 1e-6, "tanh {x}");
        }
        assert!(exp(-1e9) > 0.0 && exp(1e9).is_finite() && ln(0.0).is_finite());
    }
}
