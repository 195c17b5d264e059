//! Named tensors and their order, which is the layout of the flat parameter vector.

use std::fmt;

/// One named tensor of a model.
///
/// A model is an ordered list of these. Its parameters are one flat `f32` vector in which the
/// tensors lie one after the other in list order, each row-major; a gradient has the same layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Stable name, such as `conv1.weight`; unique within a model.
    pub name: String,
    /// Extent of every dimension, outermost first; no extent is zero.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor called `name` with the given extents.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }

    /// Number of values in the tensor.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.name, self.shape)
    }
}

/// Length of the flat vector that holds `tensors`.
pub fn total_elements(tensors: &[TensorSpec]) -> usize {
    tensors.iter().map(TensorSpec::elements).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_the_sum_of_the_products() {
        let tensors = [TensorSpec::new("a.weight", [3, 4]), TensorSpec::new("a.bias", [4])];
        assert_eq!(total_elements(&tensors), 16);
        assert_eq!(tensors[0].to_string(), "a.weight[3, 4]");
    }
}
