//! The data plane of a worker: parameters from every shard, gradients to every shard.

use std::{sync::Arc, thread};

use paceline_core::{ContributionId, Enough, Version};
use paceline_shm::Reader;
use paceline_wire::{
    Connect, FrameError, Transport,
    message::{Invitation, Job, Role, ToData},
};

use crate::{
    buffer::Buffer,
    client::{PullWait, WorkerConfig, handshake},
    connection::{Answer, ShardConnection},
    early::EarlyBlock,
    independent::IndependentShards,
    mailbox::{Mailbox, Task, Until},
    memory::Memory,
    requests::RequestWriter,
    work::Source,
};

/// Elements from which a shard's part is moved by a thread of its own. For fewer, starting a thread costs
/// more than it saves.
const THREAD_ELEMS: usize = 1 << 20;

/// Size in bytes up to which an answer may as well wait in the kernel until it is read.
const SMALL_ANSWER: usize = 64 << 10;

/// The connections to all shards.
pub(crate) enum DataPlane {
    /// Every shard is waited for.
    Lockstep(Lockstep),
    /// A slow shard may be left behind.
    Independent(Box<IndependentShards>),
}

/// How a pull ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulled {
    /// This version is loaded: the wanted one or a newer one.
    Loaded(Version),
    /// The shards sent different versions, so the wanted one is gone.
    Mixed,
    /// The round was cut meanwhile.
    Cancelled,
}

/// Connections that are used in parallel or in turn.
pub(crate) struct Lockstep {
    connections: Vec<ShardConnection>,
    /// Reads parameters in place, if all shards share their memory and no worker computes for long from an
    /// old version.
    reader: Option<Reader>,
    /// The buffer that parameters are copied to otherwise.
    params: Vec<f32>,
    prefetch: Prefetch,
}

/// Whether to request the next version right after a push. A small answer is then here when the next work
/// arrives. A large one would wait in the kernel, out of every cache, and cost more than the request does
/// (measured: 6 % of a round, 64 workers of 4 MiB). Where rounds do not wait for each other, the answer would
/// be older than necessary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefetch {
    Never,
    /// The next version is requested after the next push.
    Idle,
    /// The next version has been requested.
    Requested,
}

/// Cancels the pull that another thread is waiting for.
#[derive(Default)]
pub(crate) struct PullCanceller(Vec<Arc<RequestWriter>>);

impl PullCanceller {
    pub(crate) fn cancel(&self) -> Result<(), FrameError> {
        self.0.iter().try_for_each(|requests| requests.cancel_pull())
    }
}

impl DataPlane {
    /// Connects to every shard. Also returns the buffers to compute gradients in: in memory shared with
    /// shards of this host, if the transport allows it.
    pub(crate) fn connect(
        connect: &dyn Connect,
        config: &WorkerConfig,
        job: &Job,
        wait: PullWait,
        mailbox: &Arc<Mailbox>,
        until: Until,
    ) -> Result<(Self, Vec<Buffer>), FrameError> {
        let &Job { worker, session, ref layout, wire, max_stale, .. } = job;
        let pull: Enough = job.pull.parse().map_err(FrameError::Unexpected)?;
        let independent = pull != Enough::All || job.partial_push;
        let wants_memory = config.transport == Transport::Auto && !independent;
        let mut memory = Memory::new(layout.total(), wants_memory);
        let mut connections = Vec::with_capacity(job.shards.len());
        for (shard, address) in (0..).zip(&job.shards) {
            let address = config.shard_address(address);
            let role = Role::Data { worker, session, shard };
            let (reader, mut writer, invitation) =
                handshake::<Option<Invitation>>(connect, address, config.token(), role)?;
            let part = layout.shard_range(shard).len();
            let announce = || writer.message(&ToData::Memory);
            let publisher = memory.join(invitation.as_ref(), session, part, announce)?;
            let at = (layout, shard);
            connections.push(ShardConnection::new(reader, writer, at, wire, publisher));
        }
        let plane = if independent {
            let blocks: Vec<u32> = connections.iter().map(ShardConnection::blocks).collect();
            let wait = wait(pull, &blocks, max_stale);
            let shards = IndependentShards::start(connections, wait, max_stale, mailbox, until);
            DataPlane::Independent(Box::new(shards))
        } else {
            let in_place = until != Until::End && !job.any_newer;
            DataPlane::Lockstep(Lockstep::new(connections, in_place, !job.any_newer))
        };
        Ok((plane, memory.into_buffers()))
    }

    /// Connections to no shards, for tests of the messages that a worker sends.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        DataPlane::Lockstep(Lockstep::new(Vec::new(), false, true))
    }

    /// Cancels pulls of these connections. Pulls from shards that may be left behind are not cancelled: their
    /// values serve a later round.
    pub(crate) fn canceller(&self) -> PullCanceller {
        match self {
            DataPlane::Lockstep(shards) => {
                PullCanceller(shards.connections.iter().map(ShardConnection::requests).collect())
            }
            DataPlane::Independent(_) => PullCanceller::default(),
        }
    }

    /// Loads version `wanted` or a newer one, unless `is_cut`. For shards in `behind`, and for slow shards if
    /// the run allows it, values from earlier pulls suffice, unless they are too old.
    pub(crate) fn pull(
        &mut self,
        wanted: Version,
        behind: &[u32],
        source: &mut dyn Source,
        is_cut: impl Fn() -> bool + Sync,
    ) -> Result<Pulled, FrameError> {
        match self {
            DataPlane::Lockstep(shards) => shards.pull(wanted, source, &is_cut),
            DataPlane::Independent(shards) => shards.pull(wanted, behind, source),
        }
    }

    /// Shards whose newest values the last pull did not wait for.
    pub(crate) fn stale(&self) -> &[u32] {
        match self {
            DataPlane::Lockstep(_) => &[],
            DataPlane::Independent(shards) => shards.stale(),
        }
    }

    /// Sends the gradient of a task to all shards that are not behind. Gives up between blocks once
    /// `is_over`. Returns whether all was sent or is on its way; if it is on its way, `gradient` is another
    /// buffer.
    pub(crate) fn push(
        &mut self,
        task: &Task,
        gradient: &mut Buffer,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<bool, FrameError> {
        match self {
            DataPlane::Lockstep(shards) => shards.push(task, gradient, is_over),
            DataPlane::Independent(shards) => shards.push(task, gradient).map(|()| true),
        }
    }

    /// The blocks that may be sent before their gradient is whole, in the order of their elements.
    pub(crate) fn early_blocks(&self) -> Vec<EarlyBlock> {
        match self {
            DataPlane::Lockstep(shards) => {
                shards.connections.iter().flat_map(ShardConnection::early_blocks).collect()
            }
            DataPlane::Independent(_) => Vec::new(),
        }
    }

    /// Sends one of the [`Self::early_blocks`] of a contribution. The rest leaves with [`Self::push`], unless
    /// [`Self::abandon`] ends it.
    pub(crate) fn push_early(
        &mut self,
        id: ContributionId,
        block: u32,
        values: &[f32],
    ) -> Result<(), FrameError> {
        let shard = match self {
            DataPlane::Lockstep(shards) => {
                shards.connections.iter_mut().find(|shard| shard.has_block(block))
            }
            DataPlane::Independent(_) => None,
        };
        shard.map_or(Ok(()), |shard| shard.push_early(id, block, values))
    }

    /// Tells the shards to drop the blocks that were sent early.
    pub(crate) fn abandon(&mut self) -> Result<(), FrameError> {
        match self {
            DataPlane::Lockstep(shards) => {
                shards.connections.iter_mut().try_for_each(ShardConnection::abandon)
            }
            DataPlane::Independent(_) => Ok(()),
        }
    }
}

impl Lockstep {
    fn new(connections: Vec<ShardConnection>, in_place: bool, prefetches: bool) -> Self {
        let publishers = connections.iter().map(ShardConnection::publisher);
        let publishers = publishers.collect::<Option<Vec<_>>>().filter(|_| in_place);
        let small = connections.iter().all(|shard| shard.answer_bytes() <= SMALL_ANSWER);
        Lockstep {
            reader: publishers.and_then(Reader::new),
            params: Vec::new(),
            prefetch: if small && prefetches { Prefetch::Idle } else { Prefetch::Never },
            connections,
        }
    }

    fn pull(
        &mut self,
        wanted: Version,
        source: &mut dyn Source,
        is_cut: &(dyn Fn() -> bool + Sync),
    ) -> Result<Pulled, FrameError> {
        let prefetched = self.prefetch == Prefetch::Requested;
        if prefetched {
            self.prefetch = Prefetch::Idle;
        }
        // Every shard gets its request before any answer is read.
        let requested = if prefetched { !is_cut() } else { self.request(wanted, is_cut)? };
        let pulled =
            if requested { self.receive(wanted, source, is_cut)? } else { Pulled::Cancelled };
        if pulled == Pulled::Cancelled {
            // Some connections may have an answer under way that was not cancelled.
            self.connections.iter().try_for_each(|shard| shard.requests().cancel_pull())?;
        }
        Ok(pulled)
    }

    fn receive(
        &mut self,
        wanted: Version,
        source: &mut dyn Source,
        is_cut: &(dyn Fn() -> bool + Sync),
    ) -> Result<Pulled, FrameError> {
        let mut answers: Vec<Option<Answer>> = self.connections.iter().map(|_| None).collect();
        if self.reader.is_some() {
            source.let_go();
            for (shard, answer) in self.connections.iter_mut().zip(&mut answers) {
                *answer = shard.answer_since(wanted, is_cut)?;
                if answer.is_none() {
                    return Ok(Pulled::Cancelled);
                }
            }
            if let Some(version) = self.keep(&answers, source) {
                return Ok(Pulled::Loaded(version));
            }
        }
        self.params.resize(self.connections.iter().map(|shard| shard.elements().len()).sum(), 0.0);
        let mut rest = &mut self.params[..];
        let mut parts = Vec::with_capacity(self.connections.len());
        for (shard, answer) in self.connections.iter_mut().zip(answers) {
            let (part, tail) = rest.split_at_mut(shard.elements().len());
            rest = tail;
            parts.push((shard, (answer, part)));
        }
        let read =
            |(shard, (answer, part)): (&mut ShardConnection, (Option<Answer>, &mut [f32]))| {
                let answer = match answer {
                    Some(answer) => Some(answer),
                    None => shard.answer()?,
                };
                match answer {
                    Some(answer) => shard.copy_since(answer, wanted, part, is_cut),
                    None => Ok(None),
                }
            };
        let Some(versions) = each(parts, read)?.into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(Pulled::Cancelled);
        };
        match versions.first() {
            Some(first) if versions.iter().all(|version| version == first) => {
                source.load(0, &self.params);
                Ok(Pulled::Loaded(*first))
            }
            _ => Ok(Pulled::Mixed),
        }
    }

    /// Computes from the parameters in place, if all shards have published the same version.
    fn keep(&mut self, answers: &[Option<Answer>], source: &mut dyn Source) -> Option<Version> {
        let published = answers.iter().map(|answer| match answer {
            Some(Answer::Published(version, segment)) => Some((*version, *segment)),
            _ => None,
        });
        let (versions, segments): (Vec<Version>, Vec<u32>) =
            published.collect::<Option<Vec<_>>>()?.into_iter().unzip();
        let first = *versions.first()?;
        versions.iter().all(|version| *version == first).then_some(())?;
        source.keep(self.reader.as_mut()?.keep(&segments, first.0)?);
        Some(first)
    }

    /// Requests a version from every shard; false if `is_over` before the last.
    fn request(
        &mut self,
        version: Version,
        is_over: impl Fn() -> bool,
    ) -> Result<bool, FrameError> {
        for shard in &mut self.connections {
            if !shard.request(version, &is_over)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn push(
        &mut self,
        task: &Task,
        gradient: &Buffer,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<bool, FrameError> {
        let shards = self.connections.iter_mut().map(|shard| (shard, gradient)).collect();
        let sent = each(shards, |(shard, gradient)| shard.push(task.id, gradient, &is_over))?;
        let sent = sent.into_iter().all(|sent| sent);
        if sent && self.prefetch == Prefetch::Idle {
            self.request(task.base.next(), || false)?;
            self.prefetch = Prefetch::Requested;
        }
        Ok(sent)
    }
}

/// Runs `job` for every shard: in parallel where there is enough to move, else in turn.
fn each<'a, S: Send, T: Send>(
    parts: Vec<(&'a mut ShardConnection, S)>,
    job: impl Fn((&'a mut ShardConnection, S)) -> Result<T, FrameError> + Sync,
) -> Result<Vec<T>, FrameError> {
    let small = parts.iter().all(|(shard, _)| shard.elements().len() < THREAD_ELEMS);
    if small || parts.len() == 1 {
        return parts.into_iter().map(job).collect();
    }
    let job = &job;
    thread::scope(|scope| {
        let threads: Vec<_> =
            parts.into_iter().map(|part| scope.spawn(move || job(part))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
