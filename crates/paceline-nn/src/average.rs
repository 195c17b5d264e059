//! Averages over whole images.

use crate::TensorSpec;
use crate::layer::{Layer, Step, add_rows, fill_rows};
use crate::rng::RandomStream;

/// The mean of each channel over all pixels.
pub(crate) struct Average {
    pixels: usize,
    channels: usize,
}

impl Average {
    /// A layer for images of `[height, width, channels]`.
    pub(crate) fn new([height, width, channels]: [usize; 3]) -> Self {
        Self { pixels: height * width, channels }
    }
}

impl Layer for Average {
    fn tensors(&self) -> Vec<TensorSpec> {
        vec![]
    }

    fn init(&self, _rng: &mut RandomStream) -> Vec<f32> {
        vec![]
    }

    fn inputs(&self) -> usize {
        self.pixels * self.channels
    }

    fn outputs(&self) -> usize {
        self.channels
    }

    fn forward(&mut self, _params: &[f32], x: &[f32], y: &mut [f32]) {
        y.fill(0.0);
        for (x, y) in x.chunks_exact(self.inputs()).zip(y.chunks_exact_mut(self.channels)) {
            add_rows(x, y);
        }
        for y in y {
            *y /= self.pixels as f32;
        }
    }

    fn backward(
        &mut self,
        _params: &[f32],
        step: Step<'_>,
        _grad: &mut [f32],
        dx: Option<&mut [f32]>,
    ) {
        let Some(dx) = dx else { return };
        for dy in step.dy.iter_mut() {
            *dy /= self.pixels as f32;
        }
        let dy = step.dy.chunks_exact(self.channels);
        for (dx, dy) in dx.chunks_exact_mut(self.inputs()).zip(dy) {
            fill_rows(dx, dy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::check_gradients;

    #[test]
    fn every_channel_is_averaged_by_itself() {
        let mut y = [f32::NAN; 2];
        Average::new([1, 2, 2]).forward(&[], &[1.0, 10.0, 3.0, 30.0], &mut y);
        assert_eq!(y, [2.0, 20.0]);
    }

    #[test]
    fn gradients_agree_with_slopes() {
        check_gradients(&mut Average::new([3, 5, 16]));
    }
}
