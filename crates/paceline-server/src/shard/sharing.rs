//! Memory that a shard shares with the workers of its host.
//!
//! A shard publishes in segments of its own, which all of these workers read. Each worker computes in
//! segments of its own, from which the shard folds. Either side trusts nothing but the seals, except that
//! a worker reads a version in place.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use paceline_params::Block;
use paceline_shm::{
    Attachment, HandoverListener, Publication, Readers, View, ViewError, check_room,
};
use paceline_wire::message::{SEGMENTS, ShardSpec};
use thiserror::Error;

/// Segments that a shard publishes in: one for the newest version, one for the next in the making, and two
/// for workers that still compute from older ones. If workers keep more, versions are sent as blocks.
const PUBLISHED: usize = 4;

/// Turns sharing off where this host has less shared memory than these shards and their workers need.
pub(crate) fn disable_without_room(specs: &mut [ShardSpec]) {
    let needed = |spec: &ShardSpec| {
        let values = spec.layout.shard_range(spec.index).len() * size_of::<f32>();
        let segments = spec.sharers.map(|n| PUBLISHED as u64 + u64::from(n) * u64::from(SEGMENTS));
        segments.map_or(0, |segments| segments.saturating_mul(values as u64))
    };
    let wanted = specs.iter().map(needed).fold(0, u64::saturating_add);
    if wanted > 0
        && let Err(error) = check_room(wanted)
    {
        tracing::warn!(
            "workers on this host go by TCP, not by shared memory: {error}; give it more (for a \
             container, --shm-size), or say --transport tcp"
        );
        specs.iter_mut().for_each(|spec| spec.sharers = None);
    }
}

/// Errors of a worker that claims to share memory.
#[derive(Debug, Error)]
pub(crate) enum SharingError {
    #[error("it shares memory though it was not invited to")]
    NotInvited,
    #[error("it did not come to where memory is shared: {0}")]
    NotThere(std::io::Error),
    #[error("it brings {0} files, not {SEGMENTS} segments and a register")]
    WrongCount(usize),
    #[error("its segment {index} cannot be used: {error}")]
    Unusable { index: usize, error: ViewError },
    #[error("a gradient in segment {0}, which it does not share")]
    NoSegment(u32),
    #[error("its register cannot be used: {0}")]
    NoRegister(ViewError),
}

/// The state that a shard's data connections need to share memory.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// The workers that read the shard's versions.
    readers: Arc<Readers>,
    /// Values in a worker's segment.
    elements: usize,
}

impl Sharing {
    /// Makes the segments that the shard publishes in, if sharing is wanted and possible.
    pub(crate) fn open(spec: &ShardSpec) -> Option<(Arc<Sharing>, Mirror)> {
        spec.sharers?;
        match Publication::new(PUBLISHED, spec.layout.shard_range(spec.index).len()) {
            Ok(publication) => {
                let (readers, elements) = (publication.readers(), spec.layout.total());
                let sharing = Sharing { readers, elements };
                Some((Arc::new(sharing), Mirror::new(publication, spec)))
            }
            Err(error) => {
                let shard = spec.index;
                tracing::warn!(
                    "failed to make shared memory, so shard {shard} goes by TCP: {error}"
                );
                None
            }
        }
    }

    /// Listens for a worker that connects from this host. The address is only a hint: reaching the listener
    /// is the proof.
    pub(crate) fn invite(&self, peer: &str) -> Option<HandoverListener> {
        let address: SocketAddr = peer.parse().ok()?;
        let is_here = UdpSocket::bind((address.ip().to_canonical(), 0)).is_ok();
        let listener = is_here.then(|| HandoverListener::bind(rand::random()))?;
        listener.inspect_err(|error| tracing::warn!("failed to invite {peer}: {error}")).ok()
    }

    /// Maps the segments that the worker sent, and sends it the shard's. `None` if that fails through no
    /// fault of the worker, which then uses TCP.
    pub(crate) fn accept(
        &self,
        listener: &HandoverListener,
        session: u64,
    ) -> Result<Option<Shared>, SharingError> {
        let peer = listener.accept(session).map_err(SharingError::NotThere)?;
        let count = peer.files().len();
        let Some((register, segments)) =
            peer.files().split_last().filter(|_| count == SEGMENTS as usize + 1)
        else {
            return Err(SharingError::WrongCount(count));
        };
        let unmapped = |error| {
            tracing::warn!("failed to map a worker's memory, so it goes by TCP: {error}");
            Ok(None)
        };
        let mut views = Vec::with_capacity(segments.len());
        for (index, file) in segments.iter().enumerate() {
            match View::map(file, self.elements) {
                Ok(view) => views.push(Arc::new(view)),
                Err(ViewError::Map(error)) => return unmapped(error),
                Err(error) => return Err(SharingError::Unusable { index, error }),
            }
        }
        let register = match View::map(register, 0) {
            Ok(view) => view,
            Err(ViewError::Map(error)) => return unmapped(error),
            Err(error) => return Err(SharingError::NoRegister(error)),
        };
        match self.readers.attach(peer, register) {
            Ok(attachment) => Ok(Some(Shared { views, _attachment: attachment })),
            Err(error) => {
                tracing::debug!("failed to share memory with a worker: {error}");
                Ok(None)
            }
        }
    }

    /// Whether any worker would read a version in shared memory.
    pub(crate) fn is_used(&self) -> bool {
        self.readers.is_used()
    }
}

/// The memory that a worker shares, for as long as it is connected.
#[derive(Debug)]
pub(crate) struct Shared {
    views: Vec<Arc<View>>,
    _attachment: Attachment,
}

impl Shared {
    /// The segment that the worker names for a gradient.
    pub(crate) fn view(&self, segment: u32) -> Result<Arc<View>, SharingError> {
        let view = self.views.get(segment as usize).cloned();
        view.ok_or(SharingError::NoSegment(segment))
    }
}

/// A copy of the published parameters, in memory that workers of this host read.
#[derive(Debug)]
pub(crate) struct Mirror {
    publication: Publication,
    /// Where each block's values begin.
    starts: Vec<usize>,
    /// The blocks that are already written, while a version is being written.
    written: Option<Vec<bool>>,
}

impl Mirror {
    fn new(publication: Publication, spec: &ShardSpec) -> Self {
        let first = spec.layout.shard_range(spec.index).start;
        let blocks = spec.layout.shard_blocks(spec.index);
        let starts = blocks.map(|block| spec.layout.block_range(block).start - first).collect();
        Mirror { publication, starts, written: None }
    }

    /// Begins a version. It is not written if workers keep all segments but that of the newest version.
    pub(crate) fn begin(&mut self) {
        self.written = self.publication.begin().then(|| vec![false; self.starts.len()]);
    }

    /// Writes a block of the version that was begun, if one was.
    pub(crate) fn write(&mut self, block: usize, values: &[f32]) {
        if let Some(written) = &mut self.written {
            written[block] = true;
            self.publication.write(self.starts[block], values);
        }
    }

    /// Publishes the version that was begun, if one was, with the blocks that did not change. Returns the
    /// segment that holds it.
    pub(crate) fn finish(&mut self, version: u64, blocks: &[Block]) -> Option<u32> {
        let written = self.written.take().unwrap_or_default();
        for (block, _) in written.iter().enumerate().filter(|(_, written)| !**written) {
            self.publication.write(self.starts[block], blocks[block].values());
        }
        self.publication.publish(version)
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, time::Duration};

    use paceline_core::Version;
    use paceline_params::{Layout, OptimizerSpec, TensorSpec, WireType};
    use paceline_shm::{HandoverClient, Register, Segment};

    use super::*;

    fn spec(sharers: Option<u32>) -> ShardSpec {
        ShardSpec {
            index: 1,
            layout: Layout::new(vec![TensorSpec::new("w", [10])], 2, 2).unwrap(),
            optimizer: OptimizerSpec::SGD.into(),
            wire: WireType::F32,
            version: Version(0),
            staging: 1,
            fold_at_close: true,
            patience: Duration::ZERO,
            sharers,
            history: 0,
        }
    }

    #[test]
    fn a_mirror_holds_every_block_of_the_last_versions() {
        let spec = spec(Some(1));
        let (sharing, mut mirror) = Sharing::open(&spec).unwrap();
        let len = spec.layout.shard_range(1).len();
        let listener = sharing.invite("127.0.0.1:9").unwrap();
        let client = HandoverClient::connect(listener.name()).unwrap();
        let segments = [(); SEGMENTS as usize].map(|()| Segment::new(sharing.elements).unwrap());
        let register = Register::new().unwrap();
        let files: Vec<_> = segments.iter().map(AsFd::as_fd).chain([register.as_fd()]).collect();
        client.send(5, &files).unwrap();
        assert!(!sharing.is_used());
        let shared = sharing.accept(&listener, 5).unwrap().unwrap();
        assert!(sharing.is_used());
        let files = client.receive(Duration::from_secs(5)).unwrap();
        let views: Vec<View> = files.iter().map(|file| View::map(file, len).unwrap()).collect();
        assert_eq!(views.len(), PUBLISHED);
        let mut blocks: Vec<Block> = spec
            .layout
            .shard_blocks(1)
            .map(|block| {
                Block::new(vec![0.0; spec.layout.block_range(block).len()], spec.optimizer.of(0))
            })
            .collect();
        assert_eq!(mirror.finish(3, &blocks), None, "no version was begun");
        for version in 4..8u64 {
            mirror.begin();
            blocks[0] = Block::new(vec![version as f32; 2], spec.optimizer.of(0));
            mirror.write(0, blocks[0].values());
            let segment = mirror.finish(version, &blocks).unwrap() as usize;
            let mut copy = vec![9.0; len];
            assert!(views[segment].read_version(version, &mut copy));
            assert_eq!(copy[..2], [version as f32; 2]);
            assert!(copy[2..].iter().all(|&x| x == 0.0), "untouched blocks are there, too");
            let before = (segment + PUBLISHED - 1) % PUBLISHED;
            assert_eq!(views[before].read_version(version - 1, &mut copy), version > 4);
        }
        drop(shared);
        assert!(!sharing.is_used());
    }

    #[test]
    fn only_callers_of_this_host_are_invited() {
        let (sharing, _) = Sharing::open(&spec(Some(1))).unwrap();
        assert!(sharing.invite("127.0.0.1:9").is_some());
        assert!(sharing.invite("[::ffff:127.0.0.1]:9").is_some());
        assert!(sharing.invite("192.0.2.1:9").is_none(), "an address of nobody's");
        assert!(sharing.invite("somebody").is_none());
        assert!(Sharing::open(&spec(None)).is_none());
    }

    #[test]
    fn too_little_room_means_tcp() {
        let mut specs = [spec(Some(1)), spec(Some(u32::MAX))];
        specs[1].layout = Layout::new(vec![TensorSpec::new("w", [1 << 40])], 1 << 20, 2).unwrap();
        disable_without_room(&mut specs[..1]);
        assert_eq!(specs[0].sharers, Some(1));
        disable_without_room(&mut specs);
        assert_eq!([specs[0].sharers, specs[1].sharers], [None, None]);
    }
}
