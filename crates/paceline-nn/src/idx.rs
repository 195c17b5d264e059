//! The IDX files of MNIST and its relatives.
//!
//! An IDX file is a header and raw elements: two zero bytes, a type byte (0x08, unsigned bytes), the
//! number of dimensions, one big-endian `u32` per dimension, then the elements in row-major order.

use std::path::{Path, PathBuf};

use crate::file::{DataReader, MAX_BYTES, find};
use crate::{DataError, DataShape, Dataset, IdxFault, Split};

/// The file names, for error messages.
pub(crate) const FILES: &str = "MNIST's (train-images-idx3-ubyte, train-labels-idx1-ubyte, \
                                t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte)";

/// Classes of MNIST and Fashion-MNIST; the files themselves do not say.
const CLASSES: usize = 10;

const UNSIGNED_BYTES: u8 = 0x08;

/// The content of a file.
enum IdxKind {
    Images,
    Labels,
}

/// Whether `dir` has any of the files.
pub(crate) fn recognises(dir: &Path) -> bool {
    let has =
        |half| path(dir, half, IdxKind::Images).is_ok() || path(dir, half, IdxKind::Labels).is_ok();
    has(Split::Train) || has(Split::Test)
}

/// Loads one half from the files in `dir`.
pub(crate) fn load(dir: &Path, half: Split) -> Result<Dataset, DataError> {
    let images = Idx::<3>::read(&path(dir, half, IdxKind::Images)?)?;
    let labels = Idx::<1>::read(&path(dir, half, IdxKind::Labels)?)?;
    labels.check_labels(images.dims[0])?;
    let [_, height, width] = images.dims;
    let shape = DataShape { channels: 1, height, width, classes: CLASSES };
    Dataset::new(format!("{}/{half}", dir.display()), shape, images.elements, labels.elements)
}

fn path(dir: &Path, half: Split, kind: IdxKind) -> Result<PathBuf, DataError> {
    let prefix = match half {
        Split::Train => "train",
        Split::Test => "t10k",
    };
    let (kind, dims) = match kind {
        IdxKind::Images => ("images", 3),
        IdxKind::Labels => ("labels", 1),
    };
    let name = |dot, gz| format!("{prefix}-{kind}{dot}idx{dims}-ubyte{gz}");
    find(dir, vec![name("-", ""), name("-", ".gz"), name(".", ""), name(".", ".gz")])
}

/// One file's contents: `D` extents and their product of bytes.
struct Idx<const D: usize> {
    path: PathBuf,
    dims: [usize; D],
    elements: Vec<u8>,
}

impl<const D: usize> Idx<D> {
    const HEADER: u64 = 4 + 4 * D as u64;

    fn read(path: &Path) -> Result<Self, DataError> {
        let mut reader = DataReader::open(path)?;
        let dims = Self::read_header(&mut reader)?;
        let len = Self::elements(&reader, dims)?;
        // One byte more than announced reveals trailing data.
        let elements = reader.take(len + 1)?;
        let (found, end) = (elements.len() as u64, Self::HEADER + len);
        if found < len {
            return Err(fault(&reader, reader.offset(), IdxFault::Truncated { expected: end }));
        }
        if found > len {
            return Err(fault(&reader, end, IdxFault::Trailing { expected: end }));
        }
        Ok(Self { path: reader.path().to_owned(), dims: dims.map(|dim| dim as usize), elements })
    }

    fn read_header(reader: &mut DataReader) -> Result<[u32; D], DataError> {
        let header = reader.take(Self::HEADER)?;
        let byte = |at: usize| header.get(at).copied();
        let end = reader.offset();
        let truncated = || IdxFault::Truncated { expected: Self::HEADER };
        let (Some(a), Some(b), Some(kind), Some(dims)) = (byte(0), byte(1), byte(2), byte(3))
        else {
            return Err(fault(reader, end, truncated()));
        };
        if (a, b) != (0, 0) {
            return Err(fault(reader, 0, IdxFault::Magic { found: [a, b] }));
        }
        if kind != UNSIGNED_BYTES {
            return Err(fault(reader, 2, IdxFault::ElementType { found: kind }));
        }
        if usize::from(dims) != D {
            let expected = D as u8;
            return Err(fault(reader, 3, IdxFault::Dimensions { expected, found: dims }));
        }
        let (words, rest) = header[4..].as_chunks::<4>();
        if words.len() != D || !rest.is_empty() {
            return Err(fault(reader, end, truncated()));
        }
        Ok(std::array::from_fn(|i| u32::from_be_bytes(words[i])))
    }

    /// Number of elements that the header announces, within bounds.
    fn elements(reader: &DataReader, dims: [u32; D]) -> Result<u64, DataError> {
        if let Some(index) = dims.iter().position(|&dim| dim == 0) {
            return Err(fault(reader, 4 + 4 * index as u64, IdxFault::Empty));
        }
        let announced = dims.iter().fold(1u64, |len, &dim| len.saturating_mul(u64::from(dim)));
        if announced > MAX_BYTES {
            return Err(fault(reader, 4, IdxFault::TooLarge { announced, limit: MAX_BYTES }));
        }
        Ok(announced)
    }
}

impl Idx<1> {
    fn check_labels(&self, images: usize) -> Result<(), DataError> {
        let fault = |offset, fault| DataError::Idx { path: self.path.clone(), offset, fault };
        let labels = self.elements.len();
        if labels != images {
            return Err(fault(4, IdxFault::Count { images, labels }));
        }
        match self.elements.iter().position(|&label| usize::from(label) >= CLASSES) {
            None => Ok(()),
            Some(index) => {
                let found = self.elements[index];
                Err(fault(Self::HEADER + index as u64, IdxFault::Label { found, classes: CLASSES }))
            }
        }
    }
}

fn fault(reader: &DataReader, offset: u64, fault: IdxFault) -> DataError {
    DataError::Idx { path: reader.path().to_owned(), offset, fault }
}
