//! Fully connected layers.

use crate::TensorSpec;
use crate::layer::{Layer, Step, add_rows, fill_rows, rectify, stop_rectified, uniform};
use crate::rng::RandomStream;
use paceline_params::matmul::{Matrix, Output, multiply};

/// y = x·W + b, with or without a rectifier after it; W is inputs × outputs.
pub(crate) struct Linear {
    name: &'static str,
    inputs: usize,
    outputs: usize,
    rectified: bool,
}

impl Linear {
    /// A layer without a rectifier.
    pub(crate) fn new(name: &'static str, inputs: usize, outputs: usize) -> Self {
        Self { name, inputs, outputs, rectified: false }
    }

    /// The same layer with negative outputs set to zero.
    pub(crate) fn rectified(self) -> Self {
        Self { rectified: true, ..self }
    }

    fn weights(&self) -> usize {
        self.inputs * self.outputs
    }
}

impl Layer for Linear {
    fn tensors(&self) -> Vec<TensorSpec> {
        vec![
            TensorSpec::new(format!("{}.weight", self.name), [self.inputs, self.outputs]),
            TensorSpec::new(format!("{}.bias", self.name), [self.outputs]),
        ]
    }

    fn init(&self, rng: &mut RandomStream) -> Vec<f32> {
        let bound = 1.0 / (self.inputs as f32).sqrt();
        uniform(rng, bound, self.weights(), self.outputs)
    }

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn forward(&mut self, params: &[f32], x: &[f32], y: &mut [f32]) {
        let (weight, bias) = params.split_at(self.weights());
        let x = Matrix::new(x, x.len() / self.inputs, self.inputs);
        fill_rows(y, bias);
        multiply(x, Matrix::new(weight, self.inputs, self.outputs), Output::Add, y);
        if self.rectified {
            rectify(y);
        }
    }

    fn backward(
        &mut self,
        params: &[f32],
        step: Step<'_>,
        grad: &mut [f32],
        dx: Option<&mut [f32]>,
    ) {
        let Step { x, y, dy } = step;
        if self.rectified {
            stop_rectified(y, dy);
        }
        let (dweight, dbias) = grad.split_at_mut(self.weights());
        add_rows(dy, dbias);
        let batch = x.len() / self.inputs;
        let x = Matrix::new(x, batch, self.inputs);
        let dy = Matrix::new(dy, batch, self.outputs);
        multiply(x.transposed(), dy, Output::Add, dweight);
        if let Some(dx) = dx {
            let weight = Matrix::new(&params[..self.weights()], self.inputs, self.outputs);
            multiply(dy, weight.transposed(), Output::Set, dx);
        }
    }
}
