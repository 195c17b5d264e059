//! A cheap, monotone, invertible map from residuals to bins: fine near zero, logarithmic far out.

/// Bins per doubling of 1 + |u|.
const PER_OCTAVE: f64 = 16.0;
/// Doublings covered on each side of zero: |u| up to 2^12.
const OCTAVES: f64 = 12.0;
/// Bins in all.
pub(crate) const BINS: usize = (2.0 * OCTAVES * PER_OCTAVE) as usize;

/// The position of `u` among the bins, as a real number in [0, BINS].
///
/// The logarithm is the piecewise linear one given by a float's bits: exponent plus mantissa.
pub(crate) fn position(u: f64) -> f64 {
    let magnitude = (1.0 + u.abs()).min(4095.0).to_bits();
    let exponent = (magnitude >> 52) as f64 - 1023.0;
    let mantissa = f64::from_bits((magnitude & ((1 << 52) - 1)) | (1023 << 52)) - 1.0;
    let z = (exponent + mantissa) * PER_OCTAVE;
    OCTAVES * PER_OCTAVE + if u < 0.0 { -z } else { z }
}

/// The residual at a position: the inverse of [`position`].
pub(crate) fn residual(position: f64) -> f64 {
    let z = (position - OCTAVES * PER_OCTAVE) / PER_OCTAVE;
    let exponent = z.abs().floor();
    let magnitude = exponent.exp2() * (1.0 + z.abs() - exponent) - 1.0;
    if z < 0.0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_rises_and_its_inverse_returns() {
        let mut last = -1.0;
        for k in -4000..=4000 {
            let u = f64::from(k) / 16.0;
            let at = position(u);
            assert!(at > last, "{u}");
            assert!((residual(at) - u).abs() < 1e-9 * (1.0 + u.abs()), "{u}: {}", residual(at));
            last = at;
        }
        assert!(position(-1e300) >= 0.0 && position(1e300) <= BINS as f64);
    }
}
