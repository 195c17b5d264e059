//! How the learning rate follows the contributed weight.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::serde_as_text;

/// How the learning rate follows the weight that contributed to a round, against the reference
/// weight for which it was chosen. As text: `none`, `sqrt`, `linear`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LrScaling {
    /// It does not.
    #[default]
    None,
    /// By the square root of the ratio, which keeps the variance of the update (Krizhevsky 2014).
    Sqrt,
    /// By the ratio, which keeps the update per sample (Goyal et al. 2017).
    Linear,
}

impl LrScaling {
    /// Every scaling.
    pub const ALL: [LrScaling; 3] = [LrScaling::None, LrScaling::Sqrt, LrScaling::Linear];

    /// What to multiply the learning rate by.
    ///
    /// # Panics
    /// If the reference is not positive, or the contribution is negative or not finite.
    pub fn factor(self, contributed: f64, reference: f64) -> f32 {
        assert!(reference > 0.0 && reference.is_finite(), "reference weight {reference}");
        assert!(contributed >= 0.0 && contributed.is_finite(), "contributed weight {contributed}");
        let ratio = contributed / reference;
        match self {
            LrScaling::None => 1.0,
            LrScaling::Sqrt => ratio.sqrt() as f32,
            LrScaling::Linear => ratio as f32,
        }
    }
}

impl fmt::Display for LrScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LrScaling::None => "none",
            LrScaling::Sqrt => "sqrt",
            LrScaling::Linear => "linear",
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
#[error("unknown learning-rate scaling `{0}`: expected none, sqrt or linear")]
pub struct LrScalingError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_follow_the_ratio() {
        assert_eq!(LrScaling::None.factor(64.0, 256.0), 1.0);
        assert_eq!(LrScaling::Sqrt.factor(64.0, 256.0), 0.5);
        assert_eq!(LrScaling::Linear.factor(64.0, 256.0), 0.25);
        assert_eq!(LrScaling::Linear.factor(512.0, 256.0), 2.0);
    }

    #[test]
    fn text_round_trips() {
        for scaling in LrScaling::ALL {
            assert_eq!(scaling.to_string().parse(), Ok(scaling));
        }
        let error = "cubic".parse::<LrScaling>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown learning-rate scaling `cubic`: expected none, sqrt or linear"
        );
    }
}
