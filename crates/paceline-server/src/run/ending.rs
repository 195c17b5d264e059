//! The end of a run: work under way is finished, all peers are told, the ledger is reported.

use std::collections::BTreeMap;

use paceline_core::{
    EventKind, LedgerReport, SampleCounts, ShardWork, StopReason, Version, WorkerId,
};
use paceline_params::ParamHash;
use paceline_wire::message::{FromWorker, ToShard, ToWorker};
use tokio::{sync::mpsc::UnboundedReceiver, time::timeout};

use super::{Evaluation, PARTING, Run};
use crate::{
    checkpoints,
    input::{Ended, Input},
};

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Why it ended.
    pub reason: StopReason,
    /// Rounds closed by this process.
    pub rounds: u64,
    /// The last version.
    pub version: Version,
    /// From the first round's start to the last update.
    pub seconds: f64,
    /// Mean training loss of the last rounds (moving average).
    pub loss: Option<f64>,
    /// The last evaluation on the test set.
    pub evaluation: Option<Evaluation>,
    /// Counts of used, dropped, requeued and salvaged samples.
    pub samples: SampleCounts,
    /// Samples used by this process alone.
    pub samples_here: u64,
    /// The ledger's final report.
    pub ledger: LedgerReport,
    /// Hash of the last version, if the shards were still there to report it.
    pub param_hash: Option<ParamHash>,
    /// Each shard's work in the rounds of this process.
    pub shards: Vec<ShardWork>,
}

/// The end of a run, with the numbers it started from.
pub(super) struct Ending {
    /// The reason, once the run ends.
    pub(super) reason: Option<StopReason>,
    /// The version that this process began with.
    pub(super) first_version: Version,
    /// Samples that were used before it began.
    pub(super) samples_before: u64,
    /// Workers that joined and left, and whether they left in an orderly way.
    pub(super) departed: BTreeMap<WorkerId, bool>,
}

impl Ending {
    /// Whether workers have joined and all of them have finished.
    pub(super) fn all_finished(&self, live: usize) -> bool {
        live == 0 && !self.departed.is_empty() && self.departed.values().all(|&orderly| orderly)
    }

    /// The reason to stop where no worker is left: some have finished, or all were `lost`.
    fn without_workers(&self, lost: StopReason) -> StopReason {
        match self.departed.values().any(|&orderly| orderly) {
            true => StopReason::WorkersFinished,
            false => lost,
        }
    }
}

impl Run {
    /// The first reason counts. An open round stays open: no contribution to it was used.
    pub(super) fn stop_because(&mut self, reason: StopReason) {
        let reason = match reason {
            StopReason::QuorumLost { live: 0, .. } if self.config.limits.workers_finish => {
                self.ending.without_workers(reason)
            }
            reason => reason,
        };
        self.ending.reason.get_or_insert(reason);
    }

    /// `version` has diverged. This overrides any other reason but a failure.
    pub(super) fn diverged(&mut self, version: Version) {
        if !matches!(self.ending.reason, Some(StopReason::Failed(_))) {
            self.ending.reason = Some(StopReason::Diverged(version));
        }
    }

    /// Whether work under way is finished: the update, the last checkpoint, the last evaluation.
    pub(super) fn is_settled(&mut self) -> bool {
        if let Some(StopReason::Failed(_)) = self.ending.reason {
            return !self.snapshots.checkpointing && !self.snapshots.evaluating;
        }
        if self.updates.current.is_some()
            || self.snapshots.gathering.is_some()
            || self.snapshots.checkpointing
            || self.snapshots.evaluating
        {
            return false;
        }
        let version = self.updates.version;
        let diverged = match self.ending.reason {
            Some(StopReason::Diverged(version)) => Some(version),
            _ => None,
        };
        let measured = self.snapshots.evaluation.is_some_and(|(at, _)| at == version);
        let hurried = matches!(
            self.ending.reason,
            Some(StopReason::Interrupted | StopReason::QuorumLost { .. })
        );
        let evaluate =
            self.snapshots.evaluator.is_some() && !measured && !hurried && diverged.is_none();
        let saved = self.snapshots.checkpointed.as_ref().is_some_and(|(at, _)| *at == version);
        let checkpoint = self.config.checkpoints.is_some() && !saved && diverged.is_none();
        let hashed = self.snapshots.param_hash.is_some_and(|(at, _)| at == version);
        if checkpoint && !self.snapshots.retry.is_due(self.now(), true) {
            return false;
        }
        let from_worker = checkpoint && self.saves_worker_states();
        let from_shards = checkpoint && !from_worker;
        if evaluate || from_shards || !hashed {
            self.take_snapshot(evaluate, from_shards);
            return false;
        }
        if from_worker && self.awaits_last_state() {
            return false;
        }
        match diverged {
            Some(version) => self.withdraw(version),
            None => self.config.checkpoints.iter().for_each(|c| checkpoints::prune(c, c.keep)),
        }
        true
    }

    /// Removes the checkpoint of a diverged version, if this process wrote one.
    fn withdraw(&mut self, version: Version) {
        let saved = self.snapshots.checkpointed.take().filter(|(at, _)| *at == version);
        if let Some(((_, path), config)) = saved.zip(self.config.checkpoints.as_ref()) {
            checkpoints::withdraw(config, &path);
        }
    }

    pub(super) fn conclude(&mut self) -> Outcome {
        let reason = self.ending.reason.clone().unwrap_or(StopReason::Interrupted);
        let samples = self.core.ledger().counts();
        let ledger = self.core.report();
        let stopped =
            EventKind::Stopped { reason: reason.clone(), samples, ledger: ledger.clone() };
        self.emit(stopped);
        let (updates, snapshots) = (&self.updates, &self.snapshots);
        let span = updates.began.zip(updates.published_at).map(|(began, end)| end.since(began));
        Outcome {
            rounds: updates.version.0 - self.ending.first_version.0,
            version: updates.version,
            seconds: span.unwrap_or_default().as_secs_f64(),
            loss: updates.loss,
            evaluation: snapshots.evaluation.map(|(_, evaluation)| evaluation),
            samples_here: samples.used - self.ending.samples_before,
            samples,
            ledger,
            param_hash: snapshots.param_hash.map(|(_, hash)| hash),
            shards: updates.shard_work.clone(),
            reason,
        }
    }

    /// Tells all peers, and waits a moment for them to leave.
    pub(super) async fn part(&mut self, queue: &mut UnboundedReceiver<Input>) {
        let reason = self.ending.reason.as_ref();
        let why = reason.map(ToString::to_string).unwrap_or_default();
        let end = match reason.is_none_or(StopReason::is_success) {
            true => ToWorker::Stop(why),
            false => ToWorker::Failed(why),
        };
        self.members.workers.send_all(self.members.workers.everyone(), &end);
        let leaving = async {
            while self.members.workers.any_connected() {
                match queue.recv().await {
                    Some(
                        Input::Ended(Ended::Worker { worker, session, .. })
                        | Input::Worker { worker, session, message: FromWorker::Bye, .. },
                    ) if self.members.workers.is_current(worker, session) => {
                        self.members.workers.remove(worker);
                    }
                    Some(Input::Ended(Ended::Worker { worker, session, .. })) => {
                        self.members.workers.gone(worker, session);
                    }
                    Some(Input::Call(call)) => {
                        let _ = call.reply.send(Err("the run is over".to_owned()));
                    }
                    Some(Input::Offer(call)) => self.compare(call),
                    Some(Input::State(call)) => self.grant_state(call),
                    Some(_) => {}
                    None => break,
                }
            }
        };
        let _ = timeout(PARTING, leaving).await;
        self.shards.send_all(&ToShard::Stop);
        let closing =
            async { while self.shards.any_connected() && queue.recv().await.is_some() {} };
        let _ = timeout(PARTING, closing).await;
    }
}
