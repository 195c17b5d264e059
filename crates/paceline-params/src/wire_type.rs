//! The type in which values travel.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::text::serde_as_text;

/// The type of gradients and parameters on the wire. Sums and parameters stay `f32` in memory; a mean that
/// workers step by is rounded for all of them. As text: `f32`, `bf16`, `f16`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WireType {
    /// Not rounded.
    #[default]
    F32,
    /// Rounded to 16 bits.
    Half(Half),
}

/// A floating-point type of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Half {
    /// The range of `f32`, with 8 bits of precision: values are off by at most 1/256.
    Bf16,
    /// IEEE 754 half precision, with 11 bits: values from 6.1e-5 to 65504 are off by at most 1/2048,
    /// smaller ones lose bits, and larger ones are infinite.
    F16,
}

impl WireType {
    /// Every type.
    pub const ALL: [WireType; 3] =
        [WireType::F32, WireType::Half(Half::Bf16), WireType::Half(Half::F16)];

    /// Bytes per value.
    pub fn size(self) -> usize {
        match self {
            WireType::F32 => size_of::<f32>(),
            WireType::Half(_) => size_of::<u16>(),
        }
    }
}

impl fmt::Display for WireType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireType::F32 => "f32",
            WireType::Half(Half::Bf16) => "bf16",
            WireType::Half(Half::F16) => "f16",
        })
    }
}

impl FromStr for WireType {
    type Err = WireTypeError;

    fn from_str(text: &str) -> Result<Self, WireTypeError> {
        let known = Self::ALL.into_iter().find(|wire| wire.to_string() == text);
        known.ok_or_else(|| WireTypeError(text.to_owned()))
    }
}

serde_as_text!(WireType);

/// A text that names no wire type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown wire type `{0}` (known: f32, bf16, f16)")]
pub struct WireTypeError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for wire in WireType::ALL {
            assert_eq!(wire.to_string().parse(), Ok(wire));
            let json = serde_json::to_string(&wire).unwrap();
            assert_eq!(serde_json::from_str::<WireType>(&json).unwrap(), wire);
        }
        let refused = "f64".parse::<WireType>().unwrap_err().to_string();
        assert_eq!(refused, "unknown wire type `f64` (known: f32, bf16, f16)");
    }
}
