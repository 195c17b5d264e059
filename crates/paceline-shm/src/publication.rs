//! The writing side of shared parameters: one process publishes versions, others read them in place.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{HandoverPeer, Segment, View, protocol};

/// Segments in which one process publishes versions of the same values. It writes a version where no
/// reader keeps one, and nowhere else.
#[derive(Debug)]
pub struct Publication {
    segments: Vec<Segment>,
    /// The version that was written to each segment last, plus one.
    written: Vec<u64>,
    /// Whether the newest version is in one of the segments.
    current: bool,
    /// The segment that is being written.
    writing: Option<usize>,
    readers: Arc<Readers>,
}

impl Publication {
    /// So many segments of so many values each.
    pub fn new(segments: usize, elements: usize) -> io::Result<Self> {
        let segments: Vec<Segment> =
            (0..segments).map(|_| Segment::new(elements)).collect::<Result<_, _>>()?;
        let files = segments.iter().map(|segment| segment.as_fd().try_clone_to_owned());
        let files = files.collect::<Result<_, _>>()?;
        Ok(Publication {
            written: vec![0; segments.len()],
            current: false,
            writing: None,
            readers: Arc::new(Readers { files, entries: Mutex::default() }),
            segments,
        })
    }

    /// The processes that read it.
    pub fn readers(&self) -> Arc<Readers> {
        Arc::clone(&self.readers)
    }

    /// Begins a version in the segment with the oldest version that no reader keeps. Returns whether there
    /// is one; the newest version stays until there is another.
    pub fn begin(&mut self) -> bool {
        self.readers.forget_gone();
        let mut by_age: Vec<usize> = (0..self.segments.len()).collect();
        by_age.sort_by_key(|&segment| self.written[segment]);
        by_age.truncate(self.segments.len() - usize::from(self.current));
        self.writing = by_age.into_iter().find(|&segment| {
            self.segments[segment].withdraw();
            !self.readers.is_kept(segment as u32)
        });
        self.writing.is_some()
    }

    /// Writes values of the version that was begun, if one was, from element `at` on.
    ///
    /// # Panics
    /// If `values` reaches past the end.
    pub fn write(&mut self, at: usize, values: &[f32]) {
        if let Some(segment) = self.writing {
            self.segments[segment].write(at, values);
        }
    }

    /// Publishes the version that was begun; returns the segment that holds it, if one was begun.
    pub fn publish(&mut self, version: u64) -> Option<u32> {
        self.current = self.writing.is_some();
        let segment = self.writing.take()?;
        self.segments[segment].publish(version);
        self.written[segment] = version + 1;
        Some(segment as u32)
    }
}

/// The processes that read a [`Publication`].
#[derive(Debug)]
pub struct Readers {
    files: Vec<OwnedFd>,
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    register: Arc<View>,
    peer: HandoverPeer,
    /// Its [`Attachment`] exists: it is told of new versions.
    attached: bool,
}

impl Readers {
    /// Sends a process the segments, and regards its `register` from then on.
    pub fn attach(self: &Arc<Self>, peer: HandoverPeer, register: View) -> io::Result<Attachment> {
        let attachment = Attachment { register: Arc::new(register), readers: Arc::clone(self) };
        let register = Arc::clone(&attachment.register);
        // The register counts before the process has anything to keep.
        let mut entries = self.lock();
        entries.push(Entry { register, peer, attached: true });
        let sent = entries.last().map_or(Ok(()), |entry| entry.peer.send(&self.files));
        drop(entries);
        sent.map(|()| attachment)
    }

    /// Whether any process is told of new versions.
    pub fn is_used(&self) -> bool {
        self.lock().iter().any(|entry| entry.attached)
    }

    /// Whether a process reads that segment, which was withdrawn before this is asked.
    fn is_kept(&self, segment: u32) -> bool {
        let mut kept = self.lock();
        kept.retain(|entry| !entry.keeps(segment) || !entry.peer.is_gone());
        kept.iter().any(|entry| entry.keeps(segment))
    }

    /// Forgets processes that are no longer told of new versions and keep none.
    fn forget_gone(&self) {
        let keeps_any = |entry: &Entry| (0..self.files.len() as u32).any(|s| entry.keeps(s));
        self.lock().retain(|entry| entry.attached || keeps_any(entry));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn keeps(&self, segment: u32) -> bool {
        protocol::keeps(self.register.stamp(), segment)
    }
}

/// A process that is told of new versions of a [`Publication`], until this is dropped. A version that it
/// keeps then stays until it lets go of it or ends.
#[derive(Debug)]
pub struct Attachment {
    register: Arc<View>,
    readers: Arc<Readers>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut entries = self.readers.lock();
        for entry in entries.iter_mut().filter(|e| Arc::ptr_eq(&e.register, &self.register)) {
            entry.attached = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HandoverClient, HandoverListener};

    /// A reader whose register the test writes: the number of the segment that it keeps.
    fn attach(publication: &Publication, number: u64) -> (Segment, HandoverClient, Attachment) {
        let nonce = (u128::from(std::process::id()) << 64) | (2 << 32) | u128::from(number);
        let listener = HandoverListener::bind(nonce).unwrap();
        let client = HandoverClient::connect(listener.name()).unwrap();
        let register = Segment::new(0).unwrap();
        client.send(number, &[register.as_fd()]).unwrap();
        let peer = listener.accept(number).unwrap();
        let seen = View::map(&peer.files()[0], 0).unwrap();
        (register, client, publication.readers().attach(peer, seen).unwrap())
    }

    #[test]
    fn a_version_goes_to_the_oldest_segment_that_no_reader_keeps() {
        let mut publication = Publication::new(4, 2).unwrap();
        let mut readers = [0, 1, 2].map(|number| attach(&publication, number));
        let mut next = {
            let mut version = 3;
            move |publication: &mut Publication| {
                version += 1;
                publication.begin();
                publication.publish(version)
            }
        };
        for segment in 0..4 {
            assert_eq!(next(&mut publication), Some(segment));
        }
        readers[0].0.publish(0);
        assert_eq!(next(&mut publication), Some(1));
        readers[1].0.publish(2);
        assert_eq!(next(&mut publication), Some(3));
        assert_eq!(next(&mut publication), Some(1), "two may be kept for long");
        readers[2].0.publish(3);
        assert_eq!(next(&mut publication), None, "three are too many, as the newest stays");
        assert_eq!(next(&mut publication), Some(1), "until a newer version is nowhere");
        readers.iter_mut().for_each(|(register, ..)| register.withdraw());
        assert_eq!(next(&mut publication), Some(0));
    }

    #[test]
    fn nothing_is_written_or_published_that_was_not_begun() {
        let mut publication = Publication::new(2, 2).unwrap();
        let (_register, client, _attachment) = attach(&publication, 7);
        let files = client.receive(std::time::Duration::from_secs(5)).unwrap();
        let view = View::map(&files[0], 2).unwrap();
        publication.write(0, &[1.0; 2]);
        assert_eq!(publication.publish(1), None);
        let mut copy = [9.0; 2];
        view.read(0, &mut copy);
        assert_eq!(copy, [0.0; 2]);
        assert!(publication.begin());
        publication.write(0, &[1.0; 2]);
        assert_eq!(publication.publish(1), Some(0));
        assert!(view.read_version(1, &mut copy) && copy == [1.0; 2]);
    }
}
