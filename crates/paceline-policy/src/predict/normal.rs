//! The standard normal distribution.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use libm::erfc;

/// P(Z ≤ z).
pub(crate) fn cdf(z: f64) -> f64 {
    0.5 * erfc(-z * FRAC_1_SQRT_2)
}

/// Density over survival: the mean of Z beyond z.
pub(crate) fn hazard(z: f64) -> f64 {
    if z > 25.0 {
        return z + 1.0 / z;
    }
    (-0.5 * z * z).exp() / (2.0 * PI).sqrt() / (0.5 * erfc(z * FRAC_1_SQRT_2))
}
