//! Gradient clipping by norm.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::{number, serde_as_text};

/// Gradient clipping. As text: `none`, or `norm:1.0` for a bound on the norm over all parameters.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub enum Clip {
    /// No clipping.
    #[default]
    None,
    /// Gradients with a larger norm are scaled down to this norm; above 0.
    Norm(f32),
}

impl Clip {
    /// The factor for the mean gradient, given its norm over all shards: in `0..=1`.
    ///
    /// An infinite norm gives 0 and a NaN norm gives NaN: no factor makes that gradient usable, and
    /// shards refuse it earlier.
    pub fn factor(self, norm: f64) -> f32 {
        match self {
            Clip::None => 1.0,
            Clip::Norm(bound) if norm <= f64::from(bound) => 1.0,
            Clip::Norm(bound) => (f64::from(bound) / norm) as f32,
        }
    }
}

impl fmt::Display for Clip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clip::None => f.write_str("none"),
            Clip::Norm(bound) => write!(f, "norm:{bound:?}"),
        }
    }
}

impl FromStr for Clip {
    type Err = ClipError;

    fn from_str(text: &str) -> Result<Self, ClipError> {
        if text == "none" {
            return Ok(Clip::None);
        }
        let bound = text.strip_prefix("norm:").and_then(number).filter(|&bound| bound > 0.0);
        bound.map(Clip::Norm).ok_or_else(|| ClipError(text.to_owned()))
    }
}

serde_as_text!(Clip);

/// A text that names no clipping.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown clipping `{0}`: expected none, or norm:BOUND with a bound above 0")]
pub struct ClipError(String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_long_gradients_are_shortened() {
        assert_eq!(Clip::None.factor(1e9), 1.0);
        assert_eq!(Clip::Norm(2.0).factor(0.0), 1.0);
        assert_eq!(Clip::Norm(2.0).factor(2.0), 1.0);
        assert_eq!(Clip::Norm(2.0).factor(8.0), 0.25);
        assert_eq!(Clip::Norm(2.0).factor(f64::INFINITY), 0.0);
    }

    #[test]
    fn bad_bounds_are_refused() {
        for text in ["", "norm", "norm:", "norm:0", "norm:-1", "norm:nan", "norm:inf", "2.0"] {
            let error = text.parse::<Clip>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "unknown clipping `{text}`: expected none, or norm:BOUND with a bound above 0"
                )
            );
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(bound in f32::MIN_POSITIVE..f32::MAX) {
            for clip in [Clip::None, Clip::Norm(bound)] {
                prop_assert_eq!(clip.to_string().parse(), Ok(clip));
                let json = serde_json::to_string(&clip).unwrap();
                prop_assert_eq!(serde_json::from_str::<Clip>(&json).unwrap(), clip);
            }
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            let _ = text.parse::<Clip>();
        }
    }
}
