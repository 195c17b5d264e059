//! Noise, drawn for every worker in every round.

use super::stream::{ComponentStream, pareto};

/// The distribution of one draw. All are positive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Noise {
    /// exp N(0, sigma²).
    LogNormal { sigma: f64 },
    /// N(mean, sd²), drawn again where it is not positive. The mean is positive.
    Normal { mean: f64, sd: f64 },
    /// offset + scale · Exp(1).
    Exponential { offset: f64, scale: f64 },
    /// offset + scale · (1 + Lomax(shape)).
    Pareto { offset: f64, scale: f64, shape: f64 },
    /// A product of four.
    Product(ProductNoise),
}

/// A product of four independent factors, each of which may be absent (0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProductNoise {
    /// exp(spread · g(z)) with z ~ N(0, 1) and g(z) = (e^(skew·z) − 1) / skew, which is z without skew:
    /// a log-normal whose logarithm leans to the right (skew > 0), or has an upper bound and a long left
    /// tail (skew < 0). The logarithm is kept within ±[`MOST_LOG`].
    pub(super) spread: f64,
    pub(super) skew: f64,
    /// Uniform over 1 ± this.
    pub(super) uniform: f64,
    /// 1 + exponential · Exp(1).
    pub(super) exponential: f64,
    /// 1 + pareto · Lomax(tail).
    pub(super) pareto: f64,
    pub(super) tail: f64,
}

/// Bound of the logarithm of a skewed draw, so that run-times stay finite and above zero.
const MOST_LOG: f64 = 10.0;

impl ProductNoise {
    /// Draws all factors, also the absent ones, so that each has the same draws whatever the others are.
    fn draw(self, stream: &mut ComponentStream) -> f64 {
        let (z, u) = (stream.normal(), stream.uniform());
        let (e, lomax) =
            (stream.exponential(), pareto(stream.uniform_above_zero(), self.tail) - 1.0);
        self.skewed(z)
            * (1.0 + self.uniform * (2.0 * u - 1.0))
            * (1.0 + self.exponential * e)
            * (1.0 + self.pareto * lomax)
    }

    /// The skewed factor, from a standard normal.
    fn skewed(self, z: f64) -> f64 {
        let leaning = if self.skew == 0.0 { z } else { (self.skew * z).exp_m1() / self.skew };
        (self.spread * leaning).clamp(-MOST_LOG, MOST_LOG).exp()
    }

    /// The mean; a Pareto factor without one counts with its median.
    fn mean(self) -> f64 {
        let heavy =
            Noise::Pareto { offset: 1.0 - self.pareto, scale: self.pareto, shape: self.tail };
        self.skewed_mean() * (1.0 + self.exponential) * heavy.mean()
    }

    /// By the trapezoidal rule over ±8 standard deviations.
    fn skewed_mean(self) -> f64 {
        const STEP: f64 = 1.0 / 64.0;
        let density = |z: f64| (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let points = (-512..=512).map(|k| f64::from(k) * STEP);
        points.map(|z| STEP * density(z) * self.skewed(z)).sum()
    }
}

impl Noise {
    pub(super) fn draw(self, stream: &mut ComponentStream) -> f64 {
        match self {
            Noise::LogNormal { sigma } => (sigma * stream.normal()).exp(),
            Noise::Normal { mean, sd } => loop {
                let x = mean + sd * stream.normal();
                if x > 0.0 {
                    return x;
                }
            },
            Noise::Exponential { offset, scale } => offset + scale * stream.exponential(),
            Noise::Pareto { offset, scale, shape } => {
                offset + scale * pareto(stream.uniform_above_zero(), shape)
            }
            Noise::Product(noise) => noise.draw(stream),
        }
    }

    /// Its mean (of a normal before redrawing); the median where there is no finite mean.
    pub(super) fn mean(self) -> f64 {
        match self {
            Noise::LogNormal { sigma } => (sigma * sigma / 2.0).exp(),
            Noise::Normal { mean, .. } => mean,
            Noise::Exponential { offset, scale } => offset + scale,
            Noise::Pareto { offset, scale, shape } if shape > 1.0 => {
                offset + scale * shape / (shape - 1.0)
            }
            Noise::Pareto { offset, scale, shape } => offset + scale * pareto(0.5, shape),
            Noise::Product(noise) => noise.mean(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{
        statistics::{mean, normal_cdf, same_distribution, sd},
        stream::Component,
    };

    #[track_caller]
    fn check(noise: Noise, cdf: impl Fn(f64) -> f64) {
        let mut stream = ComponentStream::new(11, Component::Noise);
        let mut draws: Vec<f64> = (0..20_000).map(|_| noise.draw(&mut stream)).collect();
        assert!(draws.iter().all(|&x| x > 0.0 && x.is_finite()));
        same_distribution(&mut draws, cdf);
    }

    #[test]
    fn draws_follow_their_distributions() {
        check(Noise::LogNormal { sigma: 0.2 }, |x| normal_cdf(x.ln() / 0.2));
        check(Noise::Normal { mean: 1.0, sd: 0.1 }, |x| normal_cdf((x - 1.0) / 0.1));
        let below_zero = normal_cdf(-1.0);
        check(Noise::Normal { mean: 1.0, sd: 1.0 }, |x| {
            (normal_cdf(x - 1.0) - below_zero) / (1.0 - below_zero)
        });
        check(Noise::Exponential { offset: 1.0, scale: 0.3 }, |x| {
            1.0 - (-(x - 1.0).max(0.0) / 0.3).exp()
        });
        check(Noise::Pareto { offset: 0.8, scale: 0.2, shape: 2.0 }, |x| {
            1.0 - ((x - 0.8) / 0.2).max(1.0).powf(-2.0)
        });
    }

    const STILL: ProductNoise = ProductNoise {
        spread: 0.0,
        skew: 0.0,
        uniform: 0.0,
        exponential: 0.0,
        pareto: 0.0,
        tail: 2.0,
    };

    #[test]
    fn each_factor_of_a_product_follows_its_distribution() {
        for skew in [-0.8f64, 0.0, 0.6] {
            let noise = ProductNoise { spread: 0.3, skew, ..STILL };
            check(Noise::Product(noise), |x| {
                let leaning = x.ln() / 0.3;
                normal_cdf(match skew {
                    0.0 => leaning,
                    // Beyond the bound of the other tail there is nothing: ln 0 is −∞.
                    _ => (1.0 + skew * leaning).max(0.0).ln() / skew,
                })
            });
        }
        check(Noise::Product(ProductNoise { uniform: 0.5, ..STILL }), |x| x - 0.5);
        check(Noise::Product(ProductNoise { exponential: 0.3, ..STILL }), |x| {
            1.0 - (-(x - 1.0) / 0.3).exp()
        });
        check(Noise::Product(ProductNoise { pareto: 0.2, tail: 1.5, ..STILL }), |x| {
            1.0 - (1.0 + (x - 1.0) / 0.2).powf(-1.5)
        });
    }

    #[test]
    fn a_factor_of_a_product_leaves_the_draws_of_the_others() {
        let draws = |noise: ProductNoise| {
            let mut stream = ComponentStream::new(3, Component::Noise);
            (0..100).map(|_| noise.draw(&mut stream)).collect::<Vec<f64>>()
        };
        let plain = ProductNoise { spread: 0.3, ..STILL };
        let both = ProductNoise { exponential: 0.5, ..plain };
        let alone = ProductNoise { exponential: 0.5, ..STILL };
        for ((both, plain), alone) in draws(both).iter().zip(draws(plain)).zip(draws(alone)) {
            assert!((both / (plain * alone) - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn negative_skew_has_its_tail_to_the_left() {
        let skewness = |skew: f64| {
            let noise = ProductNoise { spread: 0.2, skew, ..STILL };
            let mut stream = ComponentStream::new(5, Component::Noise);
            let draws: Vec<f64> = (0..20_000).map(|_| noise.draw(&mut stream)).collect();
            let (centre, width) = (mean(&draws), sd(&draws));
            draws.iter().map(|x| ((x - centre) / width).powi(3)).sum::<f64>() / 20_000.0
        };
        assert!(skewness(-0.5) < -0.5 && skewness(0.5) > 1.5);
    }

    #[test]
    fn means_are_what_they_say() {
        for noise in [
            Noise::LogNormal { sigma: 0.2 },
            Noise::Normal { mean: 1.0, sd: 0.1 },
            Noise::Exponential { offset: 1.0, scale: 0.3 },
            Noise::Pareto { offset: 0.8, scale: 0.2, shape: 3.0 },
            Noise::Product(ProductNoise {
                spread: 0.3,
                skew: -0.7,
                uniform: 0.4,
                exponential: 0.2,
                pareto: 0.2,
                tail: 3.0,
            }),
        ] {
            let mut stream = ComponentStream::new(11, Component::Noise);
            let draws: Vec<f64> = (0..100_000).map(|_| noise.draw(&mut stream)).collect();
            assert!((mean(&draws) / noise.mean() - 1.0).abs() < 0.005, "{noise:?}");
        }
        assert_eq!(Noise::Pareto { offset: 0.0, scale: 1.0, shape: 1.0 }.mean(), 2.0);
    }
}
