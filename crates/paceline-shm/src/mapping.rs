//! The one place where memory is mapped, and where memory that other processes write is read.
#![expect(unsafe_code, reason = "mapping memory, and reading it where another process may write")]

use std::{io, os::fd::BorrowedFd, ptr::NonNull, sync::atomic::AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Bytes before the values, a page: the values stay aligned to pages.
const HEAD: usize = 4096;

/// Bytes of the file that holds `elements` values.
pub(crate) fn file_bytes(elements: usize) -> io::Result<usize> {
    let bytes = elements.checked_mul(size_of::<f32>()).and_then(|bytes| bytes.checked_add(HEAD));
    bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// A read-only mapping of a file with `elements` values behind a head.
///
/// The file must never become shorter than [`file_bytes`], or lose pages: the callers check its seals.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    elements: usize,
}

// SAFETY: a mapping belongs to the process and not to a thread, and what is read through a shared
// `Mapping` is either atomic or copied without a reference to it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn read_only(fd: BorrowedFd<'_>, elements: usize) -> io::Result<Self> {
        Self::map(fd, elements, ProtFlags::READ, MapFlags::SHARED)
    }

    fn map(
        fd: BorrowedFd<'_>,
        elements: usize,
        how: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        let bytes = file_bytes(elements)?;
        // SAFETY: the kernel chooses the place, so nothing that is in use is mapped over.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, how, flags, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, elements })
    }

    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    /// The word in the head.
    pub(crate) fn stamp(&self) -> &AtomicU64 {
        // SAFETY: the head is mapped for as long as `self`, a page is aligned for any integer, and
        // memory that another process may write is read by atomic operations alone. Of a mapping
        // for reading alone the crate only ever loads it.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast()) }
    }

    /// Copies the values from `at` on. Another process may be writing them: each is then an old one,
    /// a new one or a mixture, and so any `f32`.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub(crate) fn copy(&self, at: usize, values: &mut [f32]) {
        let end = at.checked_add(values.len());
        assert!(end.is_some_and(|end| end <= self.elements), "a copy from past a segment's end");
        let large = values.len() >= PAST_CACHE;
        // SAFETY: the source lies inside the mapping, as was just checked; the file never gets
        // shorter, so that it can be read; any bits are an `f32`; `values` is borrowed mutably and
        // so lies elsewhere. No reference to the source exists, so nothing is assumed of its values.
        // A write at the same time is beyond what the language defines; by what the machine does,
        // which is to copy bytes, the copy's values are then arbitrary, and nothing else.
        unsafe { copy(self.values().add(at), values.as_mut_ptr(), values.len(), large) }
    }

    fn values(&self) -> *mut f32 {
        // SAFETY: the file has a head before its values, and so has the mapping.
        unsafe { self.start.as_ptr().add(HEAD) }.cast()
    }
}

/// From this many values on, a copy goes past the cache: it would evict other data, and be evicted before it
/// is read. It also saves reading the lines that are overwritten (measured: a sixth of a round of four
/// workers with 100 MB each).
const PAST_CACHE: usize = 1 << 20;

/// Copies `len` values, past the cache where they are part of something `large`.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`], but that the source may be written meanwhile by another process.
unsafe fn copy(from: *const f32, to: *mut f32, len: usize, large: bool) {
    #[cfg(target_arch = "x86_64")]
    if large {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        const LINE: usize = 64 / size_of::<f32>();
        let head = to.align_offset(64).min(len);
        let lines = (len - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: all offsets are at most `len`, up to which the caller vouches for both sides; the
        // target of each line is aligned, since `head` is where it begins to be.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            for line in 0..lines {
                let from = from.add(head + line * LINE).cast::<__m128i>();
                let to = to.add(head + line * LINE).cast::<__m128i>();
                let [a, b, c, d] = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
                _mm_stream_si128(to, a);
                _mm_stream_si128(to.add(1), b);
                _mm_stream_si128(to.add(2), c);
                _mm_stream_si128(to.add(3), d);
            }
            std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
            // Other threads see the copy once they see any later write.
            _mm_sfence();
        }
        return;
    }
    // SAFETY: the caller vouches for it.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let bytes = file_bytes(self.elements).expect("it was mapped with that length");
        // SAFETY: it was mapped at this place with this length, and no reference into it outlives
        // `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping what is mapped does not fail");
    }
}

/// A read-only mapping of the values of several files side by side, as one vector. The files must meet the
/// conditions of [`Mapping`].
#[derive(Debug)]
pub(crate) struct JointMapping {
    start: NonNull<u8>,
    elements: usize,
}

// SAFETY: as for `Mapping`; what is read through references is not written, see `values`.
unsafe impl Send for JointMapping {}
// SAFETY: as above.
unsafe impl Sync for JointMapping {}

impl JointMapping {
    /// Whether vectors of these lengths can lie side by side: all but the last must fill their pages.
    pub(crate) fn fits(lengths: &[usize]) -> bool {
        let whole = |len: &usize| len.is_multiple_of(HEAD / size_of::<f32>());
        lengths.split_last().is_some_and(|(last, others)| *last > 0 && others.iter().all(whole))
    }

    /// Maps the values of these files, so many each, whose lengths [`fits`](Self::fits) accepts.
    pub(crate) fn map(parts: &[(BorrowedFd<'_>, usize)]) -> io::Result<Self> {
        let lengths: Vec<usize> = parts.iter().map(|(_, elements)| *elements).collect();
        assert!(Self::fits(&lengths), "parts that do not fill their pages");
        let elements = lengths.iter().sum();
        let bytes = joint_bytes(elements)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the place, so nothing that is in use is mapped over.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let joint = JointMapping { start, elements };
        let mut at = 0;
        for &(fd, elements) in parts {
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            let len = elements * size_of::<f32>();
            // SAFETY: it lies inside what was just reserved, since the parts add up to it, and at the
            // start of a page, since those before fill theirs; nothing refers to it yet.
            unsafe {
                let place = joint.start.as_ptr().add(at).cast();
                mmap(place, len, ProtFlags::READ, flags, fd, HEAD as u64)?;
            }
            at += len;
        }
        Ok(joint)
    }

    /// The values.
    ///
    /// # Safety
    /// No process writes the files until the borrow ends.
    pub(crate) unsafe fn values(&self) -> &[f32] {
        // SAFETY: mapped from end to end and aligned (to a page) for as long as `self`; any bits are an
        // `f32`; not written meanwhile, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.elements) }
    }
}

fn joint_bytes(elements: usize) -> io::Result<usize> {
    let bytes =
        elements.checked_mul(size_of::<f32>()).filter(|&bytes| bytes <= isize::MAX as usize);
    bytes.ok_or(io::ErrorKind::OutOfMemory.into())
}

impl Drop for JointMapping {
    fn drop(&mut self) {
        let bytes = joint_bytes(self.elements).expect("it was mapped with that length");
        // SAFETY: it was reserved at this place with this length, and no reference into it outlives
        // `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping what is mapped does not fail");
    }
}

/// The one mapping of a file through which it can be written.
#[derive(Debug)]
pub(crate) struct OwnMapping(Mapping);

impl OwnMapping {
    /// Maps the file, with all its pages in place.
    ///
    /// # Safety
    /// Until this mapping is gone nobody writes to the file by another way.
    pub(crate) unsafe fn new(fd: BorrowedFd<'_>, elements: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        Mapping::map(fd, elements, ProtFlags::READ | ProtFlags::WRITE, flags).map(OwnMapping)
    }

    pub(crate) fn stamp(&self) -> &AtomicU64 {
        self.0.stamp()
    }

    pub(crate) fn values(&self) -> &[f32] {
        // SAFETY: the values are mapped, aligned (to a page) and initialised (any bits are an `f32`)
        // for as long as `self`; only this mapping can write them, as was promised to `new`, and
        // that takes `&mut self`. That others read them changes nothing.
        unsafe { std::slice::from_raw_parts(self.0.values(), self.0.elements) }
    }

    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        // SAFETY: as for `values`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.values(), self.0.elements) }
    }

    /// Writes the values from `at` on.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub(crate) fn write(&mut self, at: usize, values: &[f32]) {
        let large = self.0.elements >= PAST_CACHE;
        let part = &mut self.values_mut()[at..][..values.len()];
        // SAFETY: both are slices of the same length, and one of them is borrowed mutably.
        unsafe { copy(values.as_ptr(), part.as_mut_ptr(), values.len(), large) }
    }
}
