//! Where a slow shard may be left behind: a thread for each, which fetches and delivers at its own pace.
//!
//! A courier does one thing after the other. What it has not begun when something newer is to be
//! delivered it never does, so a slow shard is behind and does not fall further behind. When it has
//! delivered a gradient it stays and asks for the version that comes next: to be sent for it would wake
//! it once more.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use paceline_core::{Intake, ShardId, Shards, Time, Version};
use paceline_wire::FrameError;

use crate::{
    buffer::Buffer,
    link::Link,
    mailbox::{Mailbox, Until},
    work::Compute,
};

/// Who waits longer for values says so.
const QUIET: Duration = Duration::from_secs(1);

/// A courier for every shard.
pub(crate) struct Couriers {
    office: Arc<Office>,
    /// Where each shard's part of the parameters begins.
    starts: Vec<usize>,
    /// What is here, and how long new values are waited for.
    intake: Intake,
    clock: Instant,
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
}

/// What one courier is to do, and what it has brought.
#[derive(Default)]
struct Desk {
    push: Option<(Version, Arc<Buffer>)>,
    /// The version to fetch, and a buffer for it.
    pull: Option<(Version, Vec<f32>)>,
    /// The courier is on the way for values, or has brought some.
    fetching: bool,
    landed: Option<Landed>,
    /// What was fetched into before.
    spare: Vec<f32>,
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
    /// Sends the courier, who is not on the way for another, for this version or a newer one.
    fn fetch(&mut self, version: Version) {
        self.fetching = true;
        self.pull = Some((version, std::mem::take(&mut self.spare)));
    }

    /// What the courier has brought, if it has not failed.
    fn take(&mut self) -> Result<Option<Landed>, FrameError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.fetching &= self.landed.is_none();
        Ok(self.landed.take())
    }
}

impl Couriers {
    /// Connections to these shards. `wait` decides how long a pull waits for new values; values that are
    /// more than `max_stale` rounds old are of no use.
    pub(crate) fn start(
        links: Vec<Link>,
        wait: Shards,
        max_stale: u64,
        mailbox: &Arc<Mailbox>,
        until: Until,
    ) -> Couriers {
        let desks = Mutex::new(links.iter().map(|_| Desk::default()).collect());
        let called = links.iter().map(|_| Condvar::new()).collect();
        let office = Arc::new(Office { desks, called });
        let couriers = Couriers {
            starts: links.iter().map(|link| link.elements.start).collect(),
            intake: Intake::new(wait, max_stale),
            clock: Instant::now(),
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
        compute: &mut dyn Compute,
    ) -> Result<Option<Version>, FrameError> {
        {
            let mut desks = self.office.lock();
            let ahead = (0..).zip(&*desks).filter(|(_, desk)| desk.fetching);
            ahead.for_each(|(shard, _)| self.intake.is_coming(ShardId(shard)));
            for (ShardId(shard), version) in self.intake.want(wanted, behind, self.now()) {
                desks[shard as usize].fetch(version);
            }
            self.office.call(&desks);
        }
        let speaks_at = self.now() + QUIET;
        let mut said = false;
        let mut found = wanted;
        loop {
            let seen = self.mailbox.landings();
            found = found.max(self.take_in(compute)?.unwrap_or(found));
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
            // Its round may be over, and the run; then nobody waits for this.
            if self.mailbox.is_over(wanted, Until::Close) {
                return Ok(None);
            }
            if self.intake.is_ready() {
                break;
            }
            let wakes = [self.intake.next_wake(), (!said).then_some(speaks_at)];
            let wake = wakes.into_iter().flatten().min();
            let sleep = wake.map(|at| at.since(self.now().min(at)).max(Duration::from_micros(50)));
            self.mailbox.await_landing(wanted, seen, sleep);
        }
        self.stale = self.intake.stale().collect();
        Ok(Some(found))
    }

    /// Loads what couriers have brought, and sends them for more where it is not new enough; returns the
    /// newest version among it.
    fn take_in(&mut self, compute: &mut dyn Compute) -> Result<Option<Version>, FrameError> {
        let mut newest = None;
        for shard in 0..self.starts.len() {
            let landed = self.office.lock()[shard].take()?;
            let Some(Landed { found, values }) = landed else { continue };
            compute.load(self.starts[shard], &values);
            newest = newest.max(Some(found));
            let next = self.intake.landed(ShardId(shard as u32), found, self.now());
            let desk = &mut self.office.lock()[shard];
            desk.spare = values;
            if let Some(version) = next {
                desk.fetch(version);
                self.office.called[shard].notify_one();
            }
        }
        Ok(newest)
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
                        let sent = link.write(base, &gradient, is_over);
                        drop(gradient);
                        sent.map(|sent| {
                            if sent {
                                self.stay(desk, base.next());
                            }
                            None
                        })
                    }
                }
                Errand::Pull(version, mut values) => {
                    values.resize(link.elements.len(), 0.0);
                    let asked = link.ask(version).and_then(|()| link.answer());
                    let read = asked.and_then(|answer| link.take(answer, version, &mut values));
                    read.map(|found| Some(Landed { found, values }))
                }
            };
            let failed = done.is_err();
            match done {
                Ok(None) => continue,
                Ok(Some(landed)) => self.lock()[desk].landed = Some(landed),
                Err(error) => self.lock()[desk].failed = Some(error),
            }
            mailbox.note_landing();
            if failed {
                return;
            }
        }
    }

    /// The courier of a desk that has nothing else to do fetches what comes next.
    fn stay(&self, desk: usize, next: Version) {
        let desk = &mut self.lock()[desk];
        if !desk.fetching {
            desk.fetch(next);
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
