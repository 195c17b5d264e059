//! Data files, plain or gzipped.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::DataError;

/// Most bytes that a file may announce or hold: over five times MNIST's images, and a limit for zip
/// bombs.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

/// The first file in `dir` that has one of the `names`.
pub(crate) fn find(dir: &Path, names: Vec<String>) -> Result<PathBuf, DataError> {
    match names.iter().map(|name| dir.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => Err(DataError::Missing { dir: dir.to_owned(), names }),
    }
}

/// A plain or gzipped file with its read offset.
pub(crate) struct DataReader {
    path: PathBuf,
    offset: u64,
    bytes: Box<dyn Read>,
}

impl DataReader {
    /// Opens a file, gzipped if its name ends in `.gz`.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|error| read_error(path, 0, error))?;
        let bytes: Box<dyn Read> = match path.extension() {
            Some(extension) if extension == "gz" => {
                Box::new(MultiGzDecoder::new(BufReader::new(file)))
            }
            _ => Box::new(file),
        };
        Ok(Self { path: path.to_owned(), offset: 0, bytes })
    }

    /// The file that is read.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes, after unzipping, that have been read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Up to `len` bytes, fewer only at the end of the file. Memory grows with the bytes read, not with
    /// the length that a header announces.
    pub(crate) fn take(&mut self, len: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let outcome = (&mut self.bytes).take(len).read_to_end(&mut bytes);
        self.offset += bytes.len() as u64;
        outcome.map_err(|error| read_error(&self.path, self.offset, error))?;
        Ok(bytes)
    }
}

fn read_error(path: &Path, offset: u64, error: io::Error) -> DataError {
    DataError::Read { path: path.to_owned(), offset, error }
}
