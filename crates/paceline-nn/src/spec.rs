//! Names of models, as written on the command line.

use std::fmt;
use std::str::FromStr;

use crate::ModelError;

/// A model by name: `softmax`, `mlp`, `cnn`, `resnet` or `synthetic:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ModelSpec {
    /// Softmax regression: one linear layer.
    Softmax,
    /// Two hidden layers of 256 and 128.
    Mlp,
    /// Two convolutions and two linear layers.
    #[default]
    Cnn,
    /// A convolution, three residual blocks and a linear layer.
    Resnet,
    /// As many parameters as stated and a gradient that costs nothing.
    Synthetic {
        /// Number of parameters; at least one.
        params: usize,
    },
}

/// The most parameters a synthetic model may have: 16 GiB of `f32`.
const MAX_SYNTHETIC: usize = 1 << 32;

impl FromStr for ModelSpec {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let unknown = || ModelError::Unknown { text: text.to_owned() };
        match text {
            "softmax" => Ok(Self::Softmax),
            "mlp" => Ok(Self::Mlp),
            "cnn" => Ok(Self::Cnn),
            "resnet" => Ok(Self::Resnet),
            _ => {
                let count = text.strip_prefix("synthetic:").ok_or_else(unknown)?;
                match count.replace('_', "").parse() {
                    Ok(params) if (1..=MAX_SYNTHETIC).contains(&params) => {
                        Ok(Self::Synthetic { params })
                    }
                    _ => Err(ModelError::Params { text: count.to_owned(), max: MAX_SYNTHETIC }),
                }
            }
        }
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Softmax => f.write_str("softmax"),
            Self::Mlp => f.write_str("mlp"),
            Self::Cnn => f.write_str("cnn"),
            Self::Resnet => f.write_str("resnet"),
            Self::Synthetic { params } => write!(f, "synthetic:{params}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_read_back_as_written() {
        for text in ["softmax", "mlp", "cnn", "resnet", "synthetic:25000000"] {
            assert_eq!(text.parse::<ModelSpec>().unwrap().to_string(), text);
        }
        assert_eq!("synthetic:1_000".parse(), Ok(ModelSpec::Synthetic { params: 1000 }));
    }

    #[test]
    fn errors_name_the_text_and_what_is_expected() {
        let message = |text: &str| text.parse::<ModelSpec>().unwrap_err().to_string();
        assert_eq!(
            message("transformer"),
            "unknown model \"transformer\", expected softmax, mlp, cnn, resnet or synthetic:N"
        );
        for text in ["synthetic:", "synthetic:0", "synthetic:-1", "synthetic:99999999999999"] {
            assert!(message(text).contains("expected 1 to 4294967296"), "{}", message(text));
        }
    }
}
