//! Convolutions.

use crate::TensorSpec;
use crate::adjoint::Adjoint;
use crate::bordered::{Bordered, Filters};
use crate::kernel::{LANES, Lanes, accumulate, correlate};
use crate::layer::{Layer, Step, add_rows, uniform};
use crate::rng::RandomStream;

/// A convolution with a border of zeros: one output per filter and place, so that images keep their
/// height and width, divided by the stride and rounded up.
///
/// The weight is kernel row × kernel column × channel × filter. Filters come in whole groups of
/// [`LANES`].
pub(crate) struct Conv {
    name: String,
    size: [usize; 3],
    filters: Filters,
    gain: f32,
    image: Bordered,
    /// The weights group by group.
    packed: Vec<Lanes>,
    adjoint: Adjoint,
}

impl Conv {
    /// A layer called `name` for images of `[height, width, channels]`.
    pub(crate) fn new(name: impl Into<String>, size: [usize; 3], filters: Filters) -> Self {
        assert!(filters.count.is_multiple_of(LANES), "filters come in groups");
        Self {
            name: name.into(),
            size,
            filters,
            gain: 1.0,
            image: Bordered::new(size, filters),
            packed: vec![],
            adjoint: Adjoint::new(size, filters),
        }
    }

    /// The same layer with initial weights `gain` times as large.
    pub(crate) fn gain(self, gain: f32) -> Self {
        Self { gain, ..self }
    }

    /// Height, width and channels of the output.
    pub(crate) fn size_out(&self) -> [usize; 3] {
        [self.image.rows(), self.image.columns(), self.filters.count]
    }

    fn weights(&self) -> usize {
        self.image.patch() * self.filters.count
    }

    fn pack(&mut self, weight: &[Lanes]) {
        let groups = self.filters.count / LANES;
        let group = |group| weight.iter().skip(group).step_by(groups);
        self.packed.clear();
        self.packed.extend((0..groups).flat_map(group));
    }
}

impl Layer for Conv {
    fn tensors(&self) -> Vec<TensorSpec> {
        let Filters { count, side, .. } = self.filters;
        vec![
            TensorSpec::new(format!("{}.weight", self.name), [side, side, self.size[2], count]),
            TensorSpec::new(format!("{}.bias", self.name), [count]),
        ]
    }

    fn init(&self, rng: &mut RandomStream) -> Vec<f32> {
        let bound = self.gain / (self.image.patch() as f32).sqrt();
        uniform(rng, bound, self.weights(), self.filters.count)
    }

    fn inputs(&self) -> usize {
        self.size.iter().product()
    }

    fn outputs(&self) -> usize {
        self.size_out().iter().product()
    }

    fn forward(&mut self, params: &[f32], x: &[f32], y: &mut [f32]) {
        let (weight, bias) = params.split_at(self.weights());
        self.pack(weight.as_chunks().0);
        for (x, y) in x.chunks_exact(self.inputs()).zip(y.chunks_exact_mut(self.outputs())) {
            self.image.set(x);
            correlate(&self.image, &self.packed, bias.as_chunks().0, y.as_chunks_mut().0);
        }
    }

    fn backward(
        &mut self,
        params: &[f32],
        step: Step<'_>,
        grad: &mut [f32],
        dx: Option<&mut [f32]>,
    ) {
        let Step { x, dy, .. } = step;
        let (dweight, dbias) = grad.split_at_mut(self.weights());
        add_rows(dy, dbias);
        for (x, dy) in x.chunks_exact(self.inputs()).zip(dy.chunks_exact(self.outputs())) {
            self.image.set(x);
            accumulate(&self.image, dy.as_chunks().0, dweight.as_chunks_mut().0);
        }
        if let Some(dx) = dx {
            self.adjoint.apply(&params[..self.weights()], dy, dx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::check_gradients;

    #[test]
    fn gradients_agree_with_slopes_for_every_stride_and_number_of_filters() {
        for (size, count, side, stride) in [
            ([6, 8, 16], 16, 3, 1),
            ([6, 8, 16], 32, 3, 1),
            ([5, 7, 32], 16, 3, 1),
            ([8, 8, 16], 32, 3, 2),
            ([7, 9, 16], 32, 3, 2),
            ([8, 8, 16], 32, 1, 2),
            ([7, 5, 3], 16, 5, 1),
            ([7, 7, 3], 16, 3, 3),
        ] {
            check_gradients(&mut Conv::new("conv", size, Filters { count, side, stride }));
        }
    }
}
