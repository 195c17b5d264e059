//! An image with a border of zeros, for convolutions.

/// The kernels of a convolution: their number, size and stride.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filters {
    /// Number of filters, and so of output channels.
    pub(crate) count: usize,
    /// Height and width in pixels; odd.
    pub(crate) side: usize,
    /// Pixels from one place to the next, in both directions.
    pub(crate) stride: usize,
}

/// An image inside a border of zeros, row by row, the channels of a pixel side by side.
///
/// The values under one row of a kernel are then contiguous wherever the kernel lies. A kernel's places
/// are those whose middle is a pixel of the image, starting from the first and `stride` apart.
pub(crate) struct Bordered {
    values: Vec<f32>,
    height: usize,
    width: usize,
    channels: usize,
    side: usize,
    stride: usize,
}

impl Bordered {
    /// A black image of `[height, width, channels]` with the border that the filters need.
    pub(crate) fn new([height, width, channels]: [usize; 3], filters: Filters) -> Self {
        let Filters { side, stride, .. } = filters;
        assert!(side % 2 == 1, "a kernel has a middle");
        let values = vec![0.0; (height + side - 1) * (width + side - 1) * channels];
        Self { values, height, width, channels, side, stride }
    }

    /// Puts `image` inside the border.
    pub(crate) fn set(&mut self, image: &[f32]) {
        let (pitch, margin, row) = (self.pitch(), self.margin(), self.width * self.channels);
        let inside = self.values[margin..].chunks_mut(pitch);
        for (from, to) in image.chunks_exact(row).zip(inside) {
            to[..row].copy_from_slice(from);
        }
    }

    /// Copies the pixels inside the border to `image`.
    pub(crate) fn copy_to(&self, image: &mut [f32]) {
        let (pitch, margin, row) = (self.pitch(), self.margin(), self.width * self.channels);
        let inside = self.values[margin..].chunks(pitch);
        for (to, from) in image.chunks_exact_mut(row).zip(inside) {
            to.copy_from_slice(&from[..row]);
        }
    }

    /// Sets everything, border included, to the sum of `patches` where they overlap. There is one
    /// patch for each place, with a value for each of those under the kernel.
    pub(crate) fn set_sum(&mut self, patches: &[f32]) {
        self.values.fill(0.0);
        let (pitch, run, columns) = (self.pitch(), self.run(), self.columns());
        for (place, patch) in patches.chunks_exact(self.side * run).enumerate() {
            let start = self.start([place / columns, place % columns]);
            for (values, patch) in
                self.values[start..].chunks_mut(pitch).zip(patch.chunks_exact(run))
            {
                for (value, patch) in values[..run].iter_mut().zip(patch) {
                    *value += patch;
                }
            }
        }
    }

    /// All values, border included.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Values per row, border included.
    pub(crate) fn pitch(&self) -> usize {
        (self.width + self.side - 1) * self.channels
    }

    /// Values that a kernel covers in one of its rows.
    pub(crate) fn run(&self) -> usize {
        self.side * self.channels
    }

    /// Values that a kernel covers.
    pub(crate) fn patch(&self) -> usize {
        self.side * self.run()
    }

    /// Places in a column.
    pub(crate) fn rows(&self) -> usize {
        self.height.div_ceil(self.stride)
    }

    /// Places in a row.
    pub(crate) fn columns(&self) -> usize {
        self.width.div_ceil(self.stride)
    }

    /// Values from one place to the next in a row.
    pub(crate) fn step(&self) -> usize {
        self.stride * self.channels
    }

    /// Values from one row of places to the next.
    pub(crate) fn row_step(&self) -> usize {
        self.stride * self.pitch()
    }

    /// The first value under a kernel that lies in row `y` and column `x` of its places.
    pub(crate) fn start(&self, [y, x]: [usize; 2]) -> usize {
        y * self.row_step() + x * self.step()
    }

    /// Values before the first inside the border.
    fn margin(&self) -> usize {
        self.side / 2 * (self.pitch() + self.channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bordered(stride: usize) -> Bordered {
        Bordered::new([3, 5, 2], Filters { count: 1, side: 3, stride })
    }

    #[test]
    fn an_image_is_copied_in_and_out_unchanged() {
        let image: Vec<f32> = (1..=30).map(|i| i as f32).collect();
        let mut bordered = bordered(1);
        bordered.set(&image);
        let mut out = vec![f32::NAN; 30];
        bordered.copy_to(&mut out);
        assert_eq!(out, image);
        assert_eq!(bordered.values().iter().filter(|&&value| value == 0.0).count(), 5 * 7 * 2 - 30);
    }

    #[test]
    fn places_have_their_middle_on_every_strideth_pixel() {
        let size = |stride| (bordered(stride).rows(), bordered(stride).columns());
        assert_eq!([size(1), size(2), size(3)], [(3, 5), (2, 3), (1, 2)]);
    }

    #[test]
    fn a_sum_counts_each_value_as_often_as_a_kernel_lies_over_it() {
        let mut bordered = bordered(2);
        bordered.set_sum(&vec![1.0; 2 * 3 * bordered.patch()]);
        let mut out = vec![f32::NAN; 30];
        bordered.copy_to(&mut out);
        let first_channel: Vec<f32> = out.iter().copied().step_by(2).collect();
        assert_eq!(
            first_channel,
            [[1.0, 2.0, 1.0, 2.0, 1.0], [2.0, 4.0, 2.0, 4.0, 2.0], [1.0, 2.0, 1.0, 2.0, 1.0]]
                .concat()
        );
    }
}
