//! One step of a network.

use crate::TensorSpec;
use crate::rng::Stream;

/// A step that maps a batch of samples to a batch of samples.
///
/// Laws:
/// - `x` holds a whole number of samples of [`inputs`](Self::inputs) values each, one after the
///   other, and `y` the same number of samples of [`outputs`](Self::outputs).
/// - `params` and `grad` hold the layer's own tensors in order.
/// - An image lies row by row, and the channels of a pixel side by side, so that what a kernel
///   covers in one row is contiguous.
pub(crate) trait Layer: Send {
    /// The layer's tensors in order; none if it has nothing to learn.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Initial values of the tensors.
    fn init(&self, rng: &mut Stream) -> Vec<f32>;

    /// Values per sample that go in.
    fn inputs(&self) -> usize;

    /// Values per sample that come out.
    fn outputs(&self) -> usize;

    /// Computes `y` from `x`; whatever `y` held is overwritten.
    fn forward(&mut self, params: &[f32], x: &[f32], y: &mut [f32]);

    /// *Adds* the gradient of the parameters to `grad` and, if it is asked for, overwrites `dx` with
    /// that of the input.
    fn backward(
        &mut self,
        params: &[f32],
        step: Step<'_>,
        grad: &mut [f32],
        dx: Option<&mut [f32]>,
    );
}

/// What a layer looks back on.
pub(crate) struct Step<'a> {
    /// The input of the forward step.
    pub(crate) x: &'a [f32],
    /// Its output.
    pub(crate) y: &'a [f32],
    /// Gradient of the loss with respect to `y`; may be scribbled on.
    pub(crate) dy: &'a mut [f32],
}

/// `weights` values uniform within ±1/√fan-in, and `biases` zeros.
///
/// A third of the variance that keeps a linear signal (LeCun et al. 1998, §4.6): max-pooling picks
/// the largest of four, which raises it again.
pub(crate) fn uniform(rng: &mut Stream, fan_in: usize, weights: usize, biases: usize) -> Vec<f32> {
    let bound = 1.0 / (fan_in as f32).sqrt();
    let weights = (0..weights).map(|_| rng.between(-bound, bound));
    weights.chain(std::iter::repeat_n(0.0, biases)).collect()
}

/// Adds each row of `rows` to `sums`: the gradient of a bias.
pub(crate) fn add_rows(rows: &[f32], sums: &mut [f32]) {
    for row in rows.chunks_exact(sums.len()) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

/// Sets each row of `rows` to `row`: a bias before a product is added.
pub(crate) fn fill_rows(rows: &mut [f32], row: &[f32]) {
    for out in rows.chunks_exact_mut(row.len()) {
        out.copy_from_slice(row);
    }
}
