//! Where a slow shard may be left behind: a thread for each, which fetches and delivers at its own pace.
//!
//! A courier does one thing after the other. What it has not begun when something newer is to be
//! delivered it never does, so a slow shard is behind and does not fall further behind.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use paceline_core::{ShardId, Shards, Time, Version};
use paceline_policy::Enough;
use paceline_wire::FrameError;

use crate::{
    buffer::Buffer,
    data::Load,
    link::Link,
    mailbox::{Mailbox, Until},
};

/// How often a worker that waits looks whether that is still of use.
const LOOK: Duration = Duration::from_millis(20);

/// A courier for every shard.
pub(crate) struct Couriers {
    office: Arc<Office>,
    /// Where each shard's part of the parameters begins.
    starts: Vec<usize>,
    /// How long new values are waited for.
    wait: Shards,
    clock: Instant,
    max_stale: u64,
    /// The version of each shard's values that are here.
    held: Vec<Option<Version>>,
    stale: Vec<u32>,
    mailbox: Arc<Mailbox>,
    /// Gradients that may still be on their way.
    lent: Vec<Arc<Buffer>>,
}

/// Where couriers and the worker meet.
struct Office {
    desks: Mutex<Vec<Desk>>,
    /// There is something for the courier of a desk to do. Each is called by itself: to be woken for
    /// nothing costs as much as a small errand.
    called: Vec<Condvar>,
    /// A courier has brought something, or failed.
    brought: Condvar,
}

/// What one courier is to do, and what it has brought.
#[derive(Default)]
struct Desk {
    push: Option<(Version, Arc<Buffer>)>,
    /// The version to fetch, and a buffer for it.
    pull: Option<(Version, Vec<f32>)>,
    landed: Option<Landed>,
    /// What was fetched into before.
    spare: Vec<f32>,
    /// It fetches, or is to.
    asked: bool,
    failed: Option<FrameError>,
    closed: bool,
}

struct Landed {
    found: Version,
    values: Vec<f32>,
}

enum Errand {
    Push(Version, Arc<Buffer>),
    Pull(Version, Vec<f32>),
}

impl Desk {
    /// Sends the courier for this version, or a newer one, unless it is on the way for another.
    fn fetch(&mut self, version: Version) {
        if !std::mem::replace(&mut self.asked, true) {
            self.pull = Some((version, std::mem::take(&mut self.spare)));
        }
    }
}

impl Couriers {
    /// New values are waited for as `enough` says, and for at most `max_stale` rounds with old ones.
    pub(crate) fn start(
        links: Vec<Link>,
        enough: Enough,
        max_stale: u64,
        mailbox: &Arc<Mailbox>,
        until: Until,
    ) -> Couriers {
        let blocks: Vec<u32> = links.iter().map(|link| link.blocks.len() as u32).collect();
        let desks = Mutex::new(links.iter().map(|_| Desk::default()).collect());
        let called = links.iter().map(|_| Condvar::new()).collect();
        let office = Arc::new(Office { desks, called, brought: Condvar::new() });
        let couriers = Couriers {
            starts: links.iter().map(|link| link.elements.start).collect(),
            wait: enough.asked_anew(&blocks, max_stale),
            clock: Instant::now(),
            max_stale,
            held: vec![None; links.len()],
            stale: Vec::new(),
            mailbox: Arc::clone(mailbox),
            lent: Vec::new(),
            office: Arc::clone(&office),
        };
        for (desk, link) in links.into_iter().enumerate() {
            let (office, mailbox) = (Arc::clone(&office), Arc::clone(mailbox));
            thread::Builder::new()
                .name(format!("courier {desk}"))
                .spawn(move || office.serve(desk, link, &mailbox, until))
                .expect("failed to start a thread");
        }
        couriers
    }

    pub(crate) fn stale(&self) -> &[u32] {
        &self.stale
    }

    pub(crate) fn pull(
        &mut self,
        wanted: Version,
        behind: &[u32],
        load: Load<'_>,
    ) -> Result<Option<Version>, FrameError> {
        let now = self.now();
        let told = self.wait.update(|shard| !behind.contains(&shard.0), now);
        let office = Arc::clone(&self.office);
        let mut desks = office.lock();
        let needed = self.ask(wanted, behind, &told, &mut desks);
        for &shard in &told {
            let held = self.held[shard.0 as usize].map_or(0, |held| held.0);
            self.wait.caught_up(shard, wanted.0.saturating_sub(held + 1));
        }
        let mut said = false;
        office.call(&desks);
        let mut found = None;
        loop {
            for (shard, desk) in desks.iter_mut().enumerate() {
                if let Some(error) = desk.failed.take() {
                    return Err(error);
                }
                let Some(landed) = desk.landed.take() else { continue };
                load(self.starts[shard], &landed.values);
                desk.spare = landed.values;
                self.held[shard] = Some(landed.found.min(wanted));
                found = found.max(Some(landed.found));
                let id = ShardId(shard as u32);
                match wanted.0.saturating_sub(landed.found.0) {
                    // One that is behind was not asked by the rule.
                    0 => drop(self.wait.answered(id, self.now())),
                    missed => {
                        self.wait.caught_up(id, missed - 1);
                        if told.contains(&id) {
                            desk.fetch(wanted);
                            office.called[shard].notify_one();
                        }
                    }
                }
            }
            let bound = self.wait.advance(self.now());
            if let Some((shard, rounds)) = bound.filter(|_| !std::mem::replace(&mut said, true)) {
                tracing::warn!("waiting for values of {shard}, which are {rounds} rounds old");
            }
            // Its round may be over, and the run; then nobody waits for this.
            if self.mailbox.is_over(wanted, Until::Close) {
                return Ok(None);
            }
            let all = |needed: &[usize]| needed.iter().all(|&shard| self.held[shard].is_some());
            if self.wait.is_ready() && all(&needed) {
                break;
            }
            let sleep =
                self.wait.next_wake().map_or(LOOK, |at| at.since(self.now().min(at)).min(LOOK));
            let waited = office.brought.wait_timeout(desks, sleep.max(Duration::from_micros(50)));
            desks = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let old = (0..).zip(&self.held).filter(|(_, held)| **held != Some(wanted));
        let old = old.map(|(shard, _)| shard).filter(|shard| !behind.contains(shard));
        self.stale = old.collect();
        Ok(Some(found.unwrap_or(wanted).max(wanted)))
    }

    /// Sends couriers for the newest values, and for any at all where there are none, or none that will
    /// do. Returns whose values the work cannot do without.
    fn ask(
        &mut self,
        wanted: Version,
        behind: &[u32],
        told: &[ShardId],
        desks: &mut [Desk],
    ) -> Vec<usize> {
        for ShardId(shard) in told {
            desks[*shard as usize].fetch(wanted);
        }
        let oldest = Version(wanted.0.saturating_sub(self.max_stale));
        for (shard, held) in self.held.iter_mut().enumerate() {
            let behind = behind.contains(&(shard as u32));
            if behind && held.is_none_or(|held| held < oldest) {
                *held = None;
                desks[shard].fetch(Version(0));
            }
        }
        (0..self.held.len()).filter(|&shard| self.held[shard].is_none()).collect()
    }

    /// Hands the gradient over for delivery, and takes back a buffer that is not needed any more.
    pub(crate) fn push(
        &mut self,
        base: Version,
        behind: &[u32],
        gradient: &mut Buffer,
    ) -> Result<(), FrameError> {
        let sent = Arc::new(std::mem::take(gradient));
        {
            let mut desks = self.office.lock();
            for (shard, desk) in (0..).zip(desks.iter_mut()) {
                if let Some(error) = desk.failed.take() {
                    return Err(error);
                }
                desk.push = (!behind.contains(&shard)).then(|| (base, Arc::clone(&sent)));
            }
            self.office.call(&desks);
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

impl Drop for Couriers {
    fn drop(&mut self) {
        let mut desks = self.office.lock();
        desks.iter_mut().for_each(|desk| desk.closed = true);
        self.office.call(&desks);
    }
}

impl Office {
    fn lock(&self) -> MutexGuard<'_, Vec<Desk>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the couriers who have something to do.
    fn call(&self, desks: &[Desk]) {
        let waits = |desk: &Desk| desk.push.is_some() || desk.pull.is_some() || desk.closed;
        let waiting = self.called.iter().zip(desks).filter(|(_, desk)| waits(desk));
        waiting.for_each(|(courier, _)| courier.notify_one());
    }

    /// The life of a courier.
    fn serve(&self, desk: usize, mut link: Link, mailbox: &Mailbox, until: Until) {
        while let Some(errand) = self.next(desk) {
            let done = match errand {
                Errand::Push(base, gradient) => {
                    let is_over = || mailbox.is_over(base, until);
                    if is_over() {
                        Ok(None)
                    } else {
                        link.write(base, &gradient, is_over).map(|_| None)
                    }
                }
                Errand::Pull(version, mut values) => {
                    values.resize(link.elements.len(), 0.0);
                    let read = link.ask(version, false);
                    let read = read.and_then(|()| link.read(version, &mut values));
                    read.map(|found| Some(Landed { found, values }))
                }
            };
            let mut desks = self.lock();
            let desk = &mut desks[desk];
            match done {
                Ok(None) => continue,
                Ok(Some(landed)) => {
                    (desk.landed, desk.asked) = (Some(landed), false);
                    self.brought.notify_one();
                }
                Err(error) => {
                    desk.failed = Some(error);
                    self.brought.notify_one();
                    return;
                }
            }
        }
    }

    /// What a courier does next; nothing when the work is over.
    fn next(&self, at: usize) -> Option<Errand> {
        let mut desks = self.lock();
        loop {
            let Desk { push, pull, closed, .. } = &mut desks[at];
            if *closed {
                return None;
            }
            if let Some((base, gradient)) = push.take() {
                return Some(Errand::Push(base, gradient));
            }
            if let Some((version, values)) = pull.take() {
                return Some(Errand::Pull(version, values));
            }
            desks = self.called[at].wait(desks).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
