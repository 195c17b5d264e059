//! The inner loops of a convolution, compiled for each instruction set and chosen at run time.
//!
//! A convolution through a library's matrix product has to copy every pixel 25 times first (im2col),
//! and the products are too slim to repay it: measured, two thirds of the time went into copies.
//! These loops keep a block of sums in registers and read images where they lie. `pulp` has them
//! compiled for AVX-512, for AVX2 and for what the target guarantees, and asks the processor which
//! to run. `N` is the number of vectors that make up `LANES`.

use bytemuck::cast;
use pulp::{Arch, Scalar, Simd, WithSimd};

/// Filters that are computed side by side: one AVX-512 vector.
pub(crate) const LANES: usize = 16;

/// One value for each of `LANES` filters.
pub(crate) type Lanes = [f32; LANES];

/// An image inside a border of zeros, row by row, the channels of a pixel side by side.
///
/// What a kernel covers in one of its rows is then contiguous wherever the kernel lies.
pub(crate) struct Bordered {
    values: Vec<f32>,
    width: usize,
    channels: usize,
    kernel: usize,
}

impl Bordered {
    /// An empty image with the border that a kernel of odd size needs to give one output per pixel.
    pub(crate) fn new([height, width, channels]: [usize; 3], kernel: usize) -> Self {
        assert!(kernel % 2 == 1, "a kernel has a middle");
        let values = vec![0.0; (height + kernel - 1) * (width + kernel - 1) * channels];
        Self { values, width, channels, kernel }
    }

    /// Puts `image` inside the border.
    pub(crate) fn set(&mut self, image: &[f32]) {
        let (pitch, half, row) = (self.pitch(), self.kernel / 2, self.width * self.channels);
        let inside = self.values[half * pitch..].chunks_exact_mut(pitch);
        for (from, to) in image.chunks_exact(row).zip(inside) {
            to[half * self.channels..][..row].copy_from_slice(from);
        }
    }

    /// Values per row, border included.
    fn pitch(&self) -> usize {
        (self.width + self.kernel - 1) * self.channels
    }

    /// Values that a kernel covers in one of its rows.
    fn run(&self) -> usize {
        self.kernel * self.channels
    }
}

/// Puts the correlation of `image` with each filter, plus the filter's bias, into `out`, one item
/// per pixel. `weight` has an item per kernel row, kernel column and channel.
pub(crate) fn correlate(image: &Bordered, weight: &[Lanes], bias: &Lanes, out: &mut [Lanes]) {
    assert_eq!(weight.len(), image.kernel * image.run(), "a weight per value under the kernel");
    assert!(image.width >= BLOCK, "a row holds at least one block");
    Arch::new().dispatch(Correlate { image, weight, bias, out });
}

/// Adds to `dweight` the gradient of the weights, given that of the outputs: for each place under
/// the kernel the sum over pixels of the value there times `dy`.
pub(crate) fn accumulate(image: &Bordered, dy: &[Lanes], dweight: &mut [Lanes]) {
    assert_eq!(dweight.len(), image.kernel * image.run(), "a weight per value under the kernel");
    Arch::new().dispatch(Accumulate { image, dy, dweight });
}

/// Neighbouring pixels whose sums are kept in registers together: 7 divides 14 and 28, and 7 sums
/// of two vectors each fit the 16 registers of AVX2.
const BLOCK: usize = 7;

struct Correlate<'a> {
    image: &'a Bordered,
    weight: &'a [Lanes],
    bias: &'a Lanes,
    out: &'a mut [Lanes],
}

impl WithSimd for Correlate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match LANES / S::F32_LANES {
            1 => self.run::<S, 1>(simd),
            2 => self.run::<S, 2>(simd),
            4 => self.run::<S, 4>(simd),
            _ => self.run::<Scalar, LANES>(Scalar::new()),
        }
    }
}

impl Correlate<'_> {
    #[inline(always)]
    fn run<S: Simd, const N: usize>(self, simd: S) {
        let Self { image, weight, bias, out } = self;
        for (y, out) in out.chunks_exact_mut(image.width).enumerate() {
            // The last block overlaps the one before it where blocks do not fit the row.
            for x in (0..image.width).step_by(BLOCK) {
                let x = x.min(image.width - BLOCK);
                let sums = correlate_block::<S, N>(simd, image, [y, x], weight, bias);
                for (out, sum) in out[x..x + BLOCK].iter_mut().zip(sums) {
                    *out = cast(sum);
                }
            }
        }
    }
}

#[inline(always)]
fn correlate_block<S: Simd, const N: usize>(
    simd: S,
    image: &Bordered,
    [y, x]: [usize; 2],
    weight: &[Lanes],
    bias: &Lanes,
) -> [[S::f32s; N]; BLOCK] {
    let mut sums = [cast(*bias); BLOCK];
    let (run, channels) = (image.run(), image.channels);
    for (row, weight) in weight.chunks_exact(run).enumerate() {
        let start = (y + row) * image.pitch() + x * channels;
        let under: [&[f32]; BLOCK] =
            std::array::from_fn(|i| &image.values[start + i * channels..][..run]);
        for (at, weight) in weight.iter().enumerate() {
            let weight = cast(*weight);
            for i in 0..BLOCK {
                sums[i] = multiply_add(simd, under[i][at], weight, sums[i]);
            }
        }
    }
    sums
}

struct Accumulate<'a> {
    image: &'a Bordered,
    dy: &'a [Lanes],
    dweight: &'a mut [Lanes],
}

impl WithSimd for Accumulate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match LANES / S::F32_LANES {
            1 => self.run::<S, 1>(simd),
            2 => self.run::<S, 2>(simd),
            4 => self.run::<S, 4>(simd),
            _ => self.run::<Scalar, LANES>(Scalar::new()),
        }
    }
}

impl Accumulate<'_> {
    #[inline(always)]
    fn run<S: Simd, const N: usize>(self, simd: S) {
        match self.image.run() {
            run if run.is_multiple_of(8) => self.blocks::<S, N, 8>(simd),
            run if run.is_multiple_of(5) => self.blocks::<S, N, 5>(simd),
            _ => self.blocks::<S, N, 1>(simd),
        }
    }

    /// Keeps the sums of `B` neighbouring weights, which are in one row of the kernel, in registers.
    #[inline(always)]
    fn blocks<S: Simd, const N: usize, const B: usize>(self, simd: S) {
        let Self { image, dy, dweight } = self;
        for (block, dweight) in dweight.chunks_exact_mut(B).enumerate() {
            let (row, at) = (block * B / image.run(), block * B % image.run());
            let sums = accumulate_block::<S, N, B>(simd, image, row * image.pitch() + at, dy);
            for (dweight, sum) in dweight.iter_mut().zip(sums) {
                let before: [S::f32s; N] = cast(*dweight);
                let after: [S::f32s; N] = std::array::from_fn(|i| simd.add_f32s(before[i], sum[i]));
                *dweight = cast(after);
            }
        }
    }
}

#[inline(always)]
fn accumulate_block<S: Simd, const N: usize, const B: usize>(
    simd: S,
    image: &Bordered,
    start: usize,
    dy: &[Lanes],
) -> [[S::f32s; N]; B] {
    let mut sums = [cast([0.0f32; LANES]); B];
    for (row, dy) in image.values[start..].chunks(image.pitch()).zip(dy.chunks_exact(image.width)) {
        for (under, dy) in row.windows(B).step_by(image.channels).zip(dy) {
            let dy = cast(*dy);
            for i in 0..B {
                sums[i] = multiply_add(simd, under[i], dy, sums[i]);
            }
        }
    }
    sums
}

/// a·b + c, in one rounding where the processor can.
#[inline(always)]
fn multiply_add<S: Simd, const N: usize>(
    simd: S,
    a: f32,
    b: [S::f32s; N],
    c: [S::f32s; N],
) -> [S::f32s; N] {
    let a = simd.splat_f32s(a);
    std::array::from_fn(|i| simd.mul_add_e_f32s(a, b[i], c[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    /// A random image of `[height, width, channels]` under a kernel, with random weights and output
    /// gradients.
    struct Case {
        size: [usize; 3],
        kernel: usize,
        pixels: Vec<f32>,
        image: Bordered,
        weight: Vec<Lanes>,
        dy: Vec<Lanes>,
    }

    impl Case {
        fn new(size: [usize; 3], kernel: usize) -> Self {
            let mut rng = Stream::new(2, &[]);
            let [height, width, channels] = size;
            let pixels: Vec<f32> =
                (0..height * width * channels).map(|_| rng.between(-1.0, 1.0)).collect();
            let mut lanes = |len: usize| -> Vec<Lanes> {
                (0..len).map(|_| std::array::from_fn(|_| rng.between(-1.0, 1.0))).collect()
            };
            let (weight, dy) = (lanes(kernel * kernel * channels), lanes(height * width));
            let mut image = Bordered::new(size, kernel);
            image.set(&pixels);
            Self { size, kernel, pixels, image, weight, dy }
        }

        /// The pixel under weight `at` when the kernel lies over `(y, x)`; zero on the border.
        fn under(&self, at: usize, y: usize, x: usize) -> f64 {
            let [height, width, channels] = self.size;
            let (place, channel) = (at / channels, at % channels);
            let y = (y + place / self.kernel).wrapping_sub(self.kernel / 2);
            let x = (x + place % self.kernel).wrapping_sub(self.kernel / 2);
            if y >= height || x >= width {
                return 0.0;
            }
            f64::from(self.pixels[(y * width + x) * channels + channel])
        }

        /// The outputs by definition, for a bias of 0.5.
        fn outputs(&self) -> Vec<f64> {
            let [height, width, _] = self.size;
            let output = |pixel: usize, lane: usize| {
                let products = self.weight.iter().enumerate().map(|(at, weight)| {
                    self.under(at, pixel / width, pixel % width) * f64::from(weight[lane])
                });
                0.5 + products.sum::<f64>()
            };
            (0..height * width * LANES).map(|i| output(i / LANES, i % LANES)).collect()
        }

        /// The weights' gradient by definition, added to 0.25.
        fn dweights(&self) -> Vec<f64> {
            let [_, width, _] = self.size;
            let dweight = |at: usize, lane: usize| {
                let products = self.dy.iter().enumerate().map(|(pixel, dy)| {
                    self.under(at, pixel / width, pixel % width) * f64::from(dy[lane])
                });
                0.25 + products.sum::<f64>()
            };
            (0..self.weight.len() * LANES).map(|i| dweight(i / LANES, i % LANES)).collect()
        }

        fn check<S: Simd, const N: usize>(&self, simd: S) {
            let mut out = vec![[f32::NAN; LANES]; self.dy.len()];
            let (image, weight) = (&self.image, &self.weight);
            Correlate { image, weight, bias: &[0.5; LANES], out: &mut out }.run::<S, N>(simd);
            close(&out, &self.outputs());
            let mut dweight = vec![[0.25; LANES]; weight.len()];
            Accumulate { image, dy: &self.dy, dweight: &mut dweight }.run::<S, N>(simd);
            close(&dweight, &self.dweights());
        }
    }

    #[track_caller]
    fn close(found: &[Lanes], expected: &[f64]) {
        assert_eq!(found.as_flattened().len(), expected.len());
        for (found, expected) in found.as_flattened().iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-3, "{found} for {expected}");
        }
    }

    #[test]
    fn every_instruction_set_agrees_with_the_definition() {
        for (size, kernel) in [([7, 7, 1], 5), ([9, 17, 16], 3), ([8, 14, 3], 5), ([7, 8, 1], 1)] {
            let case = Case::new(size, kernel);
            case.check::<Scalar, LANES>(Scalar::new());
            #[cfg(target_arch = "x86_64")]
            {
                if let Some(simd) = pulp::x86::V3::try_new() {
                    case.check::<_, 2>(simd);
                }
                if let Some(simd) = pulp::x86::V4::try_new() {
                    case.check::<_, 1>(simd);
                }
            }
        }
    }
}
