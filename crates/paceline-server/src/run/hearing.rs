//! Who comes, what they say, and how they go.

use paceline_core::{
    Blocks, Contribution, Enough, EventKind, LeaveReason, MachineError, ShardId, Time, Version,
    WorkerId,
};
use paceline_params::Block;
use paceline_wire::message::{FromShard, FromWorker, Job, ToShard, ToWorker};

use super::Run;
use crate::input::{Call, Ended};

impl Run {
    pub(super) fn meet(&mut self, call: Call) {
        let Call { wish, name, outbox, reply } = call;
        let refusal = match () {
            () if self.stop.is_some() => Some("the run is over".to_owned()),
            () if self.workers.len() >= self.most => {
                Some(format!("the run is full: it has room for {} workers", self.most))
            }
            () => None,
        };
        if let Some(why) = refusal {
            let _ = reply.send(Err(why));
            return;
        }
        let worker = self.workers.number(wish);
        let session = rand::random();
        let now = self.now();
        self.shards.send_all(&ToShard::Admit { worker, session });
        self.workers.add(worker, session, name, outbox);
        self.liveness.heard(worker, now);
        let _ = reply.send(Ok(self.job(worker, session)));
    }

    fn job(&self, worker: WorkerId, session: u64) -> Job {
        Job {
            worker,
            session,
            heartbeat: self.config.heartbeat,
            seed: self.config.seed,
            model: self.config.model.clone(),
            data: self.config.data.clone(),
            costs: self.config.costs.clone(),
            balance: self.config.balance,
            samples: self.config.samples,
            batch: self.config.round.batch,
            micro_batches: self.config.round.micro_batches,
            straggler: self.config.round.straggler,
            norms: self.config.wants_noise(),
            any_newer: self.core.machine().policy().admissible_lag() > 0,
            wire: self.config.wire,
            pull: self.config.pull.to_string(),
            partial_push: self.config.push != Enough::All,
            max_stale: self.config.max_stale,
            layout: self.layout.clone(),
            shards: self.shards.addresses.clone(),
        }
    }

    pub(super) fn hear(&mut self, worker: WorkerId, message: FromWorker) {
        let now = self.now();
        let heard = match message {
            FromWorker::Heartbeat { sent } => {
                self.workers.answer(worker, sent, now, self.config.heartbeat / 4);
                Ok(())
            }
            FromWorker::Ready { samples } => {
                self.join(worker, samples).map_err(LeaveReason::Misbehaved)
            }
            FromWorker::Progress { base, done } => {
                self.core.handle_progress(worker, base, done, now);
                Ok(())
            }
            FromWorker::Done { base, weight, loss, square, stale } => {
                let blocks = Blocks::All;
                let said = Contribution { worker, base, weight, loss, square, blocks };
                self.done(said, &stale)
            }
            FromWorker::Aborted { base, done } => {
                let aborted = self.core.handle_aborted(worker, base, done, now);
                self.shards.discard(worker, base);
                self.release(worker, base);
                aborted.map_err(fault)
            }
            FromWorker::Bye => {
                self.leave(worker, LeaveReason::Finished);
                Ok(())
            }
        };
        if let Err(why) = heard {
            self.leave(worker, why);
        }
        self.act();
    }

    fn join(&mut self, worker: WorkerId, samples: u32) -> Result<(), String> {
        let (now, expected) = (self.now(), self.config.samples);
        if samples != expected {
            return Err(format!(
                "its training set has {samples} samples, this run's has {expected}; give it the \
                 same --data"
            ));
        }
        let joined = self.core.handle_join(worker, self.workers.name(worker), now);
        joined.map_err(|error| error.to_string())
    }

    fn done(&mut self, contribution: Contribution, stale: &[u32]) -> Result<(), LeaveReason> {
        let (now, worker, base) = (self.now(), contribution.worker, contribution.base);
        self.core.handle_done(contribution, now).map_err(fault)?;
        self.said.insert(worker, (base, now));
        for &shard in stale {
            if let Some(workers) = self.progress.open_stale.get_mut(shard as usize) {
                *workers += 1;
            }
        }
        if self.core.has_given_up(base) {
            // It has not heard of the close yet, and will not say that nothing comes of it.
            self.shards.discard(worker, base);
            self.release(worker, base);
        } else if self.credits.request(worker, base, now) {
            self.workers.send(worker, &ToWorker::Push { base });
        }
        Ok(())
    }

    pub(super) fn hear_shard(&mut self, index: u32, message: FromShard, blocks: Vec<Block>) {
        match message {
            FromShard::Ready | FromShard::Alive => {}
            FromShard::Staged { worker, session, base } => {
                if self.workers.is_current(worker, session) {
                    self.staged(worker, base, index);
                }
            }
            FromShard::Gone { worker, session, why } => {
                self.ended(Ended::Worker { worker, session, why });
            }
            FromShard::Rejected { peer, error } => self.ended(Ended::Stranger { peer, error }),
            FromShard::Summed { norms } => self.summed(ShardId(index), &norms),
            FromShard::Applied { hash, counts, .. } => {
                self.applied(ShardId(index), hash, counts);
            }
            FromShard::Snapshot { version } => self.gathered(index, version, blocks),
        }
    }

    fn staged(&mut self, worker: WorkerId, base: Version, shard: u32) {
        let now = self.now();
        // It may come before the word.
        let said = self.said.get(&worker).filter(|(of, _)| *of == base);
        let said = said.map(|&(_, at)| now.since(at));
        if let Some((longest, took)) = self.progress.open_parts.get_mut(shard as usize).zip(said) {
            *longest = took.max(*longest);
        }
        match self.core.handle_staged(worker, base, ShardId(shard), now) {
            Ok(true) => {}
            // Other shards may hold their parts of what was given up, and wait for these.
            Ok(false) => self.shards.discard(worker, base),
            Err(error) => self.leave(worker, fault(error)),
        }
        self.act();
    }

    /// One connection less, and nothing else.
    pub(super) fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Stranger { peer, error } => {
                self.emit(EventKind::ConnectionClosed { peer, error });
            }
            Ended::Worker { worker, session, why } => {
                match self.workers.is_current(worker, session) {
                    true => self.leave(worker, why),
                    false => self.workers.gone(worker, session),
                }
            }
        }
    }

    /// Everything of a worker goes: its connections, its place, what is staged of it.
    pub(super) fn leave(&mut self, worker: WorkerId, why: LeaveReason) {
        if let LeaveReason::Misbehaved(error) | LeaveReason::NotFinite(error) = &why {
            self.workers.expel(worker, error.clone());
        }
        let name = self.workers.remove(worker);
        self.liveness.forget(worker);
        self.release(worker, Version(u64::MAX));
        let now = self.now();
        let blown = matches!(why, LeaveReason::NotFinite(_));
        // What is in shared memory is found out only when it is folded.
        let counted = self.core.machine().is_working(worker) || self.update.is_some();
        self.doubtful |= blown && counted;
        match self.core.handle_leave(worker, why.clone(), now) {
            Ok(()) => self.act(),
            Err(_) => {
                let error = format!("left before it was ready: {why}");
                self.emit(EventKind::ConnectionClosed { peer: name, error });
            }
        }
        self.shards.send_all(&ToShard::Forget { worker });
        if self.doubtful && self.core.machine().live().len() == 0 {
            self.diverged(self.progress.version);
        }
    }

    pub(super) fn release(&mut self, worker: WorkerId, base: Version) {
        self.credits.release(worker, base, self.now());
        self.grant();
    }

    /// Tells those whose turn it is that they may push.
    pub(super) fn grant(&mut self) {
        let now = self.now();
        while let Some((worker, base)) = self.credits.next(now) {
            self.workers.send(worker, &ToWorker::Push { base });
        }
    }

    /// Who has fallen silent.
    pub(super) fn look_around(&mut self) {
        let now = self.now();
        for (worker, silence) in self.liveness.silent(now) {
            self.leave(worker, LeaveReason::Silent(silence));
        }
        self.look_at_shards(now);
    }

    /// A shard in another process gives signs of life; without it the run cannot go on. Reports of
    /// its whole state may take longer to come over than other words.
    fn look_at_shards(&mut self, now: Time) {
        let patience = self.config.liveness * if self.snapshot.is_some() { 10 } else { 1 };
        let silent = self.shards_alive.silent(now);
        if let Some((index, silence)) = silent.iter().find(|(_, silence)| *silence > patience) {
            self.fail(format!("shard {index} was silent for {:.1} s", silence.as_secs_f64()));
        }
    }
}

/// Why a worker must go whose report cannot be true.
fn fault(error: MachineError) -> LeaveReason {
    match error {
        MachineError::BadLoss { .. } => LeaveReason::NotFinite(error.to_string()),
        MachineError::BadSquare { square, .. } if !square.is_finite() => {
            LeaveReason::NotFinite(error.to_string())
        }
        error => LeaveReason::Misbehaved(error.to_string()),
    }
}
