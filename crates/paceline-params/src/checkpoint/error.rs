//! What can be wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensorError};
use thiserror::Error;

use super::Crc32;
use crate::LayoutError;

/// Why a checkpoint could not be written or read.
///
/// The message says all there is to say, so causes are not chained behind it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{action} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the file system said.
        cause: io::Error,
    },
    /// The manifest is not what a checkpoint's manifest looks like.
    #[error("read {}: {cause}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        cause: serde_json::Error,
    },
    /// The manifest is of another format.
    #[error("read {}: format {found}, where this version reads {supported}", path.display())]
    Format {
        /// The manifest.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The format that can be read.
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
    /// A file's contents are not those that were written.
    #[error("read {}: checksum {found}, where the manifest says {expected}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// CRC-32 by the manifest.
        expected: Crc32,
        /// CRC-32 of what is on disk.
        found: Crc32,
    },
    /// A manifest lists other files than the optimizer calls for.
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
        /// What is wrong with it.
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
    /// A tensor is of another type than `F32`.
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
    /// The tensors make no model.
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
    /// There are not as many state vectors as the optimizer keeps.
    #[error("write optimizer state: {found} vectors, where the optimizer keeps {expected:?}")]
    Slots {
        /// The vectors that the optimizer keeps.
        expected: &'static [&'static str],
        /// How many were given.
        found: usize,
    },
}

impl CheckpointError {
    /// Turns an error of the file system into one that says what was tried on what.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| CheckpointError::Io { action, path, cause }
    }

    /// Whether the checkpoint itself is damaged, as against out of reach or from a later version.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            CheckpointError::Io { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
            CheckpointError::Format { .. } => false,
            _ => true,
        }
    }
}
