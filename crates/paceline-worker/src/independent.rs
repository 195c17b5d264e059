//! Shards that may be left behind: a thread for each shard pulls and pushes at that shard's pace.
//!
//! Each thread handles one request after the other. A request that has not begun when a newer one arrives is
//! dropped, so a slow shard is behind and does not fall further behind. After a push the thread requests the
//! next version by itself, which saves a wake-up. A cut does not cancel a pull that has begun: its values
//! serve a later round.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use paceline_core::{ContributionId, Intake, ShardId, Shards, Time, Version};
use paceline_wire::FrameError;

use crate::{
    buffer::Buffer,
    connection::ShardConnection,
    data::Pulled,
    mailbox::{Mailbox, Task, Until},
    work::Source,
};

/// A pull that takes longer is reported.
const QUIET: Duration = Duration::from_secs(1);

/// The connections to shards, each with a thread.
pub(crate) struct IndependentShards {
    queue: Arc<RequestQueue>,
    /// The start of each shard's part of the parameters.
    starts: Vec<usize>,
    /// The versions that are held, and the wait for newer ones.
    intake: Intake,
    clock: Instant,
    stale: Vec<u32>,
    mailbox: Arc<Mailbox>,
    /// Gradients that threads may still be sending.
    lent: Vec<Arc<Buffer>>,
}

/// The requests to all shards, shared by the worker and the shards' threads.
struct RequestQueue {
    shards: Mutex<Vec<PendingRequests>>,
    /// Wakes the thread of one shard: waking a thread needlessly costs as much as a small request.
    wake: Vec<Condvar>,
}

/// The requests that one shard's thread has not begun, and the answer that it has received.
#[derive(Default)]
struct PendingRequests {
    push: Option<PushedGradient>,
    /// The version to pull, and a buffer for it.
    pull: Option<(Version, Vec<f32>)>,
    /// A pull is pending or under way, or its answer is here.
    fetching: bool,
    answer: Option<Fetched>,
    /// The buffer of an earlier pull.
    spare: Vec<f32>,
    failed: Option<FrameError>,
    closed: bool,
}

/// The values that a shard sent.
struct Fetched {
    version: Version,
    values: Vec<f32>,
}

/// A gradient on its way to a shard.
struct PushedGradient {
    id: ContributionId,
    base: Version,
    gradient: Arc<Buffer>,
}

enum Request {
    Push(PushedGradient),
    Pull(Version, Vec<f32>),
}

impl PendingRequests {
    /// Requests this version or a newer one. No other pull may be pending.
    fn fetch(&mut self, version: Version) {
        self.fetching = true;
        self.pull = Some((version, std::mem::take(&mut self.spare)));
    }

    /// Takes the answer to a pull, if there is one and the connection has not failed.
    fn take_answer(&mut self) -> Result<Option<Fetched>, FrameError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.fetching &= self.answer.is_none();
        Ok(self.answer.take())
    }

    fn next(&mut self) -> Option<Request> {
        if let Some(push) = self.push.take() {
            return Some(Request::Push(push));
        }
        self.pull.take().map(|(version, values)| Request::Pull(version, values))
    }
}

impl IndependentShards {
    /// Starts a thread for each of these connections. `wait` decides how long a pull waits for new values;
    /// values may be used for at most `max_stale` rounds. A gradient that can no longer count, by `until`, is
    /// not sent to its end.
    pub(crate) fn start(
        connections: Vec<ShardConnection>,
        wait: Shards,
        max_stale: u64,
        mailbox: &Arc<Mailbox>,
        until: Until,
    ) -> IndependentShards {
        let shards = Mutex::new(connections.iter().map(|_| PendingRequests::default()).collect());
        let wake = connections.iter().map(|_| Condvar::new()).collect();
        let queue = Arc::new(RequestQueue { shards, wake });
        let starts = connections.iter().map(|shard| shard.elements().start).collect();
        for (shard, connection) in connections.into_iter().enumerate() {
            let (queue, mailbox) = (Arc::clone(&queue), Arc::clone(mailbox));
            thread::Builder::new()
                .name(format!("shard {shard}"))
                .spawn(move || queue.serve(shard, connection, &mailbox, until))
                .expect("failed to start a thread");
        }
        IndependentShards {
            queue,
            starts,
            intake: Intake::new(wait, max_stale),
            clock: Instant::now(),
            stale: Vec::new(),
            mailbox: Arc::clone(mailbox),
            lent: Vec::new(),
        }
    }

    pub(crate) fn stale(&self) -> &[u32] {
        &self.stale
    }

    pub(crate) fn pull(
        &mut self,
        wanted: Version,
        behind: &[u32],
        source: &mut dyn Source,
    ) -> Result<Pulled, FrameError> {
        {
            let mut shards = self.queue.lock();
            let fetching = (0..).zip(&*shards).filter(|(_, pending)| pending.fetching);
            fetching.for_each(|(shard, _)| self.intake.is_coming(ShardId(shard)));
            for (ShardId(shard), version) in self.intake.want(wanted, behind, self.now()) {
                shards[shard as usize].fetch(version);
            }
            self.queue.wake_threads(&shards);
        }
        let speaks_at = self.now() + QUIET;
        let mut said = false;
        let mut found = wanted;
        loop {
            let seen = self.mailbox.answers();
            found = found.max(self.load_answers(source)?.unwrap_or(found));
            let bound = self.intake.advance(self.now());
            if !said && !self.intake.is_ready() {
                said = self.now() >= speaks_at || bound.is_some();
                match (bound, self.intake.missing().next()) {
                    _ if !said => {}
                    (_, Some(shard)) => tracing::warn!("waiting for the first values of {shard}"),
                    (Some((shard, rounds)), None) => {
                        tracing::warn!(
                            "waiting for values of {shard}, which are {rounds} rounds old"
                        );
                    }
                    (None, None) => tracing::warn!("waiting for values of slow shards"),
                }
            }
            if self.mailbox.is_cut(wanted) {
                return Ok(Pulled::Cancelled);
            }
            if self.intake.is_ready() {
                break;
            }
            let wakes = [self.intake.next_wake(), (!said).then_some(speaks_at)];
            let wake = wakes.into_iter().flatten().min();
            let sleep = wake.map(|at| at.since(self.now().min(at)).max(Duration::from_micros(50)));
            self.mailbox.await_answer(wanted, seen, sleep);
        }
        self.stale = self.intake.stale().collect();
        Ok(Pulled::Loaded(found))
    }

    /// Loads the values that shards have sent, and requests more where they are not new enough. Returns the
    /// newest version among them.
    fn load_answers(&mut self, source: &mut dyn Source) -> Result<Option<Version>, FrameError> {
        let mut newest = None;
        for shard in 0..self.starts.len() {
            let answer = self.queue.lock()[shard].take_answer()?;
            let Some(Fetched { version, values }) = answer else { continue };
            source.load(self.starts[shard], &values);
            newest = newest.max(Some(version));
            let next = self.intake.landed(ShardId(shard as u32), version, self.now());
            let pending = &mut self.queue.lock()[shard];
            pending.spare = values;
            if let Some(version) = next {
                pending.fetch(version);
                self.queue.wake[shard].notify_one();
            }
        }
        Ok(newest)
    }

    /// Passes the gradient to the shards' threads, and takes back a buffer that none of them needs.
    pub(crate) fn push(&mut self, task: &Task, gradient: &mut Buffer) -> Result<(), FrameError> {
        let &Task { id, base, ref behind, .. } = task;
        let sent = Arc::new(std::mem::take(gradient));
        {
            let mut shards = self.queue.lock();
            for (shard, pending) in (0..).zip(shards.iter_mut()) {
                if let Some(error) = pending.failed.take() {
                    return Err(error);
                }
                let push = || PushedGradient { id, base, gradient: Arc::clone(&sent) };
                pending.push = (!behind.contains(&shard)).then(push);
            }
            self.queue.wake_threads(&shards);
        }
        self.lent.push(sent);
        let mut still = Vec::new();
        for lent in self.lent.drain(..) {
            match Arc::try_unwrap(lent) {
                Ok(free) => *gradient = free,
                Err(lent) => still.push(lent),
            }
        }
        self.lent = still;
        Ok(())
    }

    fn now(&self) -> Time {
        Time::ZERO + self.clock.elapsed()
    }
}

impl Drop for IndependentShards {
    fn drop(&mut self) {
        let mut shards = self.queue.lock();
        shards.iter_mut().for_each(|pending| pending.closed = true);
        self.queue.wake_threads(&shards);
    }
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<PendingRequests>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that have work.
    fn wake_threads(&self, shards: &[PendingRequests]) {
        for (wake, pending) in self.wake.iter().zip(shards) {
            if pending.push.is_some() || pending.pull.is_some() || pending.closed {
                wake.notify_one();
            }
        }
    }

    /// Handles one shard's requests until the worker ends or the connection fails.
    fn serve(
        &self,
        shard: usize,
        mut connection: ShardConnection,
        mailbox: &Mailbox,
        until: Until,
    ) {
        while let Some(request) = self.next(shard) {
            let done = match request {
                Request::Push(PushedGradient { id, base, gradient }) => {
                    let is_over = || mailbox.is_over(base, until);
                    let sent =
                        if is_over() { Ok(false) } else { connection.push(id, &gradient, is_over) };
                    drop(gradient);
                    sent.map(|sent| {
                        if sent {
                            self.fetch_next(shard, base.next());
                        }
                    })
                }
                Request::Pull(version, values) => {
                    fetch(&mut connection, version, values).map(|fetched| {
                        self.lock()[shard].answer = Some(fetched);
                        mailbox.note_answer();
                    })
                }
            };
            if let Err(error) = done {
                self.lock()[shard].failed = Some(error);
                return mailbox.note_answer();
            }
        }
    }

    /// Requests the version after a pushed one, unless a pull is pending.
    fn fetch_next(&self, shard: usize, next: Version) {
        let pending = &mut self.lock()[shard];
        if !pending.fetching {
            pending.fetch(next);
        }
    }

    /// Waits for a shard's next request; `None` when the worker ends.
    fn next(&self, shard: usize) -> Option<Request> {
        let mut shards = self.lock();
        loop {
            if shards[shard].closed {
                return None;
            }
            if let Some(request) = shards[shard].next() {
                return Some(request);
            }
            shards = self.wake[shard].wait(shards).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Pulls this version or a newer one.
fn fetch(
    connection: &mut ShardConnection,
    wanted: Version,
    mut values: Vec<f32>,
) -> Result<Fetched, FrameError> {
    values.resize(connection.elements().len(), 0.0);
    connection.request(wanted, || false)?;
    let version = match connection.answer()? {
        Some(answer) => connection.copy(answer, wanted, &mut values, || false)?,
        None => None,
    };
    let version = version.ok_or(FrameError::Unexpected("a pull cancelled by nobody".to_owned()))?;
    Ok(Fetched { version, values })
}
