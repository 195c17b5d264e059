//! The embedded data set: shapes drawn from a seed, nothing to download.
//!
//! Ten [`SHAPES`] on 28×28 pixels, each up to four pixels off the middle in both directions, between
//! 12 and 18 pixels across, tilted by up to 11 degrees, mostly light on dark but one in eight dark on
//! light, among specks and noise.
//!
//! **Why a linear model fails.** A linear score is a weighted sum of pixels, so it can learn only one
//! template per class. Here the classes' mean images are much alike: moving a shape about and
//! changing its size smears its mean into a blob, and the other polarity cancels part of that. The
//! classes differ in how pixels *differ from their neighbours*, anywhere in the image: a hidden layer
//! has to learn it place by place, a convolution learns it once. Test
//! accuracy: softmax regression stays near 34 %, the MLP near 86 %, the CNN passes 90 % in its second
//! epoch and reaches 95 %.

use crate::rng::RandomStream;
use crate::{DataShape, Dataset, Split};

/// Samples in the training half.
pub const TRAIN_SAMPLES: usize = 12_000;

/// Samples in the test half.
pub const TEST_SAMPLES: usize = 2_000;

/// Names of the classes, by label.
pub const SHAPES: [&str; 10] =
    ["disc", "ring", "square", "frame", "plus", "cross", "triangle", "rows", "columns", "tee"];

const SIDE: usize = 28;

/// Largest offset of a shape from the middle, in pixels either way.
const REACH: f32 = 4.0;

/// Specks per image.
const SPECKS: usize = 5;

/// Noise of a pixel, in grey levels either way.
const NOISE: f32 = 40.0;

/// Makes one half; the same `seed` gives the same bytes on every platform, and the halves of one
/// seed have no image in common but by chance.
pub fn generate(half: Split, seed: u64) -> Dataset {
    let (stream, len) = match half {
        Split::Train => (0, TRAIN_SAMPLES),
        Split::Test => (1, TEST_SAMPLES),
    };
    let mut images = vec![0; len * SIDE * SIDE];
    let mut labels = vec![0; len];
    for (index, (image, label)) in images.chunks_exact_mut(SIDE * SIDE).zip(&mut labels).enumerate()
    {
        let mut rng = RandomStream::new(seed, &[stream, index as u64]);
        *label = rng.below(SHAPES.len() as u32) as u8;
        DrawnShape::new(*label, &mut rng).draw(&mut rng, image);
    }
    let name = format!("embedded/{half}");
    Dataset::new(name, DataShape::MNIST, images, labels).expect("one label per image, below ten")
}

/// One shape somewhere on a background.
struct DrawnShape {
    label: u8,
    centre: [f32; 2],
    /// Half the extent of the shape, in pixels.
    radius: f32,
    /// Cosine and sine of the tilt.
    tilt: [f32; 2],
    /// Grey level of the background.
    background: f32,
    /// Grey levels between background and shape, negative for dark on light.
    contrast: f32,
}

impl DrawnShape {
    fn new(label: u8, rng: &mut RandomStream) -> Self {
        let radius = rng.between(6.0, 9.0);
        let mut place = || SIDE as f32 / 2.0 + rng.between(-REACH, REACH);
        let centre = [place(), place()];
        let slope = rng.between(-0.2, 0.2);
        let cosine = 1.0 / (1.0 + slope * slope).sqrt();
        let contrast = rng.between(45.0, 95.0);
        let dark = rng.below(8) == 0;
        Self {
            label,
            centre,
            radius,
            tilt: [cosine, slope * cosine],
            background: rng.between(96.0, 160.0),
            contrast: if dark { -contrast } else { contrast },
        }
    }

    fn draw(&self, rng: &mut RandomStream, image: &mut [u8]) {
        let mut cover = [0.0; SIDE * SIDE];
        for (i, cover) in cover.iter_mut().enumerate() {
            *cover = self.cover(i % SIDE, i / SIDE);
        }
        for _ in 0..SPECKS {
            speck(rng, &mut cover);
        }
        for (pixel, cover) in image.iter_mut().zip(cover) {
            let noise = rng.between(-NOISE, NOISE);
            *pixel = (self.background + self.contrast * cover + noise).clamp(0.0, 255.0) as u8;
        }
    }

    /// Share of a pixel that the shape covers, by the distance of the pixel's centre from the edge.
    fn cover(&self, x: usize, y: usize) -> f32 {
        let (x, y) = (x as f32 + 0.5 - self.centre[0], y as f32 + 0.5 - self.centre[1]);
        let [cosine, sine] = self.tilt;
        let distance =
            distance(self.label, x * cosine + y * sine, y * cosine - x * sine, self.radius);
        (0.5 - distance).clamp(0.0, 1.0)
    }
}

/// Puts a patch of two or three pixels a side, in either polarity, somewhere.
fn speck(rng: &mut RandomStream, cover: &mut [f32]) {
    let side = 2 + rng.below(2) as usize;
    let mut place = || rng.below((SIDE - side + 1) as u32) as usize;
    let (left, top) = (place(), place());
    let level = rng.between(-1.0, 1.0);
    for row in cover.chunks_exact_mut(SIDE).skip(top).take(side) {
        row[left..left + side].fill(level);
    }
}

/// Distance in pixels, negative inside, from the edge of a shape of radius `r` around the origin.
fn distance(label: u8, x: f32, y: f32, r: f32) -> f32 {
    /// Half the width of a stroke.
    const STROKE: f32 = 1.3;
    /// From one bar of a grating to the next.
    const PERIOD: f32 = 5.0;
    let half = r * 0.85;
    let circle = |r: f32| (x * x + y * y).sqrt() - r;
    let square = |half: f32| bar(x, y, half, half);
    let diagonal = std::f32::consts::FRAC_1_SQRT_2;
    let (u, v) = ((x + y) * diagonal, (y - x) * diagonal);
    let grating = |x: f32| ((x + half) % PERIOD - PERIOD / 2.0).abs() - STROKE;
    match label {
        0 => circle(r),
        1 => circle(r - STROKE).abs() - STROKE,
        2 => square(half),
        3 => square(half - STROKE).abs() - STROKE,
        4 => bar(x, y, r, STROKE).min(bar(x, y, STROKE, r)),
        5 => bar(u, v, r, STROKE).min(bar(u, v, STROKE, r)),
        6 => (y - half).max(x.abs() * 0.894 - (y + half) * 0.447),
        7 => square(half).max(grating(y)),
        8 => square(half).max(grating(x)),
        _ => bar(x, y + half - STROKE, half, STROKE).min(bar(x, y, STROKE, half)),
    }
}

/// Distance from a rectangle of half-width `w` and half-height `h` around the origin.
fn bar(x: f32, y: f32, w: f32, h: f32) -> f32 {
    (x.abs() - w).max(y.abs() - h)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a, 64 bits.
    fn hash(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    #[test]
    fn values_are_stable() {
        let test = generate(Split::Test, 1);
        assert_eq!(test.labels()[..8], [5, 0, 2, 4, 1, 2, 2, 9]);
        assert_eq!(test.image(0)[..8], [146, 167, 146, 111, 144, 167, 100, 115]);
        assert_eq!(
            hash(&test.images()[..100 * SIDE * SIDE]),
            0x3499_c6d6_4ba6_ee6c,
            "first hundred images"
        );
        assert_eq!(hash(test.images()), 0x9c36_865b_13ca_bb63, "all images");
    }

    #[test]
    fn halves_and_seeds_have_nothing_in_common() {
        let test = generate(Split::Test, 1);
        assert_ne!(test.image(0), generate(Split::Train, 1).image(0));
        assert_ne!(test.image(0), generate(Split::Test, 2).image(0));
    }

    #[test]
    fn classes_are_about_equally_frequent() {
        let test = generate(Split::Test, 3);
        for label in 0..10 {
            let count = test.labels().iter().filter(|&&other| other == label).count();
            // Four standard deviations of a binomial with p = 0.1.
            assert!((146..=254).contains(&count), "{count} of class {label}");
        }
    }
}
