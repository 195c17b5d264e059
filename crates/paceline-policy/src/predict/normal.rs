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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabulated_values() {
        for (z, p) in
            [(0.0, 0.5), (1.0, 0.841_344_746), (-1.96, 0.024_997_895), (3.0, 0.998_650_102)]
        {
            assert!((cdf(z) - p).abs() < 1e-8, "{z}");
        }
        // φ(1)/(1 − Φ(1)) and the asymptote.
        assert!((hazard(1.0) - 1.525_135_276).abs() < 1e-8);
        assert!((hazard(30.0) - 30.033_259_667).abs() < 1e-3);
    }
}
