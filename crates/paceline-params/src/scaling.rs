//! Scaling of the learning rate by the contributed weight.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::serde_as_text;

/// How the learning rate follows the ratio of a round's contributed weight to the reference weight
/// for which the rate was chosen. As text: `none`, `sqrt`, `linear`, `adascale`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LrScaling {
    /// Not scaled.
    #[default]
    None,
    /// By the square root of the ratio, which keeps the variance of the update (Krizhevsky 2014).
    Sqrt,
    /// By the ratio, which keeps the update per sample (Goyal et al. 2017).
    Linear,
    /// By the ratio of gains B/(B + 𝓑), 𝓑 being the gradient noise scale (Johnson et al. 2020):
    /// linear where noise dominates, not scaled where it is small.
    AdaScale,
}

impl LrScaling {
    /// Every scaling.
    pub const ALL: [LrScaling; 4] =
        [LrScaling::None, LrScaling::Sqrt, LrScaling::Linear, LrScaling::AdaScale];

    /// The factor for the learning rate. While the noise scale is unknown, `adascale` is linear.
    ///
    /// # Panics
    /// If the reference is not positive, or the contribution is negative or not finite.
    pub fn factor(self, contributed: f64, reference: f64, noise: Option<f64>) -> f32 {
        assert!(reference > 0.0 && reference.is_finite(), "reference weight {reference}");
        assert!(contributed >= 0.0 && contributed.is_finite(), "contributed weight {contributed}");
        let ratio = contributed / reference;
        match self {
            LrScaling::None => 1.0,
            LrScaling::Sqrt => ratio.sqrt() as f32,
            LrScaling::Linear => ratio as f32,
            LrScaling::AdaScale => {
                let damping = noise.map_or(1.0, |b| (reference + b) / (contributed + b));
                (ratio * damping) as f32
            }
        }
    }
}

impl fmt::Display for LrScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LrScaling::None => "none",
            LrScaling::Sqrt => "sqrt",
            LrScaling::Linear => "linear",
            LrScaling::AdaScale => "adascale",
        })
    }
}

impl FromStr for LrScaling {
    type Err = LrScalingError;

    fn from_str(text: &str) -> Result<Self, LrScalingError> {
        let known = Self::ALL.into_iter().find(|scaling| scaling.to_string() == text);
        known.ok_or_else(|| LrScalingError(text.to_owned()))
    }
}

serde_as_text!(LrScaling);

/// A text that names no scaling.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown learning-rate scaling `{0}`: expected none, sqrt, linear or adascale")]
pub struct LrScalingError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_follow_the_ratio() {
        assert_eq!(LrScaling::None.factor(64.0, 256.0, None), 1.0);
        assert_eq!(LrScaling::Sqrt.factor(64.0, 256.0, None), 0.5);
        assert_eq!(LrScaling::Linear.factor(64.0, 256.0, None), 0.25);
        assert_eq!(LrScaling::Linear.factor(512.0, 256.0, None), 2.0);
    }

    #[test]
    fn adascale_lies_between_none_and_linear_as_the_noise_says() {
        let factor = |noise| LrScaling::AdaScale.factor(64.0, 256.0, noise);
        assert_eq!(factor(None), 0.25);
        assert!((factor(Some(1e9)) - 0.25).abs() < 1e-4);
        assert_eq!(factor(Some(64.0)), 0.625);
        assert_eq!(factor(Some(0.0)), 1.0);
    }

    #[test]
    fn text_round_trips() {
        for scaling in LrScaling::ALL {
            assert_eq!(scaling.to_string().parse(), Ok(scaling));
        }
        let error = "cubic".parse::<LrScaling>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown learning-rate scaling `cubic`: expected none, sqrt, linear or adascale"
        );
    }
}
