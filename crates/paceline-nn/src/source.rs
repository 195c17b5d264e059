//! Sources of data, and loading of the training and test splits.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{DataError, Dataset, cifar, embedded, idx};

/// A split of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Samples to learn from.
    Train,
    /// Samples to measure accuracy on.
    Test,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Test => "test",
        })
    }
}

/// A source of data; written `embedded` or as a directory's path.
///
/// A directory called `embedded` can be named as `./embedded`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum DataSource {
    /// The procedural set made from a seed (see [`embedded`](crate::embedded)).
    #[default]
    Embedded,
    /// A directory with the four IDX files of MNIST or Fashion-MNIST, or the six binary files of
    /// CIFAR-10, plain or gzipped, recognised by their names. IDX files take precedence.
    Dir(PathBuf),
}

impl DataSource {
    /// Loads or makes one half; `seed` matters to the embedded set only.
    ///
    /// # Errors
    ///
    /// Fails if a file is missing, unreadable or not what its name says.
    pub fn load(&self, half: Split, seed: u64) -> Result<Dataset, DataError> {
        match self {
            Self::Embedded => Ok(embedded::generate(half, seed)),
            Self::Dir(dir) if idx::recognises(dir) => idx::load(dir, half),
            Self::Dir(dir) if cifar::recognises(dir) => cifar::load(dir, half),
            Self::Dir(dir) => Err(DataError::Unrecognised { dir: dir.clone() }),
        }
    }
}

impl FromStr for DataSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "embedded" => Self::Embedded,
            dir => Self::Dir(PathBuf::from(dir)),
        })
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Dir(dir) => dir.display().fmt(f),
        }
    }
}

/// Both halves of a data set, of one shape.
#[derive(Clone, Debug)]
pub struct Data {
    /// Samples to learn from.
    pub train: Dataset,
    /// Samples to measure accuracy on.
    pub test: Dataset,
}

impl Data {
    /// Loads or makes both halves; one half alone comes from [`DataSource::load`].
    ///
    /// # Errors
    ///
    /// As [`DataSource::load`], and if the halves differ in shape.
    pub fn load(source: &DataSource, seed: u64) -> Result<Self, DataError> {
        let train = source.load(Split::Train, seed)?;
        let test = source.load(Split::Test, seed)?;
        if train.shape() != test.shape() {
            return Err(DataError::Halves { train: train.shape(), test: test.shape() });
        }
        Ok(Self { train, test })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_read_back_as_written() {
        for text in ["embedded", "./embedded", "/data/mnist", "data"] {
            let source: DataSource = text.parse().unwrap();
            assert_eq!(source.to_string(), text);
            assert_eq!(source == DataSource::Embedded, text == "embedded");
        }
    }
}
