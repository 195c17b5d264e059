//! Parameters in from every shard, gradients out to every shard.

use std::{sync::Arc, thread};

use paceline_core::{Enough, Version};
use paceline_shm::Reader;
use paceline_wire::{
    Connect, FrameError, Transport,
    message::{Invitation, Job, Role, ToData},
};

use crate::{
    buffer::Buffer,
    client::{PullWait, WorkerConfig, greet},
    couriers::Couriers,
    link::{Answer, Link},
    mailbox::{Mailbox, Until},
    memory::Memory,
    work::Compute,
};

/// A shard's part of a large model is moved by a thread of its own; below this many elements
/// starting one costs more than it saves.
const THREAD_ELEMS: usize = 1 << 20;

/// An answer that may as well lie in the kernel until it is read.
const SMALL_ANSWER: usize = 64 << 10;

/// The connections to all shards.
pub(crate) enum DataPlane {
    /// Every shard is waited for.
    Together(Links),
    /// A slow one may be left behind.
    Apart(Box<Couriers>),
}

/// Connections that are used side by side or in turn.
pub(crate) struct Links {
    links: Vec<Link>,
    /// Where parameters are computed from where they are published, if they can be: all shards share
    /// their memory, and nobody computes from a version for long after it is old.
    reader: Option<Reader>,
    /// Where they are copied to otherwise.
    params: Vec<f32>,
    /// The version after one that was pushed is asked for at once, where its answer is small: it is here,
    /// then, when work on it is given. A large one would wait in the kernel, out of every cache, and cost
    /// more than the question does (measured: 6 % of a round, 64 workers of 4 MiB). And not where rounds
    /// do not wait for each other: it would be older than need be.
    ahead: Ahead,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    Never,
    /// The next version is to be asked for.
    No,
    /// It has been.
    Yes,
}

impl DataPlane {
    /// Connects to every shard; returns where gradients are to be computed, too: in memory shared
    /// with shards of this host, if the transport lets them.
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
        let apart = pull != Enough::All || job.partial_push;
        let mut memory = Memory::new(layout.total(), config.transport == Transport::Auto && !apart);
        let mut links = Vec::with_capacity(job.shards.len());
        for (shard, address) in (0..).zip(&job.shards) {
            let address = config.shard_address(address);
            let role = Role::Data { worker, session, shard };
            let (reader, mut writer, invitation) =
                greet::<Option<Invitation>>(connect, address, config.token(), role)?;
            let blocks = layout.shard_blocks(shard).map(|block| (block, layout.block_range(block)));
            let elements = layout.shard_range(shard);
            let come = || writer.message(&ToData::Memory);
            let publisher = memory.join(invitation.as_ref(), session, elements.len(), come)?;
            let (blocks, halves) = (blocks.collect(), Vec::new());
            links.push(Link { reader, writer, blocks, elements, wire, halves, publisher });
        }
        let plane = match apart {
            true => {
                let blocks: Vec<u32> = links.iter().map(|link| link.blocks.len() as u32).collect();
                let wait = wait(pull, &blocks, max_stale);
                let couriers = Couriers::start(links, wait, max_stale, mailbox, until);
                DataPlane::Apart(Box::new(couriers))
            }
            false => {
                let keeps = until != Until::End && !job.any_newer;
                let publishers = links.iter().map(|link| link.publisher.clone());
                let reader = publishers.collect::<Option<_>>().filter(|_| keeps);
                let small = links.iter().all(|link| link.answer_bytes() <= SMALL_ANSWER);
                let ahead = if small && !job.any_newer { Ahead::No } else { Ahead::Never };
                let reader = reader.and_then(Reader::of);
                DataPlane::Together(Links { links, reader, params: Vec::new(), ahead })
            }
        };
        Ok((plane, memory.into_buffers()))
    }

    /// To nobody, for tests of what is sent.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        let (links, params) = (Vec::new(), Vec::new());
        DataPlane::Together(Links { links, reader: None, params, ahead: Ahead::No })
    }

    /// Loads version `wanted` or a newer one; returns which it is, `None` where the shards gave
    /// different ones (the wanted one is gone then). Of shards that are `behind` the values
    /// that are there do, or whatever they have if those are too old; and of others that are not worth
    /// waiting for, where that is allowed.
    pub(crate) fn pull(
        &mut self,
        wanted: Version,
        behind: &[u32],
        compute: &mut dyn Compute,
    ) -> Result<Option<Version>, FrameError> {
        match self {
            DataPlane::Together(links) => links.pull(wanted, compute),
            DataPlane::Apart(couriers) => couriers.pull(wanted, behind, compute),
        }
    }

    /// Shards of which the last pull did not wait for the newest values.
    pub(crate) fn stale(&self) -> &[u32] {
        match self {
            DataPlane::Together(_) => &[],
            DataPlane::Apart(couriers) => couriers.stale(),
        }
    }

    /// Sends `gradient`, computed from `base`, to all shards that are not `behind`; gives up between
    /// blocks once `is_over` says so. Returns whether all was sent, or is on its way: `gradient` is then
    /// another buffer.
    pub(crate) fn push(
        &mut self,
        base: Version,
        behind: &[u32],
        gradient: &mut Buffer,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<bool, FrameError> {
        match self {
            DataPlane::Together(links) => links.push(base, gradient, is_over),
            DataPlane::Apart(couriers) => couriers.push(base, behind, gradient).map(|()| true),
        }
    }
}

impl Links {
    fn pull(
        &mut self,
        wanted: Version,
        compute: &mut dyn Compute,
    ) -> Result<Option<Version>, FrameError> {
        // All shards are asked before any is listened to.
        match self.ahead {
            Ahead::Yes => self.ahead = Ahead::No,
            Ahead::Never | Ahead::No => self.ask(wanted)?,
        }
        let mut answers: Vec<Option<Answer>> = self.links.iter().map(|_| None).collect();
        if self.reader.is_some() {
            compute.let_go();
            for (link, answer) in self.links.iter_mut().zip(&mut answers) {
                *answer = Some(link.answer_since(wanted)?);
            }
            if let Some(version) = self.keep(&answers, compute) {
                return Ok(Some(version));
            }
        }
        self.params.resize(self.links.iter().map(|link| link.elements.len()).sum(), 0.0);
        let mut rest = &mut self.params[..];
        let mut parts = Vec::with_capacity(self.links.len());
        for (link, answer) in self.links.iter_mut().zip(answers) {
            let (part, tail) = rest.split_at_mut(link.elements.len());
            rest = tail;
            parts.push((link, (answer, part)));
        }
        let read = |(link, (answer, part)): (&mut Link, (Option<Answer>, &mut [f32]))| {
            let answer = answer.map_or_else(|| link.answer(), Ok)?;
            link.take_since(answer, wanted, part)
        };
        let mut versions = each(parts, read)?.into_iter();
        let first = versions.next();
        let one = first.filter(|first| versions.all(|version| version == *first));
        if one.is_some() {
            compute.load(0, &self.params);
        }
        Ok(one)
    }

    /// Lets parameters be computed from where they are, if all shards have published the same version.
    fn keep(&mut self, answers: &[Option<Answer>], compute: &mut dyn Compute) -> Option<Version> {
        let published = answers.iter().map(|answer| match answer {
            Some(Answer::Published(version, segment)) => Some((*version, *segment)),
            _ => None,
        });
        let (versions, segments): (Vec<Version>, Vec<u32>) =
            published.collect::<Option<Vec<_>>>()?.into_iter().unzip();
        let first = *versions.first()?;
        versions.iter().all(|version| *version == first).then_some(())?;
        compute.keep(self.reader.as_mut()?.keep(&segments, first.0)?);
        Some(first)
    }

    fn ask(&mut self, version: Version) -> Result<(), FrameError> {
        self.links.iter_mut().try_for_each(|link| link.ask(version))
    }

    fn push(
        &mut self,
        base: Version,
        gradient: &Buffer,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<bool, FrameError> {
        let links = self.links.iter_mut().map(|link| (link, gradient)).collect();
        let sent = each(links, |(link, gradient)| link.write(base, gradient, &is_over))?;
        let sent = sent.into_iter().all(|sent| sent);
        if sent && self.ahead == Ahead::No {
            self.ask(base.next())?;
            self.ahead = Ahead::Yes;
        }
        Ok(sent)
    }
}

/// Does the same on every shard: side by side where there is enough to move, else in turn.
fn each<'a, S: Send, T: Send>(
    parts: Vec<(&'a mut Link, S)>,
    job: impl Fn((&'a mut Link, S)) -> Result<T, FrameError> + Sync,
) -> Result<Vec<T>, FrameError> {
    let small = parts.iter().all(|(link, _)| link.elements.len() < THREAD_ELEMS);
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
