//! The workers of a run: how they join, what they report, and how they leave.

use paceline_core::{
    Announcement, Contribution, ContributionId, Enough, EventKind, LeaveReason, Liveness,
    MachineError, ShardId, Time, WorkerId, act,
};
use paceline_params::Block;
use paceline_wire::message::{FromShard, FromWorker, Job, ToShard, ToWorker};

use super::{Run, rates::check_rates};
use crate::{
    credits::Credits,
    input::{Call, Ended},
    workers::Workers,
};

/// The workers of a run, with their push credits and liveness.
pub(super) struct Members {
    pub(super) workers: Workers,
    /// The most workers that may take part.
    pub(super) most: usize,
    pub(super) credits: Credits,
    pub(super) liveness: Liveness,
    /// Whether a worker of the open round was expelled for values that are not finite, and none has arrived
    /// since.
    pub(super) doubtful: bool,
}

impl Run {
    pub(super) fn meet(&mut self, call: Call) {
        let Call { wish, name, outbox, reply } = call;
        let refusal = match () {
            () if self.ending.reason.is_some() => Some("the run is over".to_owned()),
            () if self.members.workers.len() >= self.members.most => {
                Some(format!("the run is full: it has room for {} workers", self.members.most))
            }
            () => None,
        };
        if let Some(why) = refusal {
            let _ = reply.send(Err(why));
            return;
        }
        let worker = self.members.workers.number(wish);
        let session = rand::random();
        let now = self.now();
        self.shards.send_all(&ToShard::Admit { worker, session });
        self.members.workers.add(worker, session, name, outbox);
        self.members.liveness.heard(worker, now);
        let _ = reply.send(Ok(self.job(worker, session)));
    }

    fn job(&self, worker: WorkerId, session: u64) -> Job {
        Job {
            worker,
            session,
            workers: self.config.round.expected as u32,
            heartbeat: self.config.heartbeat,
            seed: self.config.seed,
            model: self.config.model.clone(),
            data: self.config.data.clone(),
            costs: self.config.costs.clone(),
            balance: self.config.balance,
            samples: self.config.samples,
            epochs: self.core.ledger().epochs(),
            batch: self.config.round.batch,
            micro_batches: self.config.round.micro_batches,
            straggler: self.config.round.straggler,
            norms: self.config.wants_noise(),
            version: self.updates.version,
            follow: self.config.keeps_history(),
            any_newer: self.core.machine().policy().admissible_lag() > 0,
            wire: self.config.wire,
            pull: self.config.weak.pull.to_string(),
            partial_push: self.config.weak.push != Enough::All,
            max_stale: self.config.weak.max_stale,
            layout: self.layout.clone(),
            shards: self.shards.addresses.clone(),
        }
    }

    pub(super) fn hear(&mut self, worker: WorkerId, message: FromWorker) {
        let now = self.now();
        let heard = match message {
            FromWorker::Heartbeat { sent } => {
                self.members.workers.answer(worker, sent, now, self.config.heartbeat / 4);
                Ok(())
            }
            FromWorker::Ready { samples, ahead } => {
                self.join(worker, samples, ahead).map_err(LeaveReason::Misbehaved)
            }
            FromWorker::Progress { id, done } => {
                self.core.handle_progress(worker, id, done, now);
                Ok(())
            }
            FromWorker::Split { parts } => {
                self.core.handle_split(worker, parts, now);
                Ok(())
            }
            FromWorker::Done { id, weight, loss, square, stale, learning_rates } => {
                let announcement = Announcement { id, weight, loss, square };
                self.announced(worker, announcement, &stale, learning_rates)
            }
            FromWorker::Aborted { id, done } => {
                self.core.handle_aborted(worker, id, done, now).map_err(fault)
            }
            FromWorker::Stepped { version, record } => self.stepped(worker, version, record),
            FromWorker::WantRecords { first, last } => {
                self.want_records(worker, (first, last));
                Ok(())
            }
            FromWorker::Hashes { version, hashes } => {
                self.compare_replica(worker, version, hashes);
                Ok(())
            }
            FromWorker::WantState { at_least } => {
                self.want_state(worker, at_least).map_err(LeaveReason::Misbehaved)
            }
            FromWorker::Bye => {
                self.leave(worker, LeaveReason::Finished);
                Ok(())
            }
        };
        if let Err(why) = heard {
            self.leave(worker, why);
        }
        act(self);
    }

    fn join(&mut self, worker: WorkerId, samples: Option<u32>, ahead: u32) -> Result<(), String> {
        match (samples, self.config.samples) {
            (samples, expected) if samples == expected => {}
            (Some(samples), Some(expected)) => {
                return Err(format!(
                    "its training set has {samples} samples, this run's has {expected}; give it the \
                     same --data"
                ));
            }
            (_, Some(_)) => return Err("it brings a stream, this run has a data set".to_owned()),
            (..) => return Err("it has a data set, this run's workers bring streams".to_owned()),
        }
        let now = self.now();
        let joined = self.core.handle_join(worker, self.members.workers.name(worker), now);
        self.ending.departed.remove(&worker);
        joined.map_err(|error| error.to_string())?;
        if ahead > 0 {
            self.core.lease_ahead(worker, ahead);
        }
        Ok(())
    }

    /// A worker announces a contribution: it is told when it may push.
    fn announced(
        &mut self,
        worker: WorkerId,
        announcement: Announcement,
        stale: &[u32],
        rates: Vec<f32>,
    ) -> Result<(), LeaveReason> {
        let (now, id) = (self.now(), announcement.id);
        check_rates(&rates, self.config.update.optimizer.len()).map_err(LeaveReason::Misbehaved)?;
        let base = self.core.contribution(worker, id).map(|contribution| contribution.base);
        self.core.handle_done(worker, announcement, now).map_err(fault)?;
        if let Some(base) = base {
            self.updates.rates.announce(worker, id, base, rates);
            self.states.donors.announced(worker, base);
            self.ask_for_state();
        }
        for &shard in stale {
            if let Some(workers) = self.updates.open.stale.get_mut(shard as usize) {
                *workers += 1;
            }
        }
        // A contribution that was dropped meanwhile is discarded, and needs no permission.
        let is_wanted = self.core.contribution(worker, id).is_some();
        if is_wanted && self.members.credits.request(worker, id, now) {
            self.members.workers.send(worker, &ToWorker::Push { id });
        }
        Ok(())
    }

    pub(super) fn hear_shard(&mut self, index: u32, message: FromShard, blocks: Vec<Block>) {
        match message {
            FromShard::Ready | FromShard::Alive => {}
            FromShard::Staged { worker, session, id } => {
                if self.members.workers.is_current(worker, session) {
                    self.staged(worker, id, index);
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

    fn staged(&mut self, worker: WorkerId, id: ContributionId, shard: u32) {
        let now = self.now();
        // The report may come before the announcement.
        let announced = self.core.contribution(worker, id).and_then(Contribution::announced_at);
        let took = announced.map(|at| now.since(at));
        if let Some((longest, took)) = self.updates.open.parts.get_mut(shard as usize).zip(took) {
            *longest = took.max(*longest);
        }
        self.core.handle_staged(worker, id, ShardId(shard), now);
        act(self);
    }

    /// A connection has ended. A worker leaves with its connection; the run goes on.
    pub(super) fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Stranger { peer, error } => {
                self.emit(EventKind::ConnectionClosed { peer, error });
            }
            Ended::Worker { worker, session, why } => {
                match self.members.workers.is_current(worker, session) {
                    true => self.leave(worker, why),
                    false => self.members.workers.gone(worker, session),
                }
            }
        }
    }

    /// Removes a worker: its connections, its place and its staged contributions.
    pub(super) fn leave(&mut self, worker: WorkerId, why: LeaveReason) {
        if let LeaveReason::Misbehaved(error) | LeaveReason::NotFinite(error) = &why {
            self.members.workers.expel(worker, error.clone());
        }
        let name = self.members.workers.remove(worker);
        self.members.liveness.forget(worker);
        self.release(worker, ContributionId(u64::MAX));
        let now = self.now();
        let blown = matches!(why, LeaveReason::NotFinite(_));
        // Values in shared memory are checked only when they are folded.
        let counted = self.core.machine().is_working(worker) || self.updates.current.is_some();
        self.members.doubtful |= blown && counted;
        match self.core.handle_leave(worker, why.clone(), now) {
            Ok(()) => {
                self.ending.departed.insert(worker, why == LeaveReason::Finished);
                act(self);
            }
            Err(_) => {
                let error = format!("left before it was ready: {why}");
                self.emit(EventKind::ConnectionClosed { peer: name, error });
            }
        }
        self.forget_replica(worker);
        self.shards.send_all(&ToShard::Forget { worker });
        self.forget_state(worker);
        if self.members.doubtful && self.core.machine().live().len() == 0 {
            self.diverged(self.updates.version);
        }
    }

    pub(super) fn release(&mut self, worker: WorkerId, id: ContributionId) {
        let now = self.now();
        self.members.credits.release(worker, id, now);
        self.grant();
    }

    /// Tells the workers whose turn it is that they may push.
    pub(super) fn grant(&mut self) {
        let now = self.now();
        while let Some((worker, id)) = self.members.credits.next(now) {
            self.members.workers.send(worker, &ToWorker::Push { id });
        }
    }

    /// Removes silent workers, and fails the run if a shard is silent.
    pub(super) fn look_around(&mut self) {
        let now = self.now();
        for (worker, silence) in self.members.liveness.silent(now) {
            self.leave(worker, LeaveReason::Silent(silence));
        }
        self.look_at_shards(now);
        self.look_at_donor(now);
        self.pair_with_record();
    }

    /// Checks the heartbeats of shards in other processes; the run cannot go on without them. A snapshot may
    /// take longer to transfer than other reports.
    fn look_at_shards(&mut self, now: Time) {
        let patience =
            self.config.liveness * if self.snapshots.gathering.is_some() { 10 } else { 1 };
        let silent = self.shards_alive.silent(now);
        if let Some((index, silence)) = silent.iter().find(|(_, silence)| *silence > patience) {
            self.fail(format!("shard {index} was silent for {:.1} s", silence.as_secs_f64()));
        }
    }
}

/// The reason for expelling a worker whose report cannot be true.
fn fault(error: MachineError) -> LeaveReason {
    match error {
        MachineError::BadLoss { .. } => LeaveReason::NotFinite(error.to_string()),
        MachineError::BadSquare { square, .. } if !square.is_finite() => {
            LeaveReason::NotFinite(error.to_string())
        }
        error => LeaveReason::Misbehaved(error.to_string()),
    }
}
