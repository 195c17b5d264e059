//! References for the tests of the generators.

pub(super) fn mean(xs: &[f64]) -> f64 {
    xs.iter().sum::<f64>() / xs.len() as f64
}

pub(super) fn sd(xs: &[f64]) -> f64 {
    let centre = mean(xs);
    (xs.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / xs.len() as f64).sqrt()
}

pub(super) fn autocorrelation(xs: &[f64], lag: usize) -> f64 {
    let centre = mean(xs);
    let products = xs.iter().zip(&xs[lag..]).map(|(a, b)| (a - centre) * (b - centre));
    products.sum::<f64>() / (xs.len() - lag) as f64 / sd(xs).powi(2)
}

/// Standard normal, to 3e-7 (Abramowitz and Stegun, 7.1.28).
pub(super) fn normal_cdf(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let terms =
        [0.0705230784, 0.0422820123, 0.0092705272, 0.0001520143, 0.0002765672, 0.0000430638];
    let sum = 1.0 + terms.iter().rev().fold(0.0, |sum, term| (sum + term) * x);
    let tail = 0.5 * sum.powi(-16);
    if z < 0.0 { tail } else { 1.0 - tail }
}

/// Kolmogorov and Smirnov's test against a reference, at a level of one in a thousand.
#[track_caller]
pub(super) fn same_distribution(draws: &mut [f64], cdf: impl Fn(f64) -> f64) {
    draws.sort_unstable_by(f64::total_cmp);
    let n = draws.len() as f64;
    let distance = draws.iter().enumerate().fold(0.0f64, |worst, (i, &x)| {
        let expected = cdf(x);
        worst.max((expected - i as f64 / n).abs()).max(((i + 1) as f64 / n - expected).abs())
    });
    let critical = 1.949 / n.sqrt();
    assert!(distance < critical, "distance {distance}, critical {critical}, {n} draws");
}

#[test]
fn the_normal_reference_is_right() {
    for (z, p) in [(0.0, 0.5), (1.0, 0.8413447), (-1.96, 0.0249979), (3.0, 0.9986501)] {
        assert!((normal_cdf(z) - p).abs() < 4e-7, "{z}");
    }
}
