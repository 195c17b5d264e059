//! Standardisation, sample by sample.

use crate::TensorSpec;
use crate::kernel::LANES;
use crate::layer::{Layer, Step, rectify, stop_rectified};
use crate::rng::RandomStream;

/// Each sample shifted and scaled to mean 0 and deviation 1 over all its values, then rectified:
/// group normalisation with a single group and nothing to learn (Wu and He 2018).
pub(crate) struct Standard {
    /// Values per sample, in whole groups of [`LANES`].
    values: usize,
    /// Mean and one over the deviation of each sample.
    moments: Vec<[f32; 2]>,
}

/// Added to the variance, so that a blank sample does not become noise.
const LEAST: f32 = 1e-5;

impl Standard {
    /// A layer for samples of `values` values.
    pub(crate) fn new(values: usize) -> Self {
        assert!(values.is_multiple_of(LANES), "values come in groups");
        Self { values, moments: vec![] }
    }

    fn moments(&self, x: &[f32]) -> [f32; 2] {
        let values = self.values as f32;
        let mean = sum(x, |x| x) / values;
        let variance = sum(x, |x| (x - mean) * (x - mean)) / values;
        [mean, 1.0 / (variance + LEAST).sqrt()]
    }
}

impl Layer for Standard {
    fn tensors(&self) -> Vec<TensorSpec> {
        vec![]
    }

    fn init(&self, _rng: &mut RandomStream) -> Vec<f32> {
        vec![]
    }

    fn inputs(&self) -> usize {
        self.values
    }

    fn outputs(&self) -> usize {
        self.values
    }

    fn forward(&mut self, _params: &[f32], x: &[f32], y: &mut [f32]) {
        self.moments.clear();
        for (x, y) in x.chunks_exact(self.values).zip(y.chunks_exact_mut(self.values)) {
            let [mean, scale] = self.moments(x);
            self.moments.push([mean, scale]);
            for (y, x) in y.iter_mut().zip(x) {
                *y = (x - mean) * scale;
            }
            rectify(y);
        }
    }

    /// With z the standardised values, of which a share g of the gradient passes the rectifier, the
    /// input gets (g − mean g − z · mean g·z) / deviation. Where y is not z, g is zero.
    fn backward(
        &mut self,
        _params: &[f32],
        step: Step<'_>,
        _grad: &mut [f32],
        dx: Option<&mut [f32]>,
    ) {
        let Some(dx) = dx else { return };
        let Step { x, y, dy } = step;
        stop_rectified(y, dy);
        let [x, y, dy] = [x, y, dy].map(|values| values.chunks_exact(self.values));
        let samples = self.moments.iter().zip(x.zip(y.zip(dy)));
        for (dx, (&[mean, scale], (x, (y, dy)))) in dx.chunks_exact_mut(self.values).zip(samples) {
            let shift = sum(dy, |dy| dy) / self.values as f32;
            let slope = dot(dy, y) / self.values as f32;
            for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                *dx = (dy - shift - (x - mean) * scale * slope) * scale;
            }
        }
    }
}

/// Σ f(x), in [`LANES`] sums side by side.
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum += f(x);
        }
    }
    sums.iter().sum()
}

/// Σ a·b, in [`LANES`] sums side by side.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::check_gradients;

    #[test]
    fn samples_are_standardised_each_by_itself() {
        let x = [[1.0; LANES / 2], [3.0; LANES / 2], [70.0; LANES / 2], [50.0; LANES / 2]].concat();
        let mut y = vec![f32::NAN; 2 * LANES];
        Standard::new(LANES).forward(&[], &x, &mut y);
        let expected = [[0.0; LANES / 2], [1.0; LANES / 2], [1.0; LANES / 2], [0.0; LANES / 2]];
        for (found, expected) in y.iter().zip(expected.as_flattened()) {
            assert!((found - expected).abs() < 1e-4, "{y:?}");
        }
    }

    #[test]
    fn a_blank_sample_gives_zeros() {
        let mut y = [f32::NAN; LANES];
        Standard::new(LANES).forward(&[], &[0.1; LANES], &mut y);
        assert!(y.iter().all(|y| y.abs() < 1e-4), "{y:?}");
    }

    #[test]
    fn gradients_agree_with_slopes() {
        check_gradients(&mut Standard::new(10 * LANES));
    }
}
