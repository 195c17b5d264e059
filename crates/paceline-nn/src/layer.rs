//! One step of a network.

use crate::TensorSpec;
use crate::rng::RandomStream;

/// A step that maps a batch of samples to a batch of samples.
///
/// Laws:
/// - `x` holds a whole number of samples of [`inputs`](Self::inputs) values each, one after the
///   other, and `y` the same number of samples of [`outputs`](Self::outputs).
/// - `params` and `grad` hold the layer's own tensors in order.
/// - [`backward`](Self::backward) refers to the latest call of [`forward`](Self::forward): a layer may
///   keep intermediate results in between.
/// - An image is stored row by row, and the channels of a pixel side by side, so that the values under
///   one row of a kernel are contiguous.
pub(crate) trait Layer: Send {
    /// The layer's tensors in order; none if it has no parameters.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Initial values of the tensors.
    fn init(&self, rng: &mut RandomStream) -> Vec<f32>;

    /// Input values per sample.
    fn inputs(&self) -> usize;

    /// Output values per sample.
    fn outputs(&self) -> usize;

    /// Computes `y` from `x`, overwriting `y`.
    fn forward(&mut self, params: &[f32], x: &[f32], y: &mut [f32]);

    /// *Adds* the gradient of the parameters to `grad` and, if requested, overwrites `dx` with that of
    /// the input.
    fn backward(
        &mut self,
        params: &[f32],
        step: Step<'_>,
        grad: &mut [f32],
        dx: Option<&mut [f32]>,
    );
}

/// A forward step that a layer differentiates.
pub(crate) struct Step<'a> {
    /// The input of the forward step.
    pub(crate) x: &'a [f32],
    /// Its output.
    pub(crate) y: &'a [f32],
    /// Gradient of the loss with respect to `y`; may be overwritten.
    pub(crate) dy: &'a mut [f32],
}

/// `weights` values uniform within ±`bound`, and `biases` zeros.
///
/// A bound of 1/√fan-in is a third of the variance that keeps a linear signal (LeCun et al. 1998,
/// §4.6): max-pooling picks the largest of four, which raises it again.
pub(crate) fn uniform(
    rng: &mut RandomStream,
    bound: f32,
    weights: usize,
    biases: usize,
) -> Vec<f32> {
    let weights = (0..weights).map(|_| rng.between(-bound, bound));
    weights.chain(std::iter::repeat_n(0.0, biases)).collect()
}

/// Sets negative values to zero.
pub(crate) fn rectify(y: &mut [f32]) {
    for value in y {
        *value = value.max(0.0);
    }
}

/// Zeroes the gradient where the rectifier, whose output is `y`, was inactive.
pub(crate) fn stop_rectified(y: &[f32], dy: &mut [f32]) {
    for (dy, &y) in dy.iter_mut().zip(y) {
        *dy = if y > 0.0 { *dy } else { 0.0 };
    }
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

/// Checks the gradients of a layer, at random parameters and inputs of three samples, against the
/// slopes of a random weighted sum of its outputs along the gradient of each tensor and of the input,
/// where it rises by the gradient's norm.
#[cfg(test)]
#[track_caller]
pub(crate) fn check_gradients(layer: &mut dyn Layer) {
    const SAMPLES: usize = 3;
    let mut rng = RandomStream::new(7, &[]);
    let mut random = |len: usize| (0..len).map(|_| rng.between(-0.3, 0.3)).collect::<Vec<f32>>();
    let lens: Vec<usize> = layer.tensors().iter().map(TensorSpec::len).collect();
    let inputs = SAMPLES * layer.inputs();
    // Parameters and inputs in one vector, so that both are moved alike.
    let point = random(lens.iter().sum::<usize>() + inputs);
    let mut y = vec![f32::NAN; SAMPLES * layer.outputs()];
    let weighing = random(y.len());

    let params = point.len() - inputs;
    let mut slopes = vec![0.0; point.len()];
    layer.forward(&point[..params], &point[params..], &mut y);
    let step = Step { x: &point[params..], y: &y, dy: &mut weighing.clone() };
    let (grad, dx) = slopes.split_at_mut(params);
    layer.backward(&point[..params], step, grad, Some(dx));

    let mut start = 0;
    for len in lens.into_iter().chain([inputs]) {
        let span = start..start + len;
        let norm = slopes[span.clone()].iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let step = 1e-4;
        let mut rise = |sign: f64| -> f64 {
            let mut moved = point.clone();
            for at in span.clone() {
                moved[at] += (sign * step / norm * f64::from(slopes[at])) as f32;
            }
            layer.forward(&moved[..params], &moved[params..], &mut y);
            y.iter().zip(&weighing).map(|(&y, &w)| f64::from(y) * f64::from(w)).sum()
        };
        let found = (rise(1.0) - rise(-1.0)) / (2.0 * step);
        assert!((found - norm).abs() < 0.02 * norm, "from {start}: {found} for {norm}");
        start += len;
    }
}
