//! The binary files of CIFAR-10.
//!
//! A file is a row of records without a header: a byte for the label, then 32×32 bytes of red, as
//! many of green and as many of blue, each row by row. The training half is five files, the test
//! half one. CIFAR-10 has 10,000 records in each; any number from one on is read.

use std::path::{Path, PathBuf};

use crate::file::{DataReader, MAX_BYTES, find};
use crate::{CifarFault, DataError, DataShape, Dataset, Split};

/// The file names, for error messages.
pub(crate) const FILES: &str = "CIFAR-10's (data_batch_1.bin to data_batch_5.bin, test_batch.bin)";

/// Bytes per record: the label and the pixels.
const RECORD: usize = 1 + 3 * PLANE;

/// Bytes per colour of an image.
const PLANE: usize = 32 * 32;

/// Whether `dir` has any of the files.
pub(crate) fn recognises(dir: &Path) -> bool {
    [Split::Train, Split::Test].into_iter().flat_map(stems).any(|stem| path(dir, stem).is_ok())
}

/// Loads one half from the files in `dir`.
pub(crate) fn load(dir: &Path, half: Split) -> Result<Dataset, DataError> {
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for stem in stems(half) {
        for record in read(&path(dir, stem)?)?.chunks_exact(RECORD) {
            labels.push(record[0]);
            images.extend(interleaved(&record[1..]));
        }
    }
    Dataset::new(format!("{}/{half}", dir.display()), DataShape::CIFAR, images, labels)
}

/// Names of the files of one half, without their endings.
fn stems(half: Split) -> &'static [&'static str] {
    match half {
        Split::Train => {
            &["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]
        }
        Split::Test => &["test_batch"],
    }
}

fn path(dir: &Path, stem: &str) -> Result<PathBuf, DataError> {
    find(dir, vec![format!("{stem}.bin"), format!("{stem}.bin.gz")])
}

/// The records of one file, whole and with labels that are classes.
fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let bytes = DataReader::open(path)?.take(MAX_BYTES + 1)?;
    let fault = |at: usize, fault| {
        Err(DataError::Cifar { path: path.to_owned(), offset: at as u64, fault })
    };
    if bytes.len() as u64 > MAX_BYTES {
        return fault(bytes.len() - 1, CifarFault::TooLarge { limit: MAX_BYTES });
    }
    let rest = bytes.len() % RECORD;
    if bytes.is_empty() || rest > 0 {
        return fault(bytes.len() - rest, CifarFault::Record { expected: RECORD, found: rest });
    }
    let classes = DataShape::CIFAR.classes;
    let mut labels = bytes.iter().step_by(RECORD);
    match labels.position(|&label| usize::from(label) >= classes) {
        None => Ok(bytes),
        Some(index) => {
            let found = bytes[index * RECORD];
            fault(index * RECORD, CifarFault::Label { found, classes })
        }
    }
}

/// The pixels of three planes, the colours of a pixel side by side.
fn interleaved(planes: &[u8]) -> impl Iterator<Item = u8> {
    (0..PLANE).flat_map(|at| [planes[at], planes[PLANE + at], planes[2 * PLANE + at]])
}
