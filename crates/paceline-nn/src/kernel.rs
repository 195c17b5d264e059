//! The inner loops of a convolution, compiled for each instruction set and chosen at run time.
//!
//! A convolution through a library's matrix product has to copy every pixel 25 times first (im2col),
//! and the products are too slim to repay it: measured, two thirds of the time went into copies.
//! These loops keep a block of sums in registers and read images in place. `pulp` compiles them for
//! AVX-512, for AVX2 and for the target's baseline, and chooses by the processor at run time. `N` is
//! the number of vectors that make up `LANES`.

use bytemuck::cast;
use pulp::{Arch, Scalar, Simd, WithSimd};

use crate::bordered::Bordered;

/// Filters that are computed side by side, a group: one AVX-512 vector.
pub(crate) const LANES: usize = 16;

/// One value for each filter of a group.
pub(crate) type Lanes = [f32; LANES];

/// Puts the correlation of `image` with each filter, plus the filter's bias, into `out`.
///
/// Filters are taken [`LANES`] at a time. `bias` has an item per group of filters, `out` one per
/// place of the kernel and group, and `weight` one per group, kernel row, kernel column and channel.
pub(crate) fn correlate(image: &Bordered, weight: &[Lanes], bias: &[Lanes], out: &mut [Lanes]) {
    let places = image.rows() * image.columns();
    assert_eq!(weight.len(), bias.len() * image.patch(), "a weight per value under the kernel");
    assert_eq!(out.len(), bias.len() * places, "an output per place and filter");
    Arch::new().dispatch(Correlate { image, weight, bias, out });
}

/// Adds to `dweight` the gradient of the weights, given that of the outputs: for each value under
/// the kernel the sum over places of that value times `dy`.
///
/// `dy` has an item per place and group of filters, `dweight` one per kernel row, kernel column,
/// channel and group.
pub(crate) fn accumulate(image: &Bordered, dy: &[Lanes], dweight: &mut [Lanes]) {
    let groups = dweight.len() / image.patch();
    assert_eq!(dweight.len(), groups * image.patch(), "a weight per value under the kernel");
    assert_eq!(dy.len(), groups * image.rows() * image.columns(), "an output per place and filter");
    Arch::new().dispatch(Accumulate { image, dy, dweight });
}

struct Correlate<'a> {
    image: &'a Bordered,
    weight: &'a [Lanes],
    bias: &'a [Lanes],
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
    /// Chooses a block that divides the row and whose sums fit the registers: 16 vectors of AVX2
    /// hold 7 sums of two vectors each, but not 8.
    #[inline(always)]
    fn run<S: Simd, const N: usize>(self, simd: S) {
        match self.image.columns() {
            columns if columns.is_multiple_of(8) && N == 1 => self.blocks::<S, N, 8>(simd),
            columns if columns.is_multiple_of(7) => self.blocks::<S, N, 7>(simd),
            columns if columns.is_multiple_of(4) => self.blocks::<S, N, 4>(simd),
            columns if columns > 7 => self.blocks::<S, N, 7>(simd),
            _ => self.blocks::<S, N, 1>(simd),
        }
    }

    /// Keeps the sums of `B` neighbouring places in registers.
    #[inline(always)]
    fn blocks<S: Simd, const N: usize, const B: usize>(self, simd: S) {
        let Self { image, weight, bias, out } = self;
        let (columns, groups) = (image.columns(), bias.len());
        for (group, weight) in weight.chunks_exact(image.patch()).enumerate() {
            for (y, out) in out.chunks_exact_mut(columns * groups).enumerate() {
                // The last block overlaps the one before it where blocks do not fit the row.
                for x in (0..columns).step_by(B) {
                    let x = x.min(columns - B);
                    let sums =
                        correlate_block::<S, N, B>(simd, image, [y, x], weight, &bias[group]);
                    for (i, sum) in sums.iter().enumerate() {
                        out[(x + i) * groups + group] = cast(*sum);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn correlate_block<S: Simd, const N: usize, const B: usize>(
    simd: S,
    image: &Bordered,
    place: [usize; 2],
    weight: &[Lanes],
    bias: &Lanes,
) -> [[S::f32s; N]; B] {
    let mut sums = [cast(*bias); B];
    let (run, step) = (image.run(), image.step());
    for (row, weight) in weight.chunks_exact(run).enumerate() {
        let start = image.start(place) + row * image.pitch();
        let mut under = [&image.values()[..run]; B];
        for (i, under) in under.iter_mut().enumerate() {
            *under = &image.values()[start + i * step..][..run];
        }
        // A plain range, so that no index needs to be checked.
        for at in 0..run {
            let weight = cast(weight[at]);
            for i in 0..B {
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
            run if run.is_multiple_of(16) && N == 1 => self.blocks::<S, N, 16>(simd),
            run if run.is_multiple_of(8) => self.blocks::<S, N, 8>(simd),
            run if run.is_multiple_of(5) => self.blocks::<S, N, 5>(simd),
            run if run.is_multiple_of(3) => self.blocks::<S, N, 3>(simd),
            _ => self.blocks::<S, N, 1>(simd),
        }
    }

    /// Keeps the sums of `B` neighbouring weights, which are in one row of the kernel, in registers.
    #[inline(always)]
    fn blocks<S: Simd, const N: usize, const B: usize>(self, simd: S) {
        let Self { image, dy, dweight } = self;
        let groups = dweight.len() / image.patch();
        for (block, dweight) in dweight.chunks_exact_mut(B * groups).enumerate() {
            let (row, at) = (block * B / image.run(), block * B % image.run());
            let start = row * image.pitch() + at;
            for group in 0..groups {
                let sums = accumulate_block::<S, N, B>(simd, image, start, dy, [group, groups]);
                for (dweight, sum) in dweight.chunks_exact_mut(groups).zip(sums) {
                    let before: [S::f32s; N] = cast(dweight[group]);
                    let after: [S::f32s; N] =
                        std::array::from_fn(|i| simd.add_f32s(before[i], sum[i]));
                    dweight[group] = cast(after);
                }
            }
        }
    }
}

/// For each of the `B` values from `start` on the sum over places, for one of the groups of filters.
#[inline(always)]
fn accumulate_block<S: Simd, const N: usize, const B: usize>(
    simd: S,
    image: &Bordered,
    start: usize,
    dy: &[Lanes],
    [group, groups]: [usize; 2],
) -> [[S::f32s; N]; B] {
    let mut sums = [cast([0.0f32; LANES]); B];
    let rows = image.values()[start..].chunks(image.row_step());
    for (row, dy) in rows.zip(dy.chunks_exact(image.columns() * groups)) {
        for (under, dy) in row.windows(B).step_by(image.step()).zip(dy.chunks_exact(groups)) {
            let dy = cast(dy[group]);
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
    use crate::bordered::Filters;
    use crate::rng::RandomStream;

    /// A random image of `[height, width, channels]` under filters, with random weights (by group,
    /// then by value under the kernel) and output gradients.
    struct Case {
        size: [usize; 3],
        filters: Filters,
        pixels: Vec<f32>,
        image: Bordered,
        weight: Vec<Lanes>,
        dy: Vec<Lanes>,
    }

    impl Case {
        fn new(size: [usize; 3], side: usize, stride: usize, groups: usize) -> Self {
            let mut rng = RandomStream::new(2, &[]);
            let filters = Filters { count: groups * LANES, side, stride };
            let mut image = Bordered::new(size, filters);
            let pixels: Vec<f32> =
                (0..size.iter().product::<usize>()).map(|_| rng.between(-1.0, 1.0)).collect();
            image.set(&pixels);
            let mut lanes = |len: usize| -> Vec<Lanes> {
                (0..len).map(|_| std::array::from_fn(|_| rng.between(-1.0, 1.0))).collect()
            };
            let weight = lanes(groups * image.patch());
            let dy = lanes(groups * image.rows() * image.columns());
            Self { size, filters, pixels, image, weight, dy }
        }

        fn groups(&self) -> usize {
            self.filters.count / LANES
        }

        /// The pixel under weight `at` when the kernel lies at `place`; zero on the border.
        fn under(&self, at: usize, place: usize) -> f64 {
            let [height, width, channels] = self.size;
            let Filters { side, stride, .. } = self.filters;
            let columns = self.image.columns();
            let (under, channel) = (at / channels, at % channels);
            let y = (place / columns * stride + under / side).wrapping_sub(side / 2);
            let x = (place % columns * stride + under % side).wrapping_sub(side / 2);
            if y >= height || x >= width {
                return 0.0;
            }
            f64::from(self.pixels[(y * width + x) * channels + channel])
        }

        /// The outputs by definition, for a bias of 0.5: by place, group and lane.
        fn outputs(&self) -> Vec<f64> {
            let patch = self.image.patch();
            let output = |place: usize, group: usize, lane: usize| {
                let products = (0..patch).map(|at| {
                    self.under(at, place) * f64::from(self.weight[group * patch + at][lane])
                });
                0.5 + products.sum::<f64>()
            };
            let filters = self.filters.count;
            (0..self.dy.len() * LANES)
                .map(|i| output(i / filters, i % filters / LANES, i % LANES))
                .collect()
        }

        /// The weights' gradient by definition, added to 0.25: by value, group and lane.
        fn dweights(&self) -> Vec<f64> {
            let groups = self.groups();
            let dweight = |at: usize, group: usize, lane: usize| {
                let products = (0..self.dy.len() / groups).map(|place| {
                    self.under(at, place) * f64::from(self.dy[place * groups + group][lane])
                });
                0.25 + products.sum::<f64>()
            };
            let filters = self.filters.count;
            (0..self.weight.len() * LANES)
                .map(|i| dweight(i / filters, i % filters / LANES, i % LANES))
                .collect()
        }

        fn check<S: Simd, const N: usize>(&self, simd: S) {
            let mut out = vec![[f32::NAN; LANES]; self.dy.len()];
            let (image, weight) = (&self.image, &self.weight);
            let bias = &vec![[0.5; LANES]; self.groups()];
            Correlate { image, weight, bias, out: &mut out }.run::<S, N>(simd);
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
        for (size, side, stride, groups) in [
            ([7, 7, 1], 5, 1, 1),
            ([9, 17, 16], 3, 1, 1),
            ([8, 14, 3], 5, 1, 2),
            ([7, 8, 1], 1, 1, 1),
            ([8, 16, 16], 3, 2, 2),
            ([7, 9, 3], 3, 2, 1),
            ([5, 12, 2], 3, 1, 3),
            ([9, 7, 16], 1, 2, 2),
        ] {
            let case = Case::new(size, side, stride, groups);
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
