//! Student's t distribution, for whole degrees of freedom.

/// P(|T| < t) for whole degrees of freedom: the finite series of Abramowitz and Stegun, 26.7.3 and
/// 26.7.4.
fn within(t: f64, degrees: usize) -> f64 {
    let angle = (t.abs() / (degrees as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let odd = degrees % 2 == 1;
    let (mut term, mut sum) = (if odd { cos } else { 1.0 }, 0.0);
    for k in 1..=degrees / 2 {
        sum += term;
        let (above, below) = match odd {
            true => (2 * k, 2 * k + 1),
            false => (2 * k - 1, 2 * k),
        };
        term *= cos * cos * above as f64 / below as f64;
    }
    match odd {
        true => (angle + sin * sum) * std::f64::consts::FRAC_2_PI,
        false => sin * sum,
    }
}

/// P(T < t).
pub(crate) fn below(t: f64, degrees: usize) -> f64 {
    0.5 + 0.5 * within(t, degrees) * t.signum()
}

/// The t that is exceeded with probability `tail` (below one half).
pub(crate) fn exceeded_with(tail: f64, degrees: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while 0.5 - 0.5 * within(high, degrees) > tail && high < 1e15 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        match 0.5 - 0.5 * within(middle, degrees) > tail {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, tail, expected) in [
            (1, 0.025, 12.706),
            (2, 0.025, 4.303),
            (3, 0.025, 3.182),
            (4, 0.005, 4.604),
            (10, 0.025, 2.228),
            (23, 0.025, 2.069),
            (30, 0.0005, 3.646),
            (1000, 0.025, 1.962),
        ] {
            let t = exceeded_with(tail, degrees);
            assert!((t - expected).abs() < 6e-4, "{degrees} {tail}: {t}");
            assert!((below(t, degrees) - (1.0 - tail)).abs() < 1e-9);
            assert!((below(-t, degrees) - tail).abs() < 1e-9);
        }
        assert_eq!(below(0.0, 7), 0.5);
    }
}
