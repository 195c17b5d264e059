//! Errors of reading and writing checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensorError};
use thiserror::Error;

use super::Crc32;
use crate::LayoutError;

/// Why a checkpoint could not be written or read.
///
/// The message includes the cause, so no source is chained.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file operation failed.
    #[error("{action} {}: {cause}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The manifest is malformed.
    #[error("read {}: {cause}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The parser's error.
        cause: serde_json::Error,
    },
    /// The manifest has another format version.
    #[error("read {}: format {found}, where this version reads up to {supported}", path.display())]
    Format {
        /// The manifest.
        path: PathBuf,
        /// Its format version.
        found: u64,
        /// The newest format version that this crate reads.
        supported: u64,
    },
    /// A file is shorter or longer than the manifest says.
    #[error("read {}: {found} bytes, where the manifest says {expected}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes by the manifest.
        expected: u64,
        /// Bytes on disk.
        found: u64,
    },
    /// A file's checksum does not match the manifest.
    #[error("read {}: checksum {found}, where the manifest says {expected}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// CRC-32 by the manifest.
        expected: Crc32,
        /// CRC-32 of the file on disk.
        found: Crc32,
    },
    /// A manifest lists other files than the optimizer needs.
    #[error("read {}: lists {found:?}, where the optimizer calls for {expected:?}", path.display())]
    Files {
        /// The manifest.
        path: PathBuf,
        /// The files it should list.
        expected: Vec<String>,
        /// The files it lists.
        found: Vec<String>,
    },
    /// A file's header is not a safetensors header.
    #[error("read {}: {cause}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        cause: SafeTensorError,
    },
    /// A tensor of the manifest is not in the file.
    #[error("read {}: tensor `{tensor}` is missing", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor in the file is not in the manifest.
    #[error("read {}: tensor `{tensor}` is not in the manifest", path.display())]
    UnknownTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another type than `F32`.
    #[error("read {}: tensor `{tensor}` is {found}, not F32", path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type in the file.
        found: Dtype,
    },
    /// A tensor has another shape than in the manifest.
    #[error(
        "read {}: tensor `{tensor}` has shape {found:?}, where the manifest says {expected:?}",
        path.display()
    )]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape by the manifest.
        expected: Vec<usize>,
        /// Its shape in the file.
        found: Vec<usize>,
    },
    /// The tensors cannot be laid out.
    #[error("lay out the checkpoint's tensors: {0}")]
    Layout(LayoutError),
    /// A vector to be written is not as long as the tensors.
    #[error("write {what}: {found} elements, where the tensors have {expected}")]
    Length {
        /// Which vector.
        what: String,
        /// Elements by the tensors.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// The number of state vectors is not the optimizer's.
    #[error("write optimizer state: {found} vectors, where the optimizer keeps {expected:?}")]
    Slots {
        /// The vectors that the optimizer keeps.
        expected: &'static [&'static str],
        /// The number of vectors given.
        found: usize,
    },
}

impl CheckpointError {
    /// Adds the operation and the path to an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| CheckpointError::Io { action, path, cause }
    }

    /// Whether the checkpoint itself is damaged, rather than inaccessible or from a later version.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            CheckpointError::Io { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            CheckpointError::Format { .. } => false,
            _ => true,
        }
    }
}
