//! Reading for long: who computes from what another process publishes says so, and it stays as it is.
//!
//! A publisher has several segments, and writes a version where nobody is reading. Readers say in a
//! [`Register`] of their own which segment they keep, and then look whether it is still published; the
//! publisher withdraws a segment, and then looks whether anybody keeps it. One of the two sees the other.

use std::{
    fmt, io,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use crate::{
    Segment, View, ViewError,
    mapping::Joint,
    segment::{WITHDRAWN, stamp},
};

/// The most combinations of segments that stay mapped side by side. Publishers mostly go in step, and
/// then there are as many as each has segments.
const MAPPED: usize = 8;

/// Where a reader says which segment of a publisher it keeps: a segment without values, whose head has
/// its number.
#[derive(Debug)]
pub struct Register(Segment);

impl Register {
    /// One that keeps nothing.
    pub fn new() -> io::Result<Self> {
        Segment::new(0).map(Register)
    }

    fn is_free(&self) -> bool {
        self.0.stamp().load(Ordering::Relaxed) == WITHDRAWN
    }

    fn keep(&self, segment: u32) {
        // What was kept before was read before; and nothing is looked at before the publisher can see this.
        self.0.stamp().store(stamp(u64::from(segment)), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    fn release(&self) {
        // All that was read was read before.
        self.0.stamp().store(WITHDRAWN, Ordering::Release);
    }
}

/// The file, to be handed to the publisher, who sees it through a [`View`] of no values.
impl AsFd for Register {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What one publisher publishes in, and where it is told what is kept of it.
#[derive(Debug)]
pub struct Publisher {
    files: Vec<OwnedFd>,
    views: Vec<View>,
    register: Register,
}

impl Publisher {
    /// Of these segments, of so many values each, which come from who looks at the register before it
    /// writes to one of them.
    pub(crate) fn of(
        files: Vec<OwnedFd>,
        elements: usize,
        register: Register,
    ) -> Result<Self, ViewError> {
        let views = files.iter().map(|file| View::of(file, elements)).collect::<Result<_, _>>()?;
        Ok(Publisher { files, views, register })
    }

    /// A segment, to copy from.
    pub fn view(&self, segment: u32) -> Option<&View> {
        self.views.get(segment as usize)
    }

    /// Keeps a segment, if it is one and holds `version`.
    fn keep(&self, segment: u32, version: u64) -> bool {
        let Some(view) = self.view(segment) else { return false };
        self.register.keep(segment);
        let holds = view.holds(version);
        if !holds {
            self.register.release();
        }
        holds
    }
}

/// What several publishers publish, side by side in their order.
pub struct Reader {
    publishers: Vec<Arc<Publisher>>,
    /// Combinations of segments that are mapped.
    joints: Vec<(Vec<u32>, Arc<Joint>)>,
}

impl Reader {
    /// Of publishers whose values fill whole pages, but for the last one's. `None` for others: those can
    /// only be copied from.
    pub fn new(publishers: Vec<Arc<Publisher>>) -> Option<Self> {
        let lengths: Option<Vec<usize>> =
            publishers.iter().map(|publisher| publisher.view(0).map(View::len)).collect();
        let fits = lengths.is_some_and(|lengths| Joint::fits(&lengths));
        fits.then_some(Reader { publishers, joints: Vec::new() })
    }

    /// Keeps a segment of each publisher, if they hold this version and nothing is kept yet.
    ///
    /// # Panics
    /// If there are more or fewer segments than publishers.
    pub fn keep(&mut self, segments: &[u32], version: u64) -> Option<Kept> {
        assert_eq!(segments.len(), self.publishers.len(), "one segment of each publisher");
        if !self.publishers.iter().all(|publisher| publisher.register.is_free()) {
            return None;
        }
        let joint = self.joint(segments)?;
        let mut kept = Kept { joint, publishers: Vec::with_capacity(segments.len()) };
        for (publisher, &segment) in self.publishers.iter().zip(segments) {
            if !publisher.keep(segment, version) {
                return None;
            }
            kept.publishers.push(Arc::clone(publisher));
        }
        Some(kept)
    }

    fn joint(&mut self, segments: &[u32]) -> Option<Arc<Joint>> {
        if let Some((_, joint)) = self.joints.iter().find(|(of, _)| of == segments) {
            return Some(Arc::clone(joint));
        }
        let mut parts = Vec::with_capacity(segments.len());
        for (publisher, &segment) in self.publishers.iter().zip(segments) {
            let view = publisher.view(segment)?;
            parts.push((publisher.files[segment as usize].as_fd(), view.len()));
        }
        let joint = Arc::new(Joint::of(&parts).ok()?);
        if self.joints.len() >= MAPPED {
            self.joints.clear();
        }
        self.joints.push((segments.to_vec(), Arc::clone(&joint)));
        Some(joint)
    }
}

/// A version of all publishers' values, as one slice. It stays as it is until it is dropped.
pub struct Kept {
    joint: Arc<Joint>,
    publishers: Vec<Arc<Publisher>>,
}

impl Deref for Kept {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.joint.values()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.publishers.iter().for_each(|publisher| publisher.register.release());
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("values", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 1024;

    /// Publishers of so many values each, with what they publish in and see registers through.
    fn publishers(lengths: &[usize]) -> (Vec<[Segment; 2]>, Vec<View>, Vec<Arc<Publisher>>) {
        let mut all = (Vec::new(), Vec::new(), Vec::new());
        for &len in lengths {
            let segments = [Segment::new(len).unwrap(), Segment::new(len).unwrap()];
            let files = segments.iter().map(|s| s.as_fd().try_clone_to_owned().unwrap()).collect();
            let register = Register::new().unwrap();
            all.1.push(View::of(&register, 0).unwrap());
            all.0.push(segments);
            all.2.push(Arc::new(Publisher::of(files, len, register).unwrap()));
        }
        all
    }

    #[test]
    fn what_several_publish_is_one_slice_and_they_see_that_it_is_kept() {
        let (mut segments, registers, publishers) = publishers(&[2 * PAGE, PAGE, 5]);
        for (i, [first, second]) in segments.iter_mut().enumerate() {
            first.fill(i as f32);
            second.fill(10.0 + i as f32);
            first.publish(7);
            second.publish(8);
        }
        let mut reader = Reader::new(publishers).unwrap();
        let kept = reader.keep(&[0, 0, 0], 7).unwrap();
        assert_eq!(kept.len(), 3 * PAGE + 5);
        for (range, value) in [(0..2 * PAGE, 0.0), (2 * PAGE..3 * PAGE, 1.0)] {
            assert!(kept[range].iter().all(|&x| x == value));
        }
        assert_eq!(kept[3 * PAGE..], [2.0; 5]);
        assert!(registers.iter().all(|register| register.keeps(0) && !register.keeps(1)));
        assert!(reader.keep(&[1, 1, 1], 8).is_none(), "one at a time");
        drop(kept);
        assert!(registers.iter().all(|register| !register.keeps(0)));
        let kept = reader.keep(&[1, 1, 1], 8).unwrap();
        assert_eq!(kept[3 * PAGE - 1..], [11.0, 12.0, 12.0, 12.0, 12.0, 12.0]);
    }

    #[test]
    fn what_is_withdrawn_or_another_version_is_not_kept_by_halves() {
        let (mut segments, registers, publishers) = publishers(&[PAGE, PAGE]);
        segments.iter_mut().for_each(|[first, _]| first.publish(3));
        segments[1][0].withdraw();
        let mut reader = Reader::new(publishers).unwrap();
        assert!(reader.keep(&[0, 0], 3).is_none());
        segments[1][0].publish(4);
        assert!(reader.keep(&[0, 0], 3).is_none());
        assert!(reader.keep(&[0, 9], 3).is_none(), "a segment that there is not");
        assert!(registers.iter().all(|register| !register.keeps(0)));
        segments[1][0].publish(3);
        assert!(reader.keep(&[0, 0], 3).is_some());
    }

    #[test]
    fn combinations_are_mapped_when_they_come_and_not_for_ever() {
        let (mut segments, _, publishers) = publishers(&[PAGE; 4]);
        segments.iter_mut().flatten().for_each(|segment| segment.publish(1));
        let mut reader = Reader::new(publishers).unwrap();
        for bits in 0..32u32 {
            let of: Vec<u32> = (0..4).map(|i| bits >> i & 1).collect();
            assert_eq!(reader.keep(&of, 1).unwrap().len(), 4 * PAGE);
            assert!(reader.joints.len() <= MAPPED);
        }
    }

    #[test]
    fn what_cannot_lie_side_by_side_is_not_kept() {
        assert!(Reader::new(publishers(&[PAGE + 1, PAGE]).2).is_none());
        assert!(Reader::new(publishers(&[PAGE, PAGE + 1]).2).is_some());
        assert!(Reader::new(Vec::new()).is_none());
    }

    #[test]
    fn a_publisher_that_looks_never_writes_where_somebody_reads() {
        let (mut segments, registers, publishers) = publishers(&[1 << 14]);
        let mut reader = Reader::new(publishers).unwrap();
        let newest = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let (mut whole, began) = (0, std::time::Instant::now());
                while whole < 200 && began.elapsed().as_secs() < 20 {
                    let version = newest.load(Ordering::Acquire);
                    let segment = (version % 2) as u32;
                    if let Some(kept) = reader.keep(&[segment], version) {
                        whole += 1;
                        assert!(kept.iter().all(|&x| x == version as f32), "it was written to");
                    }
                }
                whole
            });
            let mut version = 0;
            while !reads.is_finished() {
                let index = (version % 2) as usize;
                let segment = &mut segments[0][index];
                segment.withdraw();
                if registers[0].keeps(index as u32) {
                    std::thread::yield_now();
                    continue;
                }
                segment.fill(version as f32);
                segment.publish(version);
                newest.store(version, Ordering::Release);
                version += 1;
            }
            assert_eq!(reads.join().unwrap(), 200);
        });
    }
}
