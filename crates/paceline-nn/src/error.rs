//! Errors of loading data.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::{DataShape, cifar, idx};

/// Why a data set could not be loaded; messages read after "failed to load data: …".
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A directory has no file of any data set.
    #[error("no data in {}: looked for {} and for {}, plain or .gz", .dir.display(), idx::FILES, cifar::FILES)]
    Unrecognised {
        /// The directory that was looked in.
        dir: PathBuf,
    },
    /// None of the accepted names exists.
    #[error("no {} in {} (also looked for {})", .names[0], .dir.display(), .names[1..].join(", "))]
    Missing {
        /// The directory that was looked in.
        dir: PathBuf,
        /// Every accepted name, the usual one first.
        names: Vec<String>,
    },
    /// A file could not be opened, read or unzipped.
    #[error("{}: {at}{error}", .path.display(), at = place(*.offset))]
    Read {
        /// The file.
        path: PathBuf,
        /// Bytes (after unzipping) that had been read before.
        offset: u64,
        /// The operating system's error.
        #[source]
        error: io::Error,
    },
    /// A file is not the IDX file that its name promises.
    #[error("{}: byte {offset}: {fault}", .path.display())]
    Idx {
        /// The file.
        path: PathBuf,
        /// Where the offending bytes start, counted after unzipping.
        offset: u64,
        /// What is wrong there.
        fault: IdxFault,
    },
    /// A file is not the CIFAR-10 file that its name promises.
    #[error("{}: byte {offset}: {fault}", .path.display())]
    Cifar {
        /// The file.
        path: PathBuf,
        /// Where the offending bytes start, counted after unzipping.
        offset: u64,
        /// What is wrong there.
        fault: CifarFault,
    },
    /// The numbers of pixels and labels do not match.
    #[error("{name}: {bytes} bytes of images for {labels} labels, expected {pixels} for each")]
    Lengths {
        /// The set.
        name: String,
        /// Bytes of images.
        bytes: usize,
        /// Number of labels.
        labels: usize,
        /// Bytes per image.
        pixels: usize,
    },
    /// A line of a file of costs is not a cost.
    #[error("{}: line {line}: `{found}` is not a positive number", .path.display())]
    Cost {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// The line's text.
        found: String,
    },
    /// A file of costs belongs to another data set.
    #[error("{}: {found} costs for {samples} samples, expected one line per sample", .path.display())]
    Costs {
        /// The file.
        path: PathBuf,
        /// Costs in it.
        found: usize,
        /// Samples in the training half.
        samples: usize,
    },
    /// A label is not one of the classes.
    #[error("{name}: label {label} of sample {index}, expected less than {classes}")]
    Label {
        /// The set.
        name: String,
        /// The first sample with a bad label.
        index: usize,
        /// Its label.
        label: u8,
        /// Number of classes.
        classes: usize,
    },
    /// Training and test images differ in shape.
    #[error("training images are {train}, test images {test}")]
    Halves {
        /// Shape of the training half.
        train: DataShape,
        /// Shape of the test half.
        test: DataShape,
    },
}

/// A fault at one place of an IDX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdxFault {
    /// The two bytes at the start are not zero.
    Magic {
        /// The bytes found.
        found: [u8; 2],
    },
    /// Elements are not unsigned bytes.
    ElementType {
        /// The type byte found; 0x08 is unsigned bytes.
        found: u8,
    },
    /// The number of dimensions is not that of images (3) or labels (1).
    Dimensions {
        /// Dimensions expected.
        expected: u8,
        /// Dimensions found.
        found: u8,
    },
    /// A dimension of zero.
    Empty,
    /// More elements than this reader admits.
    TooLarge {
        /// Bytes that the header announces, `u64::MAX` if beyond that.
        announced: u64,
        /// The most that is admitted.
        limit: u64,
    },
    /// The file ends early.
    Truncated {
        /// Length that the header announces (or the header itself needs), in bytes.
        expected: u64,
    },
    /// The file goes on after the last element.
    Trailing {
        /// Length that the header announces, in bytes.
        expected: u64,
    },
    /// Another number of labels than images.
    Count {
        /// Number of images, from the other file.
        images: usize,
        /// Number of labels found.
        labels: usize,
    },
    /// A label that is not one of the classes.
    Label {
        /// The label found.
        found: u8,
        /// Number of classes.
        classes: usize,
    },
}

impl fmt::Display for IdxFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found: [a, b] } => {
                write!(f, "expected the IDX magic 00 00, found {a:02x} {b:02x}")
            }
            Self::ElementType { found } => {
                write!(f, "expected element type 08 (unsigned bytes), found {found:02x}")
            }
            Self::Dimensions { expected, found } => {
                write!(f, "expected {expected} dimensions, found {found}")
            }
            Self::Empty => write!(f, "expected a dimension of at least 1, found 0"),
            Self::TooLarge { announced, limit } => {
                write!(f, "expected at most {limit} bytes of data, found a header for {announced}")
            }
            Self::Truncated { expected } => {
                write!(f, "expected {expected} bytes, found the end of the file")
            }
            Self::Trailing { expected } => {
                write!(f, "expected the end of the file after {expected} bytes, found more")
            }
            Self::Count { images, labels } => {
                write!(f, "expected {images} labels, one per image, found {labels}")
            }
            Self::Label { found, classes } => {
                write!(f, "expected a label below {classes}, found {found}")
            }
        }
    }
}

/// A fault at one place of a CIFAR-10 file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CifarFault {
    /// The file ends before its first record or inside one.
    Record {
        /// Bytes of a record.
        expected: usize,
        /// Bytes left of the file.
        found: usize,
    },
    /// More bytes than this reader admits.
    TooLarge {
        /// The most that is admitted.
        limit: u64,
    },
    /// A label that is not one of the classes.
    Label {
        /// The label found.
        found: u8,
        /// Number of classes.
        classes: usize,
    },
}

impl fmt::Display for CifarFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { expected, found } => {
                write!(f, "expected a record of {expected} bytes, found {found} bytes to the end")
            }
            Self::TooLarge { limit } => write!(f, "expected at most {limit} bytes, found more"),
            Self::Label { found, classes } => {
                write!(f, "expected a label below {classes}, found {found}")
            }
        }
    }
}
/// The position of an I/O error in a file, unless it is the beginning.
fn place(offset: u64) -> String {
    if offset > 0 { format!("byte {offset}: ") } else { String::new() }
}
