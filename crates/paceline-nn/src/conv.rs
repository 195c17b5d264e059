//! Convolutions.

use crate::TensorSpec;
use crate::kernel::{Bordered, LANES, Lanes, accumulate, correlate};
use crate::layer::{Layer, Step, add_rows, uniform};
use crate::rng::Stream;

/// A convolution with [`LANES`] filters, a square kernel of odd size, stride 1 and a border of zeros,
/// so that images keep their height and width.
///
/// The weight is kernel row × kernel column × channel × filter.
pub(crate) struct Conv {
    name: &'static str,
    height: usize,
    width: usize,
    channels: usize,
    kernel: usize,
    image: Bordered,
    dimage: Bordered,
    flipped: Vec<Lanes>,
}

impl Conv {
    /// A layer called `name` for images of `[height, width, channels]`.
    pub(crate) fn new(
        name: &'static str,
        [height, width, channels]: [usize; 3],
        kernel: usize,
    ) -> Self {
        Self {
            name,
            height,
            width,
            channels,
            kernel,
            image: Bordered::new([height, width, channels], kernel),
            dimage: Bordered::new([height, width, LANES], kernel),
            flipped: vec![[0.0; LANES]; kernel * kernel * LANES],
        }
    }

    /// Values under the kernel.
    fn patch(&self) -> usize {
        self.kernel * self.kernel * self.channels
    }

    fn weights(&self) -> usize {
        self.patch() * LANES
    }

    /// The gradient of the input is the correlation of that of the output with the kernel turned by
    /// half a turn, channels and filters exchanged.
    fn flip(&mut self, weight: &[Lanes]) {
        assert_eq!(self.channels, LANES, "gradients flow back to as many channels as lanes");
        for (i, weight) in weight.iter().enumerate() {
            let (place, channel) = (i / self.channels, i % self.channels);
            let turned = self.kernel * self.kernel - 1 - place;
            for (filter, &value) in weight.iter().enumerate() {
                self.flipped[turned * LANES + filter][channel] = value;
            }
        }
    }
}

impl Layer for Conv {
    fn tensors(&self) -> Vec<TensorSpec> {
        let shape = [self.kernel, self.kernel, self.channels, LANES];
        vec![
            TensorSpec::new(format!("{}.weight", self.name), shape),
            TensorSpec::new(format!("{}.bias", self.name), [LANES]),
        ]
    }

    fn init(&self, rng: &mut Stream) -> Vec<f32> {
        uniform(rng, self.patch(), self.weights(), LANES)
    }

    fn inputs(&self) -> usize {
        self.height * self.width * self.channels
    }

    fn outputs(&self) -> usize {
        self.height * self.width * LANES
    }

    fn forward(&mut self, params: &[f32], x: &[f32], y: &mut [f32]) {
        let (params, _) = params.as_chunks();
        let (weight, bias) = params.split_at(self.patch());
        for (x, y) in x.chunks_exact(self.inputs()).zip(y.chunks_exact_mut(self.outputs())) {
            self.image.set(x);
            correlate(&self.image, weight, &bias[0], y.as_chunks_mut().0);
        }
    }

    fn backward(
        &mut self,
        params: &[f32],
        step: Step<'_>,
        grad: &mut [f32],
        dx: Option<&mut [f32]>,
    ) {
        let (dweight, dbias) = grad.split_at_mut(self.weights());
        let (dweight, _) = dweight.as_chunks_mut();
        add_rows(step.dy, dbias);
        let (inputs, outputs) = (self.inputs(), self.outputs());
        for (x, dy) in step.x.chunks_exact(inputs).zip(step.dy.chunks_exact(outputs)) {
            self.image.set(x);
            accumulate(&self.image, dy.as_chunks().0, dweight);
        }
        let Some(dx) = dx else { return };
        self.flip(&params.as_chunks().0[..self.patch()]);
        for (dx, dy) in dx.chunks_exact_mut(inputs).zip(step.dy.chunks_exact(outputs)) {
            self.dimage.set(dy);
            correlate(&self.dimage, &self.flipped, &[0.0; LANES], dx.as_chunks_mut().0);
        }
    }
}
