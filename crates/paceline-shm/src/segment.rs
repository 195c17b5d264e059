//! A vector of values in memory that other processes can read.
#![expect(unsafe_code, reason = "promises a mapping that no other process writes")]

use std::{
    io,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::AtomicU64,
};

use rustix::{
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
    },
    io::Errno,
};

use crate::{
    mapping::{OwnMapping, file_bytes},
    protocol,
};

/// Values that only this process writes and that other processes may read once they have its file.
#[derive(Debug)]
pub struct Segment {
    mapping: OwnMapping,
    file: OwnedFd,
}

impl Segment {
    /// A segment of so many zeros. It allocates the memory at once, so that a lack of memory shows here.
    pub fn new(elements: usize) -> io::Result<Self> {
        let file = memory_file()?;
        let bytes = file_bytes(elements)? as u64;
        ftruncate(&file, bytes)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        // SAFETY: no other process has the file before it leaves this function, and it is sealed before
        // that: then the mapping made here is the only one that can write, and the file cannot be
        // written to or made shorter in any other way. If a seal fails, file and mapping go at once.
        let mapping = unsafe { OwnMapping::new(file.as_fd(), elements)? };
        let lengths = SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&file, lengths | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(Segment { mapping, file })
    }

    /// Announces that the values are about to change: a reader that copies them now will know.
    pub fn withdraw(&mut self) {
        protocol::withdraw(self.stamp());
    }

    /// The word in its head.
    pub(crate) fn stamp(&self) -> &AtomicU64 {
        self.mapping.stamp()
    }

    /// Writes values from `at` on that other processes read and this one does not.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub fn write(&mut self, at: usize, values: &[f32]) {
        self.mapping.write(at, values);
    }

    /// Announces that the values are those of `version`, whole. The highest number stands for none: a
    /// segment that is published as that stays withdrawn.
    pub fn publish(&mut self, version: u64) {
        protocol::publish(self.stamp(), version);
    }
}

/// Kernels from 6.3 on expect a flag that says the file is not executable; older ones reject it.
fn memory_file() -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create("paceline", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create("paceline", flags),
        made => made,
    }
}

impl Deref for Segment {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.mapping.values()
    }
}

impl DerefMut for Segment {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.mapping.values_mut()
    }
}

/// The file, for processes that may read it.
impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;
    use crate::View;

    #[test]
    fn what_is_written_is_read_elsewhere() {
        let mut segment = Segment::new(5000).unwrap();
        let view = View::map(&segment, 5000).unwrap();
        segment.iter_mut().zip(0u16..).for_each(|(x, i)| *x = f32::from(i));
        let mut copy = [0.0; 3];
        view.read(4997, &mut copy);
        assert_eq!(copy, [4997.0, 4998.0, 4999.0]);
    }

    /// Large ones are copied past the cache, line by line, with what is before and after.
    #[test]
    fn what_is_large_is_copied_whole_from_wherever_to_wherever() {
        let len = (1 << 20) + 37;
        let mut segment = Segment::new(len).unwrap();
        let view = View::map(&segment, len).unwrap();
        let values: Vec<f32> = (0..len as u32).map(|i| i as f32).collect();
        for at in [0, 1, 15, 30] {
            let part = &values[at..len - 2 * at];
            segment.fill(-1.0);
            segment.write(at, part);
            assert!(segment[..at].iter().chain(&segment[len - 2 * at..]).all(|&x| x == -1.0));
            assert_eq!(&segment[at..len - 2 * at], part);
        }
        segment.write(0, &values);
        for (at, to) in [(0, 0), (1, 0), (0, 3), (5, 9), (37, 16)] {
            let mut copy = vec![-1.0; len];
            let end = copy.len() - 20;
            view.read(at, &mut copy[to..end.min(len - at + to)]);
            let got = &copy[to..end.min(len - at + to)];
            assert_eq!(got, &values[at..at + got.len()], "from {at} to {to}");
            assert!(copy[..to].iter().all(|&x| x == -1.0));
        }
    }

    #[test]
    fn a_version_is_read_whole_or_not_at_all() {
        let mut segment = Segment::new(4).unwrap();
        let view = View::map(&segment, 4).unwrap();
        let mut copy = [0.0; 4];
        assert!(!view.read_version(0, &mut copy), "nothing is published yet");
        segment.fill(1.0);
        segment.publish(0);
        assert!(view.read_version(0, &mut copy));
        assert_eq!(copy, [1.0; 4]);
        segment.withdraw();
        segment.fill(2.0);
        assert!(!view.read_version(0, &mut copy));
        segment.publish(2);
        assert!(!view.read_version(0, &mut copy));
        assert!(view.read_version(2, &mut copy));
        segment.publish(u64::MAX);
        assert!(!view.read_version(u64::MAX, &mut copy), "which no version is");
    }

    #[test]
    fn a_reader_that_is_overtaken_knows_it() {
        let mut segment = Segment::new(1 << 14).unwrap();
        let view = View::map(&segment, 1 << 14).unwrap();
        let newest = AtomicU16::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut copy, mut whole) = (vec![0.0; 1 << 14], 0);
                let began = std::time::Instant::now();
                while whole < 200 && began.elapsed().as_secs() < 20 {
                    let version = newest.load(Ordering::Acquire);
                    if view.read_version(u64::from(version), &mut copy) {
                        whole += 1;
                        assert!(copy.iter().all(|&x| x == f32::from(version)), "a torn version");
                    }
                }
                whole
            });
            let mut version = 0;
            while !reader.is_finished() {
                segment.withdraw();
                segment.fill(f32::from(version));
                segment.publish(u64::from(version));
                newest.store(version, Ordering::Release);
                version = (version + 1) % 1000;
                std::thread::yield_now();
            }
            assert_eq!(reader.join().unwrap(), 200);
        });
    }

    #[test]
    fn nobody_else_can_write_to_a_segment_or_change_its_length() {
        let segment = Segment::new(2000).unwrap();
        assert!(ftruncate(&segment, 10).is_err());
        assert!(ftruncate(&segment, 1 << 20).is_err());
        assert!(rustix::io::pwrite(&segment, &[1; 8], 5000).is_err());
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(&segment, hole, 0, 4096).is_err());
        assert!(fcntl_add_seals(&segment, SealFlags::WRITE).is_err());
        // SAFETY: nothing is written, as it cannot even be mapped.
        let mapped = unsafe { OwnMapping::new(segment.as_fd(), 2000) };
        assert!(mapped.is_err());
    }

    #[test]
    fn more_than_there_can_be_is_an_error() {
        assert!(Segment::new(usize::MAX).is_err());
        assert!(Segment::new(usize::MAX / 8).is_err());
    }
}
