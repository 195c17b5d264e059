//! Labelled images in memory, one byte per pixel and channel.

use std::fmt;

use crate::DataError;

/// The shape of a data set's samples; a model is built for a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataShape {
    /// Channels per pixel: 1 is greyscale, 3 is red, green and blue.
    pub channels: usize,
    /// Rows per image.
    pub height: usize,
    /// Pixels per row.
    pub width: usize,
    /// Number of classes; labels are `0..classes`.
    pub classes: usize,
}

impl DataShape {
    /// One greyscale 28×28 image in ten classes: MNIST, Fashion-MNIST and the embedded set.
    pub const MNIST: Self = Self { channels: 1, height: 28, width: 28, classes: 10 };

    /// One 32×32 image in colour in ten classes: CIFAR-10.
    pub const CIFAR: Self = Self { channels: 3, height: 32, width: 32, classes: 10 };

    /// Bytes (pixels of all channels) per image.
    pub fn pixels(&self) -> usize {
        self.channels * self.height * self.width
    }
}

impl fmt::Display for DataShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { channels, height, width, classes } = self;
        write!(f, "{channels}×{height}×{width} in {classes} classes")
    }
}

/// Labelled images, sample by sample, row by row, the channels of a pixel side by side.
///
/// Pixels stay bytes; they become `f32` only for the batch at hand (see [`Dataset::write_pixels`]),
/// so a set needs a quarter of the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Dataset {
    name: String,
    shape: DataShape,
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Dataset {
    /// A set of `labels.len()` images.
    ///
    /// # Errors
    ///
    /// Refuses an empty set, images that are not exactly one per label, and labels outside
    /// `0..classes`.
    pub fn new(
        name: impl Into<String>,
        shape: DataShape,
        images: Vec<u8>,
        labels: Vec<u8>,
    ) -> Result<Self, DataError> {
        let name = name.into();
        if labels.is_empty() || images.len() != labels.len() * shape.pixels() {
            let (bytes, labels) = (images.len(), labels.len());
            return Err(DataError::Lengths { name, bytes, labels, pixels: shape.pixels() });
        }
        if let Some(index) = labels.iter().position(|&label| usize::from(label) >= shape.classes) {
            let label = labels[index];
            return Err(DataError::Label { name, index, label, classes: shape.classes });
        }
        Ok(Self { name, shape, images, labels })
    }

    /// Name for logs, such as `embedded/train`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shape of every sample.
    pub fn shape(&self) -> DataShape {
        self.shape
    }

    /// Number of samples; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a data set is never empty")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// All pixels, sample by sample.
    pub fn images(&self) -> &[u8] {
        &self.images
    }

    /// All labels.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Pixels of sample `index`, which is below [`len`](Self::len).
    pub fn image(&self, index: usize) -> &[u8] {
        let pixels = self.shape.pixels();
        &self.images[index * pixels..][..pixels]
    }

    /// Class of sample `index`, which is below [`len`](Self::len).
    pub fn label(&self, index: usize) -> u8 {
        self.labels[index]
    }

    /// The first `len` samples (or all, if there are fewer), for quick checks; `len` is at least 1.
    pub fn head(&self, len: usize) -> Self {
        let len = len.clamp(1, self.len());
        Self {
            name: self.name.clone(),
            shape: self.shape,
            images: self.images[..len * self.shape.pixels()].to_vec(),
            labels: self.labels[..len].to_vec(),
        }
    }

    /// The same samples, class after class, so that a part of them has few classes.
    pub fn by_label(&self) -> Self {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|&index| self.label(index));
        Self {
            name: self.name.clone(),
            shape: self.shape,
            images: order.iter().flat_map(|&index| self.image(index)).copied().collect(),
            labels: order.iter().map(|&index| self.label(index)).collect(),
        }
    }

    /// Writes the standardised pixels of `samples` one after the other into `out`, whose length is
    /// `samples.len() * shape().pixels()`.
    ///
    /// Each image is shifted and scaled to mean 0 and standard deviation 1 (at least one grey level
    /// counts as deviation, so a blank image becomes zeros). Channels are taken together, so that an
    /// image keeps its colours. No statistic of the set enters, so every worker normalises alike without
    /// having seen the whole set.
    pub fn write_pixels(&self, samples: &[u32], out: &mut [f32]) {
        let pixels = self.shape.pixels();
        assert_eq!(out.len(), samples.len() * pixels, "one image per sample");
        for (&sample, out) in samples.iter().zip(out.chunks_exact_mut(pixels)) {
            standardise(self.image(sample as usize), out);
        }
    }
}

fn standardise(image: &[u8], out: &mut [f32]) {
    let sum: u32 = image.iter().map(|&byte| u32::from(byte)).sum();
    let squares: u64 = image.iter().map(|&byte| u64::from(u32::from(byte) * u32::from(byte))).sum();
    let mean = sum as f32 / image.len() as f32;
    let variance = squares as f32 / image.len() as f32 - mean * mean;
    let scale = 1.0 / variance.max(1.0).sqrt();
    for (out, &byte) in out.iter_mut().zip(image) {
        *out = (f32::from(byte) - mean) * scale;
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({}: {} of {})", self.name, self.len(), self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: DataShape = DataShape { channels: 1, height: 1, width: 2, classes: 3 };

    #[test]
    fn lengths_and_labels_are_checked() {
        assert!(Dataset::new("ok", TINY, vec![0; 4], vec![0, 2]).is_ok());
        assert!(matches!(
            Dataset::new("x", TINY, vec![0; 5], vec![0, 2]),
            Err(DataError::Lengths { bytes: 5, labels: 2, pixels: 2, .. })
        ));
        assert!(matches!(
            Dataset::new("x", TINY, vec![0; 4], vec![0, 3]),
            Err(DataError::Label { index: 1, label: 3, classes: 3, .. })
        ));
        assert!(Dataset::new("x", TINY, vec![], vec![]).is_err());
    }

    #[test]
    fn colours_are_standardised_together() {
        let shape = DataShape { channels: 2, height: 1, width: 2, classes: 1 };
        let set = Dataset::new("x", shape, vec![50, 150, 50, 150], vec![0]).unwrap();
        let mut out = [f32::NAN; 4];
        set.write_pixels(&[0], &mut out);
        assert_eq!(out, [-1.0, 1.0, -1.0, 1.0]);
    }

    #[test]
    fn every_image_has_mean_zero_and_deviation_one() {
        let set = Dataset::new("x", TINY, vec![7, 7, 51, 204], vec![0, 1]).unwrap();
        let mut out = [f32::NAN; 4];
        set.write_pixels(&[1, 0], &mut out);
        for (found, expected) in out.iter().zip([-1.0, 1.0, 0.0, 0.0]) {
            assert!((found - expected).abs() < 1e-6, "{out:?}");
        }
    }
}
