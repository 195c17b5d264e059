//! Memory that a shard shares with the workers of its host.
//!
//! A shard publishes in segments of its own, which all of them read; each of them computes in
//! segments of its own, which the shard folds from. Who reads trusts nothing but the seals.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use paceline_params::Block;
use paceline_shm::{Meeting, Segment, View, ViewError, check_room};
use paceline_wire::message::{SEGMENTS, ShardSpec};
use thiserror::Error;

/// Segments that a shard publishes in: one for the newest version, one for the next in the making, and two
/// for who has not come as far. Where more is kept, versions go as blocks.
const PUBLISHED: usize = 4;

/// Leaves sharing out where this host gives less to it than these shards and their workers need.
pub(crate) fn settle(specs: &mut [ShardSpec]) {
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

/// Why a worker that says it shares memory does not.
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

/// What a shard's data connections need to share memory.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// What the shard publishes in.
    files: Vec<OwnedFd>,
    /// Values in a worker's segment.
    elements: usize,
    /// Where each sharer says what it keeps.
    registers: Mutex<Vec<Arc<View>>>,
}

impl Sharing {
    /// Makes what the shard publishes in, if sharing is wanted and possible.
    pub(crate) fn open(spec: &ShardSpec) -> Option<(Arc<Sharing>, Mirror)> {
        spec.sharers?;
        let make = || {
            let segments: Vec<Segment> = (0..PUBLISHED)
                .map(|_| Segment::new(spec.layout.shard_range(spec.index).len()))
                .collect::<Result<_, _>>()?;
            let files = segments.iter().map(|segment| segment.as_fd().try_clone_to_owned());
            let files = files.collect::<Result<_, _>>()?;
            Ok::<_, std::io::Error>((files, segments))
        };
        match make() {
            Ok((files, segments)) => {
                let elements = spec.layout.total();
                let sharing = Sharing { files, elements, registers: Mutex::default() };
                Some((Arc::new(sharing), Mirror::new(segments, spec)))
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

    /// Invites a worker that calls from this host. That it calls from here is a first look: to come
    /// to the meeting is the proof.
    pub(crate) fn invite(&self, peer: &str) -> Option<Meeting> {
        let address: SocketAddr = peer.parse().ok()?;
        let is_here = UdpSocket::bind((address.ip().to_canonical(), 0)).is_ok();
        let meeting = is_here.then(|| Meeting::open(rand::random()))?;
        meeting.inspect_err(|error| tracing::warn!("failed to invite {peer}: {error}")).ok()
    }

    /// The worker has come: maps what it brought, gives it what the shard publishes in. `None`
    /// where that fails for no fault of the worker's, which then goes by TCP.
    pub(crate) fn meet(
        self: &Arc<Self>,
        meeting: &Meeting,
        session: u64,
    ) -> Result<Option<Shared>, SharingError> {
        let guest = meeting.guest(session).map_err(SharingError::NotThere)?;
        let count = guest.files().len();
        let Some((register, segments)) =
            guest.files().split_last().filter(|_| count == SEGMENTS as usize + 1)
        else {
            return Err(SharingError::WrongCount(count));
        };
        let unmapped = |error| {
            tracing::warn!("failed to map a worker's memory, so it goes by TCP: {error}");
            Ok(None)
        };
        let mut views = Vec::with_capacity(segments.len());
        for (index, file) in segments.iter().enumerate() {
            match View::of(file, self.elements) {
                Ok(view) => views.push(Arc::new(view)),
                Err(ViewError::Map(error)) => return unmapped(error),
                Err(error) => return Err(SharingError::Unusable { index, error }),
            }
        }
        let register = match View::of(register, 0) {
            Ok(view) => Arc::new(view),
            Err(ViewError::Map(error)) => return unmapped(error),
            Err(error) => return Err(SharingError::NoRegister(error)),
        };
        if let Err(error) = guest.give(&self.files) {
            tracing::debug!("failed to share memory with a worker: {error}");
            return Ok(None);
        }
        self.registers().push(Arc::clone(&register));
        Ok(Some(Shared { views, register, sharing: Arc::clone(self) }))
    }

    /// Whether anybody would read what is published in shared memory.
    pub(crate) fn is_used(&self) -> bool {
        !self.registers().is_empty()
    }

    /// Whether anybody reads that segment, which was withdrawn before this is asked.
    pub(crate) fn is_kept(&self, segment: u32) -> bool {
        self.registers().iter().any(|register| register.keeps(segment))
    }

    fn registers(&self) -> MutexGuard<'_, Vec<Arc<View>>> {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker shares, for as long as it is connected.
#[derive(Debug)]
pub(crate) struct Shared {
    views: Vec<Arc<View>>,
    register: Arc<View>,
    sharing: Arc<Sharing>,
}

impl Shared {
    /// The segment that it says a gradient is in.
    pub(crate) fn view(&self, segment: u32) -> Result<Arc<View>, SharingError> {
        let view = self.views.get(segment as usize).cloned();
        view.ok_or(SharingError::NoSegment(segment))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sharing.registers().retain(|register| !Arc::ptr_eq(register, &self.register));
    }
}

/// The published parameters once more, where workers of this host read them.
#[derive(Debug)]
pub(crate) struct Mirror {
    segments: Vec<Segment>,
    /// Where each block's values begin.
    starts: Vec<usize>,
    /// Which version was written to each last, plus one.
    written: Vec<u64>,
    /// Whether the newest version is in one of them.
    current: bool,
    /// The one that is written, and which blocks are written already, while a version is.
    making: Option<(usize, Vec<bool>)>,
}

impl Mirror {
    fn new(segments: Vec<Segment>, spec: &ShardSpec) -> Self {
        let first = spec.layout.shard_range(spec.index).start;
        let blocks = spec.layout.shard_blocks(spec.index);
        let starts = blocks.map(|block| spec.layout.block_range(block).start - first).collect();
        Mirror { written: vec![0; segments.len()], current: false, segments, starts, making: None }
    }

    /// A version is being made, where the oldest is that nobody keeps; nowhere, if all are kept but the
    /// newest version, which stays until there is another.
    pub(crate) fn begin(&mut self, is_kept: impl Fn(u32) -> bool) {
        let mut by_age: Vec<usize> = (0..self.segments.len()).collect();
        by_age.sort_by_key(|&segment| self.written[segment]);
        by_age.truncate(self.segments.len() - usize::from(self.current));
        let free = by_age.into_iter().find(|&segment| {
            self.segments[segment].withdraw();
            !is_kept(segment as u32)
        });
        self.making = free.map(|segment| (segment, vec![false; self.starts.len()]));
    }

    /// A block of it, if it was begun.
    pub(crate) fn write(&mut self, block: usize, values: &[f32]) {
        if let Some((segment, written)) = &mut self.making {
            written[block] = true;
            self.segments[*segment].write(self.starts[block], values);
        }
    }

    /// It is made, if it was begun; blocks that did not change are written, too. Returns the segment
    /// that holds it.
    pub(crate) fn finish(&mut self, version: u64, blocks: &[Block]) -> Option<u32> {
        self.current = self.making.is_some();
        let (segment, written) = self.making.take()?;
        for (block, _) in written.iter().enumerate().filter(|(_, written)| !**written) {
            self.segments[segment].write(self.starts[block], blocks[block].values());
        }
        self.segments[segment].publish(version);
        self.written[segment] = version + 1;
        Some(segment as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_core::Version;
    use paceline_params::{Layout, OptimizerSpec, TensorSpec, WireType};

    use super::*;

    fn spec(sharers: Option<u32>) -> ShardSpec {
        ShardSpec {
            index: 1,
            layout: Layout::new(vec![TensorSpec::new("w", [10])], 2, 2).unwrap(),
            optimizer: OptimizerSpec::SGD,
            wire: WireType::F32,
            version: Version(0),
            staging: 1,
            fold_at_close: true,
            patience: Duration::ZERO,
            sharers,
        }
    }

    #[test]
    fn a_mirror_holds_every_block_of_the_last_versions_and_writes_where_nobody_reads() {
        let spec = spec(Some(1));
        let (sharing, mut mirror) = Sharing::open(&spec).unwrap();
        let len = spec.layout.shard_range(1).len();
        let views: Vec<View> =
            sharing.files.iter().map(|file| View::of(file, len).unwrap()).collect();
        let mut blocks: Vec<Block> = spec
            .layout
            .shard_blocks(1)
            .map(|block| {
                Block::new(vec![0.0; spec.layout.block_range(block).len()], &spec.optimizer)
            })
            .collect();
        assert_eq!(mirror.finish(3, &blocks), None, "nobody began");
        for version in 4..8u64 {
            mirror.begin(|_| false);
            blocks[0] = Block::new(vec![version as f32; 2], &spec.optimizer);
            mirror.write(0, blocks[0].values());
            let segment = mirror.finish(version, &blocks).unwrap() as usize;
            let mut copy = vec![9.0; len];
            assert!(views[segment].read_version(version, &mut copy));
            assert_eq!(copy[..2], [version as f32; 2]);
            assert!(copy[2..].iter().all(|&x| x == 0.0), "untouched blocks are there, too");
            let before = (segment + PUBLISHED - 1) % PUBLISHED;
            assert_eq!(views[before].read_version(version - 1, &mut copy), version > 4);
        }
        // Versions 4 to 7 are in segments 0 to 3. The oldest that is not kept goes.
        mirror.begin(|segment| segment == 0);
        assert_eq!(mirror.finish(8, &blocks), Some(1));
        mirror.begin(|segment| segment == 0 || segment == 2);
        assert_eq!(mirror.finish(9, &blocks), Some(3));
        mirror.begin(|segment| segment == 0 || segment == 2);
        assert_eq!(mirror.finish(10, &blocks), Some(1), "two may be kept for long");
        mirror.begin(|segment| segment != 1);
        assert_eq!(mirror.finish(11, &blocks), None, "three are too many");
        assert!(views[1].read_version(10, &mut vec![0.0; len]), "what was the newest stays");
        mirror.begin(|segment| segment != 1);
        assert_eq!(mirror.finish(12, &blocks), Some(1), "until a newer one is nowhere");
        mirror.begin(|_| false);
        assert_eq!(mirror.finish(13, &blocks), Some(0));
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
        settle(&mut specs[..1]);
        assert_eq!(specs[0].sharers, Some(1));
        settle(&mut specs);
        assert_eq!([specs[0].sharers, specs[1].sharers], [None, None]);
    }
}
