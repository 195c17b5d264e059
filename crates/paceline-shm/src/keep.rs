//! Reading a publication in place: a reader keeps a version, and it does not change.
//!
//! A publisher has several segments, and writes a version where no reader keeps one. A reader enters the
//! segment that it keeps in a [`Register`] of its own. `protocol.rs` has the order of the steps.
#![expect(
    unsafe_code,
    reason = "refers to memory that its publisher does not write while it is kept"
)]

use std::{
    fmt, io,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::AtomicU64},
};

use crate::{HandoverClient, Segment, View, ViewError, mapping::JointMapping, protocol};

/// The most combinations of segments that stay mapped side by side. Publishers mostly go in step, and
/// then there are as many as each has segments.
const MAX_MAPPED: usize = 8;

/// Where a reader enters the segment of a publisher that it keeps: a segment without values, whose head
/// has the number.
#[derive(Debug)]
pub struct Register(Segment);

impl Register {
    /// A register that keeps no segment.
    pub fn new() -> io::Result<Self> {
        Segment::new(0).map(Register)
    }

    fn word(&self) -> &AtomicU64 {
        self.0.stamp()
    }
}

/// The file, to be handed to the publisher.
impl AsFd for Register {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The segments of one [`Publication`](crate::Publication), as its reader sees them.
#[derive(Debug)]
pub struct Publisher {
    files: Vec<OwnedFd>,
    views: Vec<View>,
    register: Register,
    /// While this is open, the publication regards the register.
    connection: HandoverClient,
}

impl Publisher {
    /// The segments that came over `connection`, of so many values each.
    pub(crate) fn new(
        files: Vec<OwnedFd>,
        elements: usize,
        register: Register,
        connection: HandoverClient,
    ) -> Result<Self, ViewError> {
        let views = files.iter().map(|file| View::map(file, elements)).collect::<Result<_, _>>()?;
        Ok(Publisher { files, views, register, connection })
    }

    /// A segment, to copy from.
    pub fn view(&self, segment: u32) -> Option<&View> {
        self.views.get(segment as usize)
    }

    /// Keeps a segment, if it exists and holds `version` and the register is free.
    fn keep(&self, segment: u32, version: u64) -> bool {
        let view = self.view(segment);
        view.is_some_and(|view| {
            protocol::keep(self.register.word(), view.stamp(), segment, version)
        })
    }
}

/// The values of several publishers, side by side in their order.
pub struct Reader {
    publishers: Vec<Arc<Publisher>>,
    /// Combinations of segments that are mapped.
    mapped: Vec<(Vec<u32>, Arc<JointMapping>)>,
}

impl Reader {
    /// Reads from publishers whose values fill whole pages, but for the last one's. `None` for others, and
    /// for publishers of another user, whom this process does not trust with its memory: their values can
    /// only be copied.
    pub fn new(publishers: Vec<Arc<Publisher>>) -> Option<Self> {
        let lengths: Option<Vec<usize>> =
            publishers.iter().map(|publisher| publisher.view(0).map(View::len)).collect();
        let fits = lengths.is_some_and(|lengths| JointMapping::fits(&lengths));
        let trusted = publishers.iter().all(|publisher| publisher.connection.is_trusted());
        (fits && trusted).then_some(Reader { publishers, mapped: Vec::new() })
    }

    /// Keeps a segment of each publisher, if they hold this version and nothing is kept yet.
    ///
    /// # Panics
    /// If there are more or fewer segments than publishers.
    pub fn keep(&mut self, segments: &[u32], version: u64) -> Option<Kept> {
        assert_eq!(segments.len(), self.publishers.len(), "one segment of each publisher");
        let mapping = self.map(segments)?;
        let mut kept = Kept { mapping, publishers: Vec::with_capacity(segments.len()) };
        for (publisher, &segment) in self.publishers.iter().zip(segments) {
            if !publisher.keep(segment, version) {
                return None;
            }
            kept.publishers.push(Arc::clone(publisher));
        }
        Some(kept)
    }

    fn map(&mut self, segments: &[u32]) -> Option<Arc<JointMapping>> {
        if let Some((_, mapping)) = self.mapped.iter().find(|(mapped, _)| mapped == segments) {
            return Some(Arc::clone(mapping));
        }
        let mut parts = Vec::with_capacity(segments.len());
        for (publisher, &segment) in self.publishers.iter().zip(segments) {
            let view = publisher.view(segment)?;
            parts.push((publisher.files[segment as usize].as_fd(), view.len()));
        }
        let mapping = Arc::new(JointMapping::map(&parts).ok()?);
        if self.mapped.len() >= MAX_MAPPED {
            self.mapped.clear();
        }
        self.mapped.push((segments.to_vec(), Arc::clone(&mapping)));
        Some(mapping)
    }
}

/// A version of all publishers' values, as one slice. It does not change until it is dropped.
pub struct Kept {
    mapping: Arc<JointMapping>,
    publishers: Vec<Arc<Publisher>>,
}

impl Deref for Kept {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the segments came over a handover connection, whose other end sends none but those of a
        // `Publication`. That writes a segment only after it has found it in no register whose connection
        // is open; from `Reader::keep` until `drop` it is in these registers, and `publishers` keep the
        // connections open. A process that breaks these rules belongs to this user or to the superuser
        // (`Reader::new`), and so could write this process's memory by other means as well.
        unsafe { self.mapping.values() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.publishers.iter().for_each(|publisher| protocol::release(publisher.register.word()));
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("values", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Duration,
    };

    use super::*;
    use crate::{Attachment, HandoverListener, Publication};

    const PAGE: usize = 1024;
    const SEGMENTS: usize = 2;

    /// A publication of so many values, and its reader in the same process.
    struct Pair {
        publication: Publication,
        attachment: Attachment,
        publisher: Arc<Publisher>,
    }

    /// Attaches a reader with this register.
    fn attach(publication: &Publication, register: BorrowedFd<'_>) -> (HandoverClient, Attachment) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let nonce = (u128::from(std::process::id()) << 64) | (1 << 32) | u128::from(number);
        let listener = HandoverListener::bind(nonce).unwrap();
        let client = HandoverClient::connect(listener.name()).unwrap();
        client.send(1, &[register]).unwrap();
        let peer = listener.accept(1).unwrap();
        let register = View::map(&peer.files()[0], 0).unwrap();
        (client, publication.readers().attach(peer, register).unwrap())
    }

    fn pair(elements: usize) -> Pair {
        let publication = Publication::new(SEGMENTS, elements).unwrap();
        let register = Register::new().unwrap();
        let (client, attachment) = attach(&publication, register.as_fd());
        let publisher = client.publisher(Duration::from_secs(5), elements, register).unwrap();
        Pair { publication, attachment, publisher: Arc::new(publisher) }
    }

    /// Publishes a version, all of one value; returns its segment.
    fn publish(pair: &mut Pair, version: u64, value: f32) -> Option<u32> {
        let elements = pair.publisher.view(0).unwrap().len();
        pair.publication.begin();
        pair.publication.write(0, &vec![value; elements]);
        pair.publication.publish(version)
    }

    fn reader(pairs: &[Pair]) -> Option<Reader> {
        Reader::new(pairs.iter().map(|pair| Arc::clone(&pair.publisher)).collect())
    }

    #[test]
    fn versions_of_several_publishers_are_one_slice() {
        let mut pairs = [2 * PAGE, PAGE, 5].map(pair);
        for (i, pair) in pairs.iter_mut().enumerate() {
            assert_eq!(publish(pair, 7, i as f32), Some(0));
            assert_eq!(publish(pair, 8, 10.0 + i as f32), Some(1));
        }
        let mut reader = reader(&pairs).unwrap();
        let kept = reader.keep(&[0, 0, 0], 7).unwrap();
        assert_eq!(kept.len(), 3 * PAGE + 5);
        for (range, value) in [(0..2 * PAGE, 0.0), (2 * PAGE..3 * PAGE, 1.0)] {
            assert!(kept[range].iter().all(|&x| x == value));
        }
        assert_eq!(kept[3 * PAGE..], [2.0; 5]);
        assert!(reader.keep(&[1, 1, 1], 8).is_none(), "one at a time");
        drop(kept);
        let kept = reader.keep(&[1, 1, 1], 8).unwrap();
        assert_eq!(kept[3 * PAGE - 1..], [11.0, 12.0, 12.0, 12.0, 12.0, 12.0]);
    }

    #[test]
    fn a_kept_version_is_not_written_until_its_reader_lets_go() {
        let mut pair = pair(PAGE);
        let mut reader = reader(std::slice::from_ref(&pair)).unwrap();
        publish(&mut pair, 1, 1.0);
        let kept = reader.keep(&[0], 1).unwrap();
        assert_eq!(publish(&mut pair, 2, 2.0), Some(1));
        assert_eq!(publish(&mut pair, 3, 3.0), None, "one is kept, the other is the newest");
        // It is no longer told of new versions, but still reads the old one.
        let Pair { mut publication, attachment, .. } = pair;
        drop(attachment);
        assert!(!publication.readers().is_used());
        assert!(publication.begin());
        assert_eq!(publication.publish(4), Some(1));
        assert!(kept.iter().all(|&x| x == 1.0));
        drop(kept);
        assert!(publication.begin());
        assert_eq!(publication.publish(5), Some(0));
    }

    #[test]
    fn a_reader_that_ends_without_letting_go_is_forgotten() {
        let mut publication = Publication::new(SEGMENTS, PAGE).unwrap();
        let mut register = Segment::new(0).unwrap();
        let (client, attachment) = attach(&publication, register.as_fd());
        // As the register of a process says that keeps segment 0.
        register.publish(0);
        let next = |publication: &mut Publication, version| {
            publication.begin();
            publication.publish(version)
        };
        assert_eq!([1, 2].map(|version| next(&mut publication, version)), [Some(1), None]);
        drop(attachment);
        assert_eq!(next(&mut publication, 3), Some(1), "it may still read");
        drop(client);
        assert_eq!(next(&mut publication, 4), Some(0));
    }

    #[test]
    fn a_version_that_is_not_there_on_every_publisher_is_kept_on_none() {
        let mut pairs = [PAGE, PAGE].map(pair);
        publish(&mut pairs[0], 3, 0.0);
        let mut reader = reader(&pairs).unwrap();
        assert!(reader.keep(&[0, 0], 3).is_none(), "the second has published nothing");
        publish(&mut pairs[1], 4, 0.0);
        assert!(reader.keep(&[0, 0], 3).is_none(), "the second has another version");
        assert!(reader.keep(&[0, 9], 3).is_none(), "there is no such segment");
        for pair in &mut pairs {
            assert_eq!(publish(pair, 5, 0.0), Some(1), "the newest stays");
            assert_eq!(publish(pair, 6, 0.0), Some(0), "and nothing is kept");
        }
        assert!(reader.keep(&[0, 0], 6).is_some());
    }

    #[test]
    fn two_readers_of_one_publisher_do_not_keep_at_the_same_time() {
        let mut pair = pair(PAGE);
        publish(&mut pair, 1, 1.0);
        let pairs = [pair];
        let [mut first, mut second] = [reader(&pairs).unwrap(), reader(&pairs).unwrap()];
        let kept = first.keep(&[0], 1).unwrap();
        assert!(second.keep(&[0], 1).is_none());
        assert_eq!(kept[0], 1.0);
        drop(kept);
        assert!(second.keep(&[0], 1).is_some());
    }

    #[test]
    fn combinations_are_mapped_when_they_come_and_not_for_ever() {
        let mut pairs = [(); 4].map(|()| pair(PAGE));
        for pair in &mut pairs {
            assert_eq!([publish(pair, 1, 0.0), publish(pair, 1, 0.0)], [Some(0), Some(1)]);
        }
        let mut reader = reader(&pairs).unwrap();
        for bits in 0..32u32 {
            let segments: Vec<u32> = (0..4).map(|i| bits >> i & 1).collect();
            assert_eq!(reader.keep(&segments, 1).unwrap().len(), 4 * PAGE);
            assert!(reader.mapped.len() <= MAX_MAPPED);
        }
    }

    #[test]
    fn parts_that_do_not_fill_their_pages_are_not_kept() {
        assert!(reader(&[PAGE + 1, PAGE].map(pair)).is_none());
        assert!(reader(&[PAGE, PAGE + 1].map(pair)).is_some());
        assert!(reader(&[]).is_none());
    }

    #[test]
    fn a_publisher_never_writes_where_a_reader_reads() {
        const ELEMENTS: usize = 1 << 14;
        let mut pair = pair(ELEMENTS);
        let mut reader = reader(std::slice::from_ref(&pair)).unwrap();
        let newest = AtomicU64::new(u64::MAX);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let (mut whole, began) = (0, std::time::Instant::now());
                while whole < 200 && began.elapsed().as_secs() < 20 {
                    let newest = newest.load(Ordering::Acquire);
                    let (version, segment) = (newest >> 1, (newest & 1) as u32);
                    if let Some(kept) = reader.keep(&[segment], version) {
                        whole += 1;
                        assert!(kept.iter().all(|&x| x == version as f32), "it was written to");
                    }
                }
                whole
            });
            let mut version = 0;
            while !reads.is_finished() {
                match publish(&mut pair, version, version as f32) {
                    Some(segment) => {
                        newest.store(version << 1 | u64::from(segment), Ordering::Release)
                    }
                    None => std::thread::yield_now(),
                }
                version += 1;
            }
            assert_eq!(reads.join().unwrap(), 200);
        });
    }
}
