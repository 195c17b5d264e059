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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{
        statistics::{mean, normal_cdf, same_distribution},
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

    #[test]
    fn means_are_what_they_say() {
        for noise in [
            Noise::LogNormal { sigma: 0.2 },
            Noise::Normal { mean: 1.0, sd: 0.1 },
            Noise::Exponential { offset: 1.0, scale: 0.3 },
            Noise::Pareto { offset: 0.8, scale: 0.2, shape: 3.0 },
        ] {
            let mut stream = ComponentStream::new(11, Component::Noise);
            let draws: Vec<f64> = (0..100_000).map(|_| noise.draw(&mut stream)).collect();
            assert!((mean(&draws) / noise.mean() - 1.0).abs() < 0.005, "{noise:?}");
        }
        assert_eq!(Noise::Pareto { offset: 0.0, scale: 1.0, shape: 1.0 }.mean(), 2.0);
    }
}
