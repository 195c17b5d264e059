//! One safetensors file: flat vectors cut at the tensors' bounds.
//!
//! Tensors lie in the file in the order of the flat vector, so the file is a header and then the
//! vector itself, written piece by piece and never assembled in memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};

use super::{CheckpointError, Crc32, FileEntry};
use crate::{FlatVec, Layout};

/// Largest header that safetensors readers accept, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Elements converted to or from bytes at a time.
const CHUNK: usize = 16_384;

/// A flat vector in a file, with the prefix of its tensors' names.
pub(super) struct PrefixedVector<'a> {
    pub(super) prefix: String,
    pub(super) values: &'a FlatVec,
}

/// Writes and syncs the file `name` in `dir`.
pub(super) fn write(
    dir: &Path,
    name: &str,
    layout: &Layout,
    vectors: &[PrefixedVector<'_>],
) -> Result<FileEntry, CheckpointError> {
    let path = dir.join(name);
    let prefixes = vectors.iter().map(|vector| vector.prefix.as_str());
    let header = header(layout, prefixes)
        .map_err(|cause| CheckpointError::Header { path: path.clone(), cause })?;
    let written = (|| {
        let mut sink = Sink::create(&path)?;
        sink.write(&(header.len() as u64).to_le_bytes())?;
        sink.write(&header)?;
        for piece in vectors.iter().flat_map(|vector| vector.values.pieces()) {
            for chunk in piece.chunks(CHUNK) {
                sink.write_floats(chunk)?;
            }
        }
        sink.finish()
    })();
    let (bytes, crc32) = written.map_err(CheckpointError::io("write", &path))?;
    Ok(FileEntry { name: name.to_owned(), bytes, crc32 })
}

/// Writes and syncs the file `name` in `dir`, with these bytes.
pub(super) fn write_bytes(
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<FileEntry, CheckpointError> {
    let path = dir.join(name);
    let written = (|| {
        let mut sink = Sink::create(&path)?;
        sink.write(bytes)?;
        sink.finish()
    })();
    let (bytes, crc32) = written.map_err(CheckpointError::io("write", &path))?;
    Ok(FileEntry { name: name.to_owned(), bytes, crc32 })
}

/// Reads the file that `entry` describes into one flat vector for each prefix.
pub(super) fn read(
    dir: &Path,
    entry: &FileEntry,
    layout: &Layout,
    prefixes: &[String],
) -> Result<Vec<FlatVec>, CheckpointError> {
    verify(dir, entry)?;
    let path = dir.join(&entry.name);
    let io = || CheckpointError::io("read", &path);
    let mut file = File::open(&path).map_err(io())?;
    let header = read_header(&mut file, entry.bytes).map_err(io())?;
    let metadata = header.map_err(|cause| CheckpointError::Header { path: path.clone(), cause })?;
    let order = plan(&path, &metadata, layout, prefixes)?;
    let mut vectors: Vec<_> = prefixes.iter().map(|_| vec![0.0; layout.total()]).collect();
    let mut bytes = vec![0; CHUNK * size_of::<f32>()];
    for (vector, range) in order {
        for chunk in vectors[vector][range].chunks_mut(CHUNK) {
            read_floats(&mut file, &mut bytes, chunk).map_err(io())?;
        }
    }
    Ok(vectors.into_iter().map(FlatVec::from).collect())
}

/// Checks the size and the checksum of the file that `entry` describes.
pub(super) fn verify(dir: &Path, entry: &FileEntry) -> Result<(), CheckpointError> {
    verify_size(dir, entry)?;
    let path = dir.join(&entry.name);
    let found = checksum(&path).map_err(CheckpointError::io("read", &path))?;
    if found != entry.crc32 {
        return Err(CheckpointError::Checksum { path, expected: entry.crc32, found });
    }
    Ok(())
}

fn verify_size(dir: &Path, entry: &FileEntry) -> Result<(), CheckpointError> {
    let path = dir.join(&entry.name);
    let found = path.metadata().map_err(CheckpointError::io("read", &path))?.len();
    if found != entry.bytes {
        return Err(CheckpointError::Size { path, expected: entry.bytes, found });
    }
    Ok(())
}

fn header<'a>(
    layout: &Layout,
    prefixes: impl Iterator<Item = &'a str>,
) -> Result<Vec<u8>, SafeTensorError> {
    let mut infos = Vec::new();
    let mut start = 0;
    for prefix in prefixes {
        for (tensor, range) in layout.tensor_ranges() {
            let end = start + range.len() * size_of::<f32>();
            let info = TensorInfo {
                dtype: Dtype::F32,
                shape: tensor.shape.clone(),
                data_offsets: (start, end),
            };
            infos.push((format!("{prefix}{}", tensor.name), info));
            start = end;
        }
    }
    // Tells PyTorch's readers that the shapes are row-major.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut header = serde_json::to_vec(&Metadata::new(Some(about), infos)?)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    Ok(header)
}

fn read_header(file: &mut File, size: u64) -> io::Result<Result<Metadata, SafeTensorError>> {
    let mut length = [0; 8];
    if size < length.len() as u64 {
        return Ok(Err(SafeTensorError::HeaderTooSmall));
    }
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Ok(Err(SafeTensorError::HeaderTooLarge));
    }
    if length > size - 8 {
        return Ok(Err(SafeTensorError::InvalidHeaderLength));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let metadata: Metadata = match serde_json::from_slice(&header) {
        Ok(metadata) => metadata,
        Err(error) => return Ok(Err(SafeTensorError::InvalidHeaderDeserialization(error))),
    };
    if metadata.data_len() as u64 != size - 8 - length {
        return Ok(Err(SafeTensorError::MetadataIncompleteBuffer));
    }
    Ok(Ok(metadata))
}

/// The destination of each tensor, in file order: index of the vector, and range of elements.
fn plan(
    path: &Path,
    metadata: &Metadata,
    layout: &Layout,
    prefixes: &[String],
) -> Result<Vec<(usize, Range<usize>)>, CheckpointError> {
    let path = || path.to_owned();
    let mut places = BTreeMap::new();
    for (vector, prefix) in prefixes.iter().enumerate() {
        for (tensor, range) in layout.tensor_ranges() {
            let name = format!("{prefix}{}", tensor.name);
            let info = metadata.info(&name).ok_or_else(|| CheckpointError::MissingTensor {
                path: path(),
                tensor: name.clone(),
            })?;
            if info.dtype != Dtype::F32 {
                let found = info.dtype;
                return Err(CheckpointError::WrongType { path: path(), tensor: name, found });
            }
            if info.shape != tensor.shape {
                return Err(CheckpointError::WrongShape {
                    path: path(),
                    tensor: name,
                    expected: tensor.shape.clone(),
                    found: info.shape.clone(),
                });
            }
            places.insert(name, (vector, range));
        }
    }
    let place = |tensor: String| {
        let place = places.remove(&tensor);
        place.ok_or_else(|| CheckpointError::UnknownTensor { path: path(), tensor })
    };
    metadata.offset_keys().into_iter().map(place).collect()
}

fn read_floats(file: &mut File, bytes: &mut [u8], values: &mut [f32]) -> io::Result<()> {
    let bytes = &mut bytes[..size_of_val(values)];
    file.read_exact(bytes)?;
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*bytes);
    }
    Ok(())
}

fn checksum(path: &Path) -> io::Result<Crc32> {
    let mut file = File::open(path)?;
    let mut crc = crc32fast::Hasher::new();
    let mut bytes = vec![0; CHUNK * size_of::<f32>()];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(Crc32(crc.finalize())),
            n => crc.update(&bytes[..n]),
        }
    }
}

/// A file that is being written, with its size and checksum so far.
struct Sink {
    file: File,
    crc: crc32fast::Hasher,
    written: u64,
    bytes: Vec<u8>,
}

impl Sink {
    fn create(path: &Path) -> io::Result<Self> {
        let file = File::create_new(path)?;
        Ok(Sink { file, crc: crc32fast::Hasher::new(), written: 0, bytes: Vec::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.crc.update(bytes);
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn write_floats(&mut self, values: &[f32]) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.write(&bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    fn finish(self) -> io::Result<(u64, Crc32)> {
        self.file.sync_all()?;
        Ok((self.written, Crc32(self.crc.finalize())))
    }
}
