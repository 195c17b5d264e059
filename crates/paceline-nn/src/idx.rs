//! The IDX files of MNIST and its relatives.
//!
//! An IDX file is a header and raw elements: two zero bytes, a type byte (0x08, unsigned bytes), the
//! number of dimensions, one big-endian `u32` per dimension, then the elements in row-major order.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::{DataError, DataShape, Dataset, Half, IdxFault};

/// Classes of MNIST and Fashion-MNIST; the files themselves do not say.
const CLASSES: usize = 10;

/// The most data, in bytes, that a file may announce or hold: over five times MNIST's images, and
/// an end to zip bombs.
const MAX_BYTES: u64 = 256 << 20;

const UNSIGNED_BYTES: u8 = 0x08;

/// Loads one half from the files in `dir`.
pub(crate) fn load(dir: &Path, half: Half) -> Result<Dataset, DataError> {
    let images = Idx::<3>::read(&find(dir, half, "images", 3)?)?;
    let labels = Idx::<1>::read(&find(dir, half, "labels", 1)?)?;
    labels.check_labels(images.dims[0])?;
    let [_, height, width] = images.dims;
    let shape = DataShape { channels: 1, height, width, classes: CLASSES };
    Dataset::new(format!("{}/{half}", dir.display()), shape, images.elements, labels.elements)
}

/// The first file that exists among the accepted names.
fn find(dir: &Path, half: Half, kind: &str, dims: u8) -> Result<PathBuf, DataError> {
    let prefix = match half {
        Half::Train => "train",
        Half::Test => "t10k",
    };
    let name = |dot, gz| format!("{prefix}-{kind}{dot}idx{dims}-ubyte{gz}");
    let names = vec![name("-", ""), name("-", ".gz"), name(".", ""), name(".", ".gz")];
    match names.iter().map(|name| dir.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => Err(DataError::Missing { dir: dir.to_owned(), names }),
    }
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
        let mut reader = Reader::open(path)?;
        let dims = Self::read_header(&mut reader)?;
        let len = Self::elements(&reader, dims)?;
        // One byte more than announced tells a file that goes on from one that ends.
        let elements = reader.take(len + 1)?;
        let (found, end) = (elements.len() as u64, Self::HEADER + len);
        if found < len {
            return Err(reader.fault(reader.offset, IdxFault::Truncated { expected: end }));
        }
        if found > len {
            return Err(reader.fault(end, IdxFault::Trailing { expected: end }));
        }
        Ok(Self { path: reader.path, dims: dims.map(|dim| dim as usize), elements })
    }

    fn read_header(reader: &mut Reader) -> Result<[u32; D], DataError> {
        let header = reader.take(Self::HEADER)?;
        let byte = |at: usize| header.get(at).copied();
        let end = reader.offset;
        let truncated = || IdxFault::Truncated { expected: Self::HEADER };
        let (Some(a), Some(b), Some(kind), Some(dims)) = (byte(0), byte(1), byte(2), byte(3))
        else {
            return Err(reader.fault(end, truncated()));
        };
        if (a, b) != (0, 0) {
            return Err(reader.fault(0, IdxFault::Magic { found: [a, b] }));
        }
        if kind != UNSIGNED_BYTES {
            return Err(reader.fault(2, IdxFault::ElementType { found: kind }));
        }
        if usize::from(dims) != D {
            let expected = D as u8;
            return Err(reader.fault(3, IdxFault::Dimensions { expected, found: dims }));
        }
        let (words, rest) = header[4..].as_chunks::<4>();
        if words.len() != D || !rest.is_empty() {
            return Err(reader.fault(end, truncated()));
        }
        Ok(std::array::from_fn(|i| u32::from_be_bytes(words[i])))
    }

    /// Number of elements that the header announces, within bounds.
    fn elements(reader: &Reader, dims: [u32; D]) -> Result<u64, DataError> {
        if let Some(index) = dims.iter().position(|&dim| dim == 0) {
            return Err(reader.fault(4 + 4 * index as u64, IdxFault::Empty));
        }
        let announced = dims.iter().fold(1u64, |len, &dim| len.saturating_mul(u64::from(dim)));
        if announced > MAX_BYTES {
            return Err(reader.fault(4, IdxFault::TooLarge { announced, limit: MAX_BYTES }));
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

/// A plain or gzipped file that knows how far it has been read.
struct Reader {
    path: PathBuf,
    offset: u64,
    bytes: Box<dyn Read>,
}

impl Reader {
    fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|error| read_error(path, 0, error))?;
        let bytes: Box<dyn Read> = match path.extension() {
            Some(extension) if extension == "gz" => {
                Box::new(MultiGzDecoder::new(BufReader::new(file)))
            }
            _ => Box::new(file),
        };
        Ok(Self { path: path.to_owned(), offset: 0, bytes })
    }

    /// Up to `len` bytes, fewer only at the end of the file. Memory grows with what is really
    /// there, not with what a header announces.
    fn take(&mut self, len: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let outcome = (&mut self.bytes).take(len).read_to_end(&mut bytes);
        self.offset += bytes.len() as u64;
        outcome.map_err(|error| read_error(&self.path, self.offset, error))?;
        Ok(bytes)
    }

    fn fault(&self, offset: u64, fault: IdxFault) -> DataError {
        DataError::Idx { path: self.path.clone(), offset, fault }
    }
}

fn read_error(path: &Path, offset: u64, error: io::Error) -> DataError {
    DataError::Read { path: path.to_owned(), offset, error }
}
