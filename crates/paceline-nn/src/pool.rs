//! Rectified max-pooling.

use crate::TensorSpec;
use crate::kernel::{LANES, Lanes};
use crate::layer::{Layer, Step};
use crate::rng::RandomStream;

/// Halves height and width: for each of [`LANES`] channels the largest of each 2×2 block, or zero if
/// that is larger (the same as a rectifier before or after the pooling). An odd last row or column
/// is left out.
pub(crate) struct Pool {
    height: usize,
    width: usize,
}

impl Pool {
    /// A layer for images of `[height, width]` pixels.
    pub(crate) fn new([height, width]: [usize; 2]) -> Self {
        Self { height, width }
    }

    /// For each pixel of the output, in order, the first of its two pixels in the upper and in the
    /// lower row of the input.
    fn blocks(&self, samples: usize) -> impl Iterator<Item = [usize; 2]> + use<> {
        let Self { height, width } = *self;
        (0..samples).flat_map(move |sample| {
            (0..height / 2).flat_map(move |row| {
                let start = (sample * height + 2 * row) * width;
                (0..width / 2).map(move |col| [start + 2 * col, start + width + 2 * col])
            })
        })
    }
}

impl Layer for Pool {
    fn tensors(&self) -> Vec<TensorSpec> {
        vec![]
    }

    fn init(&self, _rng: &mut RandomStream) -> Vec<f32> {
        vec![]
    }

    fn inputs(&self) -> usize {
        self.height * self.width * LANES
    }

    fn outputs(&self) -> usize {
        (self.height / 2) * (self.width / 2) * LANES
    }

    fn forward(&mut self, _params: &[f32], x: &[f32], y: &mut [f32]) {
        let samples = x.len() / self.inputs();
        let (x, y) = (x.as_chunks().0, y.as_chunks_mut().0);
        for ([upper, lower], y) in self.blocks(samples).zip(y) {
            *y = largest([&x[upper], &x[upper + 1], &x[lower], &x[lower + 1]]);
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
        if !(self.height.is_multiple_of(2) && self.width.is_multiple_of(2)) {
            dx.fill(0.0);
        }
        let samples = step.x.len() / self.inputs();
        let (x, dx) = (step.x.as_chunks().0, dx.as_chunks_mut().0);
        let outputs = step.y.as_chunks().0.iter().zip(step.dy.as_chunks::<LANES>().0);
        for ([upper, lower], (y, dy)) in self.blocks(samples).zip(outputs) {
            // No gradient passes where the rectifier was inactive.
            let mut left = std::array::from_fn(|i| if y[i] > 0.0 { dy[i] } else { 0.0 });
            for at in [upper, upper + 1, lower, lower + 1] {
                dx[at] = claim(&x[at], y, &mut left);
            }
        }
    }
}

/// The largest of four values and zero, channel by channel.
#[inline]
fn largest([a, b, c, d]: [&Lanes; 4]) -> Lanes {
    // Comparisons instead of `f32::max`, which handles NaN and so is more than one instruction.
    let max = |a: f32, b: f32| if a > b { a } else { b };
    std::array::from_fn(|i| max(max(max(a[i], b[i]), max(c[i], d[i])), 0.0))
}

/// The gradient for `x`: all that is left if `x` is the largest; equal values after it then get none.
#[inline]
fn claim(x: &Lanes, y: &Lanes, left: &mut Lanes) -> Lanes {
    std::array::from_fn(|i| {
        let share = if x[i] == y[i] { left[i] } else { 0.0 };
        left[i] -= share;
        share
    })
}
