//! A named tensor of the model.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Name, shape and parameter group of one tensor; its elements are `f32`, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// The name under which checkpoints and messages know the tensor.
    pub name: String,
    /// The size of every dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The parameter group, whose optimizer and learning rate it has
    /// ([`OptimizerGroups`](crate::OptimizerGroups)).
    #[serde(default)]
    pub group: u32,
}

impl TensorSpec {
    /// A tensor of this name and shape, in parameter group 0.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        TensorSpec { name: name.into(), shape: shape.into(), group: 0 }
    }

    /// The same tensor in another parameter group.
    #[must_use]
    pub fn in_group(self, group: u32) -> Self {
        TensorSpec { group, ..self }
    }

    /// The number of elements, or `None` if it does not fit a `usize`.
    pub fn checked_len(&self) -> Option<usize> {
        // A zero anywhere wins over an overflow elsewhere.
        if self.is_empty() {
            return Some(0);
        }
        self.shape.iter().try_fold(1usize, |len, &side| len.checked_mul(side))
    }

    /// The number of elements: the product of the shape, 1 for a scalar. Saturates, so that a
    /// shape from an untrusted source never panics; a [`Layout`](crate::Layout) refuses such a
    /// shape.
    pub fn len(&self) -> usize {
        self.checked_len().unwrap_or(usize::MAX)
    }

    /// Whether some dimension is zero.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_the_product_of_the_shape() {
        assert_eq!(TensorSpec::new("w", [2, 3, 4]).len(), 24);
        assert_eq!(TensorSpec::new("scalar", []).len(), 1);
        assert_eq!(TensorSpec::new("none", [usize::MAX, usize::MAX, 0]).len(), 0);
    }

    #[test]
    fn an_impossible_shape_saturates_instead_of_wrapping() {
        let huge = TensorSpec::new("huge", [usize::MAX, 2]);
        assert_eq!(huge.checked_len(), None);
        assert_eq!(huge.len(), usize::MAX);
    }

    #[test]
    fn displays_name_and_shape() {
        assert_eq!(TensorSpec::new("fc.weight", [10, 784]).to_string(), "fc.weight [10, 784]");
    }

    #[test]
    fn a_tensor_without_a_group_is_in_group_0() {
        let old = serde_json::from_str(r#"{"name":"w","shape":[1]}"#);
        assert_eq!(old.ok(), Some(TensorSpec::new("w", [1])));
    }

    #[test]
    fn unknown_fields_are_refused() {
        let text = r#"{"name":"w","shape":[1],"dtype":"f16"}"#;
        assert!(serde_json::from_str::<TensorSpec>(text).is_err());
    }
}
