//! The reader of IDX files, on files made here.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_nn::{Data, DataError, DataShape, DataSource, IdxFault, Split};
use tempfile::TempDir;

/// Two images of 2×3 and their labels, as the bytes of the two files.
struct Files {
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Default for Files {
    fn default() -> Self {
        Self { images: idx(&[2, 2, 3], &[7; 12]), labels: idx(&[2], &[3, 9]) }
    }
}

impl Files {
    fn write(&self, dir: &Path) {
        fs::write(dir.join(IMAGES), &self.images).unwrap();
        fs::write(dir.join(LABELS), &self.labels).unwrap();
    }
}

const IMAGES: &str = "train-images-idx3-ubyte";
const LABELS: &str = "train-labels-idx1-ubyte";

fn idx(dims: &[u32], elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    bytes.extend(elements);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn load(dir: &TempDir, half: Split) -> Result<paceline_nn::Dataset, DataError> {
    DataSource::Dir(dir.path().to_owned()).load(half, 0)
}

/// Loading `files` fails with `fault` at `offset` of the file called `name`, and says so.
#[track_caller]
fn check(files: &Files, name: &str, offset: u64, fault: &IdxFault, message: &str) {
    let dir = TempDir::new().unwrap();
    files.write(dir.path());
    let error = load(&dir, Split::Train).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: byte {offset}: {message}", dir.path().join(name).display())
    );
    match error {
        DataError::Idx { path, offset: found, fault: found_fault } => {
            assert_eq!(path, dir.path().join(name));
            assert_eq!((found, &found_fault), (offset, fault));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn faults_in_either_file_name_the_file_the_byte_and_what_was_expected() {
    use IdxFault::*;
    let limit = 256 << 20;
    let image_cases: [(Vec<u8>, u64, IdxFault, &str); 11] = [
        (
            [&[1, 2, 8, 3][..], &[0; 24]].concat(),
            0,
            Magic { found: [1, 2] },
            "expected the IDX magic 00 00, found 01 02",
        ),
        (
            [&[0, 0, 13, 3][..], &[0; 24]].concat(),
            2,
            ElementType { found: 13 },
            "expected element type 08 (unsigned bytes), found 0d",
        ),
        (
            idx(&[2, 6], &[7; 12]),
            3,
            Dimensions { expected: 3, found: 2 },
            "expected 3 dimensions, found 2",
        ),
        (idx(&[2, 0, 3], &[]), 8, Empty, "expected a dimension of at least 1, found 0"),
        (
            idx(&[4_000_000_000, 28, 28], &[7; 12]),
            4,
            TooLarge { announced: 3_136_000_000_000, limit },
            "expected at most 268435456 bytes of data, found a header for 3136000000000",
        ),
        (
            idx(&[u32::MAX, u32::MAX, u32::MAX], &[7; 12]),
            4,
            TooLarge { announced: u64::MAX, limit },
            "expected at most 268435456 bytes of data, found a header for 18446744073709551615",
        ),
        (vec![], 0, Truncated { expected: 16 }, "expected 16 bytes, found the end of the file"),
        (vec![0, 0], 2, Truncated { expected: 16 }, "expected 16 bytes, found the end of the file"),
        (
            idx(&[2, 2, 3], &[])[..14].to_vec(),
            14,
            Truncated { expected: 16 },
            "expected 16 bytes, found the end of the file",
        ),
        (
            idx(&[2, 2, 3], &[7; 11]),
            27,
            Truncated { expected: 28 },
            "expected 28 bytes, found the end of the file",
        ),
        (
            idx(&[2, 2, 3], &[7; 13]),
            28,
            Trailing { expected: 28 },
            "expected the end of the file after 28 bytes, found more",
        ),
    ];
    for (images, offset, fault, message) in image_cases {
        check(&Files { images, ..Files::default() }, IMAGES, offset, &fault, message);
    }
    let label_cases: [(Vec<u8>, u64, IdxFault, &str); 3] = [
        (
            idx(&[2, 1, 1], &[3, 9]),
            3,
            Dimensions { expected: 1, found: 3 },
            "expected 1 dimensions, found 3",
        ),
        (
            idx(&[3], &[3, 9, 1]),
            4,
            Count { images: 2, labels: 3 },
            "expected 2 labels, one per image, found 3",
        ),
        (
            idx(&[2], &[3, 10]),
            9,
            Label { found: 10, classes: 10 },
            "expected a label below 10, found 10",
        ),
    ];
    for (labels, offset, fault, message) in label_cases {
        check(&Files { labels, ..Files::default() }, LABELS, offset, &fault, message);
    }
}

#[test]
fn a_header_that_lies_within_bounds_costs_no_more_than_the_file() {
    // 200 MiB announced, 12 bytes there: the end of the file is what is reported.
    let images = idx(&[200, 1024, 1024], &[7; 12]);
    let files = Files { images, ..Files::default() };
    let expected = 16 + (200 << 20);
    let message = format!("expected {expected} bytes, found the end of the file");
    check(&files, IMAGES, 28, &IdxFault::Truncated { expected }, &message);
}

#[test]
fn every_accepted_name_plain_or_zipped_gives_the_same_set() {
    let files = Files::default();
    let dir = TempDir::new().unwrap();
    files.write(dir.path());
    let plain = load(&dir, Split::Train).unwrap();
    let shape = DataShape { channels: 1, height: 2, width: 3, classes: 10 };
    assert_eq!((plain.shape(), plain.len(), plain.labels()), (shape, 2, &[3, 9][..]));
    for (images, labels) in [
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
        ("train-images.idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ] {
        let dir = TempDir::new().unwrap();
        for (name, bytes) in [(images, &files.images), (labels, &files.labels)] {
            let bytes = if name.ends_with(".gz") { gzip(bytes) } else { bytes.clone() };
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let set = load(&dir, Split::Train).unwrap();
        assert_eq!((set.images(), set.labels()), (plain.images(), plain.labels()));
    }
}

#[test]
fn a_missing_file_is_named_with_its_alternatives() {
    let dir = TempDir::new().unwrap();
    Files::default().write(dir.path());
    let error = load(&dir, Split::Test).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no t10k-images-idx3-ubyte in {} (also looked for t10k-images-idx3-ubyte.gz, \
             t10k-images.idx3-ubyte, t10k-images.idx3-ubyte.gz)",
            dir.path().display()
        )
    );
}

#[test]
fn a_torn_zip_file_is_a_read_error_with_the_bytes_before_it() {
    let dir = TempDir::new().unwrap();
    let zipped = gzip(&Files::default().images);
    let name = format!("{IMAGES}.gz");
    fs::write(dir.path().join(&name), &zipped[..zipped.len() - 6]).unwrap();
    match load(&dir, Split::Train).unwrap_err() {
        DataError::Read { path, offset, .. } => {
            assert_eq!(path, dir.path().join(name));
            assert!((16..=28).contains(&offset), "{offset}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn halves_of_different_shape_are_refused() {
    let dir = TempDir::new().unwrap();
    Files::default().write(dir.path());
    fs::write(dir.path().join("t10k-images-idx3-ubyte"), idx(&[1, 3, 3], &[0; 9])).unwrap();
    fs::write(dir.path().join("t10k-labels-idx1-ubyte"), idx(&[1], &[0])).unwrap();
    let error = Data::load(&DataSource::Dir(dir.path().to_owned()), 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "training images are 1×2×3 in 10 classes, test images 1×3×3 in 10 classes"
    );
}
