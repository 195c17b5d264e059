//! Another process's segment, for reading.

use std::{
    io,
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use rustix::fs::{FsWord, SealFlags, fcntl_get_seals, fstat, fstatfs};
use thiserror::Error;

use crate::{
    mapping::{Mapping, file_bytes},
    protocol,
};

/// The file system of memory in small pages. The kernel may run out of large pages when they are
/// needed, which ends in `SIGBUS`.
const TMPFS_MAGIC: FsWord = 0x0102_1994;

/// Bytes of the blocks in which `fstat` counts a file's memory, whatever the file system.
const STAT_BLOCK: u64 = 512;

/// Why a file is not read as a segment.
#[derive(Debug, Error)]
pub enum ViewError {
    /// It is not shared memory.
    #[error("it is no memory that can be shared")]
    NotMemory,
    /// It could be made shorter while it is read.
    #[error("it is not sealed against becoming shorter")]
    Unsealed,
    /// Parts of it could be taken away while it is read.
    #[error("it is not sealed against writers, who could take parts of it away")]
    Writable,
    /// It has gaps, for which there may be no memory when they are read.
    #[error("{got} of its bytes have memory where {expected} are needed")]
    Sparse {
        /// Bytes that have memory.
        got: u64,
        /// Bytes that it must have.
        expected: u64,
    },
    /// It is not as long as it must be.
    #[error("it has {got} bytes where {expected} are needed")]
    WrongSize {
        /// Its length.
        got: u64,
        /// Bytes that it must have.
        expected: u64,
    },
    /// It cannot be mapped.
    #[error("it cannot be mapped: {0}")]
    Map(#[from] io::Error),
}

/// A segment that another process owns. Its values may change at any time, so a view only copies them out.
#[derive(Debug)]
pub struct View {
    mapping: Mapping,
}

impl View {
    /// Maps a segment of `elements` values. It does not trust the process that made the file, and refuses one
    /// that might not be readable to its end for ever.
    pub fn map(file: impl AsFd, elements: usize) -> Result<Self, ViewError> {
        let file = file.as_fd();
        // Only files made for sealing have seals, and among those only tmpfs files never lack pages.
        let seals = fcntl_get_seals(file).map_err(|_| ViewError::NotMemory)?;
        let system = fstatfs(file).map_err(io::Error::from)?;
        if system.f_type != TMPFS_MAGIC {
            return Err(ViewError::NotMemory);
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(ViewError::Unsealed);
        }
        // Either seal also keeps every process from making gaps. A page without memory ends the reader as
        // the end of the file does.
        if !seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE) {
            return Err(ViewError::Writable);
        }
        let found = fstat(file).map_err(io::Error::from)?;
        let expected = file_bytes(elements)? as u64;
        let got = u64::try_from(found.st_size).unwrap_or(0);
        // A longer file could have its memory at the end, and gaps where it is read.
        if got != expected {
            return Err(ViewError::WrongSize { got, expected });
        }
        let got = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK);
        if got < expected {
            return Err(ViewError::Sparse { got, expected });
        }
        Ok(View { mapping: Mapping::read_only(file, elements)? })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.mapping.elements()
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the values from `at` on, as they are at that moment; any `f32` may be among them.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub fn read(&self, at: usize, values: &mut [f32]) {
        self.mapping.copy(at, values);
    }

    /// Whether it is published as `version`.
    pub(crate) fn holds(&self, version: u64) -> bool {
        protocol::holds(self.stamp(), version)
    }

    /// The word in its head.
    pub(crate) fn stamp(&self) -> &AtomicU64 {
        self.mapping.stamp()
    }

    /// Copies the first values, and returns whether they were those of `version` throughout.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub fn read_version(&self, version: u64, values: &mut [f32]) -> bool {
        if !self.holds(version) {
            return false;
        }
        self.read(0, values);
        // The values are read before the stamp is read again.
        fence(Ordering::Acquire);
        self.holds(version)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{
        FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
    };

    use super::*;

    #[track_caller]
    fn refused(file: impl AsFd, why: &str) {
        let error = View::map(file, 1000).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_file_that_could_end_under_its_reader_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("test", flags).unwrap();
        ftruncate(&memory, 4096 + 3999).unwrap();
        refused(&memory, "not sealed against becoming shorter");
        fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        refused(&memory, "not sealed against writers");
        fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE).unwrap();
        refused(&memory, "8095 bytes where 8096 are needed");
        ftruncate(&memory, 4096 + 4000).unwrap();
        refused(&memory, "0 of its bytes have memory where 8096 are needed");
        assert!(ftruncate(&memory, 0).is_err());
    }

    #[test]
    fn a_file_that_keeps_its_length_and_its_pages_is_read() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("test", flags).unwrap();
        ftruncate(&memory, 4096 + 4000).unwrap();
        fallocate(&memory, FallocateFlags::empty(), 0, 4096 + 4000).unwrap();
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
        let view = View::map(&memory, 1000).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(&memory, hole, 0, 4096).is_err());
        let mut last = [1.0];
        view.read(999, &mut last);
        assert_eq!(last, [0.0]);
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        refused(std::fs::File::open("/dev/zero").unwrap(), "no memory");
        refused(std::fs::File::open("/proc/self/exe").unwrap(), "no memory");
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        refused(&near, "no memory");
    }

    #[test]
    #[should_panic(expected = "past a segment's end")]
    fn a_copy_from_past_the_end_is_refused() {
        let segment = crate::Segment::new(10).unwrap();
        View::map(&segment, 10).unwrap().read(8, &mut [0.0; 3]);
    }
}
