//! The gradient of a convolution's input.

use paceline_params::matmul::{Matrix, Output, multiply};

use crate::bordered::{Bordered, Filters};
use crate::kernel::{LANES, Lanes, correlate};

/// The adjoint of a convolution: each output hands its gradient to the values under the kernel, in
/// proportion to their weights.
pub(crate) enum Adjoint {
    /// For stride 1 and whole groups of channels.
    Turned(Turned),
    /// For all others.
    Scattered(Scattered),
}

impl Adjoint {
    /// The adjoint of a convolution of images of `[height, width, channels]`.
    pub(crate) fn new(size: [usize; 3], filters: Filters) -> Self {
        if filters.stride == 1 && size[2].is_multiple_of(LANES) {
            Self::Turned(Turned::new(size, filters))
        } else {
            Self::Scattered(Scattered::new(size, filters))
        }
    }

    /// Overwrites `dx` with the gradient of the inputs, given the weights and the gradient `dy` of
    /// the outputs of as many samples.
    pub(crate) fn apply(&mut self, weight: &[f32], dy: &[f32], dx: &mut [f32]) {
        match self {
            Self::Turned(turned) => turned.apply(weight, dy, dx),
            Self::Scattered(scattered) => scattered.apply(weight, dy, dx),
        }
    }
}

/// The correlation of the outputs' gradient with the kernels turned by half a turn, channels and
/// filters exchanged.
pub(crate) struct Turned {
    pixels: usize,
    channels: usize,
    filters: usize,
    dy: Bordered,
    /// Group of channels × kernel row × kernel column × filter × channel of the group.
    kernels: Vec<Lanes>,
    no_bias: Vec<Lanes>,
}

impl Turned {
    fn new([height, width, channels]: [usize; 3], filters: Filters) -> Self {
        let dy = Bordered::new([height, width, filters.count], filters);
        let no_bias = vec![[0.0; LANES]; channels / LANES];
        let kernels = vec![[0.0; LANES]; dy.patch() * no_bias.len()];
        Self { pixels: height * width, channels, filters: filters.count, dy, kernels, no_bias }
    }

    fn apply(&mut self, weight: &[f32], dy: &[f32], dx: &mut [f32]) {
        self.turn(weight);
        let dx = dx.chunks_exact_mut(self.pixels * self.channels);
        for (dx, dy) in dx.zip(dy.chunks_exact(self.pixels * self.filters)) {
            self.dy.set(dy);
            correlate(&self.dy, &self.kernels, &self.no_bias, dx.as_chunks_mut().0);
        }
    }

    fn turn(&mut self, weight: &[f32]) {
        let (patch, filters) = (self.dy.patch(), self.filters);
        for (i, weight) in weight.chunks_exact(filters).enumerate() {
            let (place, channel) = (i / self.channels, i % self.channels);
            let (group, lane) = (channel / LANES, channel % LANES);
            let end = (group + 1) * patch - place * filters;
            for (kernel, &weight) in self.kernels[end - filters..end].iter_mut().zip(weight) {
                kernel[lane] = weight;
            }
        }
    }
}

/// Computes each place's share alone and adds the shares where they overlap; with larger strides they
/// overlap little, and a correlation would mostly multiply zeros.
pub(crate) struct Scattered {
    inputs: usize,
    filters: usize,
    dx: Bordered,
    /// The shares, place by place.
    patches: Vec<f32>,
}

impl Scattered {
    fn new(size: [usize; 3], filters: Filters) -> Self {
        let dx = Bordered::new(size, filters);
        Self { inputs: size.iter().product(), filters: filters.count, dx, patches: vec![] }
    }

    fn apply(&mut self, weight: &[f32], dy: &[f32], dx: &mut [f32]) {
        let (places, patch) = (self.dx.rows() * self.dx.columns(), self.dx.patch());
        let weight = Matrix::new(weight, patch, self.filters).transposed();
        self.patches.resize(places * patch, 0.0);
        let dy = dy.chunks_exact(places * self.filters);
        for (dx, dy) in dx.chunks_exact_mut(self.inputs).zip(dy) {
            let dy = Matrix::new(dy, places, self.filters);
            multiply(dy, weight, Output::Set, &mut self.patches);
            self.dx.set_sum(&self.patches);
            self.dx.copy_to(dx);
        }
    }
}
