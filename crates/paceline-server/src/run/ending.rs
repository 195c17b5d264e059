//! The end of a run: everything begun is finished, everybody is told, the books are closed.

use paceline_core::{EventKind, LedgerReport, SampleCounts, ShardWork, StopReason, Version};
use paceline_params::ParamHash;
use paceline_wire::message::{FromWorker, ToShard, ToWorker};
use tokio::{sync::mpsc::UnboundedReceiver, time::timeout};

use super::{Evaluation, PARTING, Run};
use crate::{
    checkpoints,
    input::{Ended, Input},
};

/// What became of a run.
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
    /// The last measurement on the test set.
    pub evaluation: Option<Evaluation>,
    /// What became of the samples.
    pub samples: SampleCounts,
    /// Samples used by this process alone.
    pub samples_here: u64,
    /// The books.
    pub ledger: LedgerReport,
    /// Hash of the last version, if the shards lived to tell it.
    pub param_hash: Option<ParamHash>,
    /// What each shard did in the rounds of this process.
    pub shards: Vec<ShardWork>,
}

impl Run {
    /// The first reason counts. An open round is left as it is: nothing of it was used.
    pub(super) fn stop_because(&mut self, reason: StopReason) {
        self.stop.get_or_insert(reason);
    }

    /// Nothing good comes of `version`; whatever else would have ended the run.
    pub(super) fn diverged(&mut self, version: Version) {
        if !matches!(self.stop, Some(StopReason::Failed(_))) {
            self.stop = Some(StopReason::Diverged(version));
        }
    }

    /// Whether everything begun is finished: the update, the last checkpoint, the last measurement.
    pub(super) fn is_settled(&mut self) -> bool {
        if let Some(StopReason::Failed(_)) = self.stop {
            return !self.checkpointing && !self.evaluating;
        }
        if self.update.is_some() || self.snapshot.is_some() || self.checkpointing || self.evaluating
        {
            return false;
        }
        let version = self.progress.version;
        let diverged = match self.stop {
            Some(StopReason::Diverged(version)) => Some(version),
            _ => None,
        };
        let measured = self.progress.evaluation.is_some_and(|(at, _)| at == version);
        let hurried =
            matches!(self.stop, Some(StopReason::Interrupted | StopReason::QuorumLost { .. }));
        let evaluate = self.evaluator.is_some() && !measured && !hurried && diverged.is_none();
        let saved = self.progress.checkpointed.as_ref().is_some_and(|(at, _)| *at == version);
        let checkpoint = self.config.checkpoints.is_some() && !saved && diverged.is_none();
        let hashed = self.progress.param_hash.is_some_and(|(at, _)| at == version);
        if checkpoint && !self.checkpoint_retry.is_due(self.now(), true) {
            return false;
        }
        if evaluate || checkpoint || !hashed {
            self.take_snapshot(evaluate, checkpoint);
            return false;
        }
        match diverged {
            Some(version) => self.withdraw(version),
            None => self.config.checkpoints.iter().for_each(|c| checkpoints::prune(c, c.keep)),
        }
        true
    }

    /// What this process saved of the version that nobody could compute from is of no use.
    fn withdraw(&mut self, version: Version) {
        let saved = self.progress.checkpointed.take().filter(|(at, _)| *at == version);
        if let Some(((_, path), config)) = saved.zip(self.config.checkpoints.as_ref()) {
            checkpoints::withdraw(config, &path);
        }
    }

    pub(super) fn conclude(&mut self) -> Outcome {
        let reason = self.stop.clone().unwrap_or(StopReason::Interrupted);
        let samples = self.core.ledger().counts();
        let ledger = self.core.ledger().report();
        let stopped =
            EventKind::Stopped { reason: reason.clone(), samples, ledger: ledger.clone() };
        self.emit(stopped);
        let progress = &self.progress;
        let span = progress.began.zip(progress.updated).map(|(began, end)| end.since(began));
        Outcome {
            rounds: progress.version.0 - self.first_version.0,
            version: progress.version,
            seconds: span.unwrap_or_default().as_secs_f64(),
            loss: progress.loss,
            evaluation: progress.evaluation.map(|(_, evaluation)| evaluation),
            samples_here: samples.used - progress.samples_before,
            samples,
            ledger,
            param_hash: progress.param_hash.map(|(_, hash)| hash),
            shards: progress.shards.clone(),
            reason,
        }
    }

    /// Tells everybody, and waits a moment for them to go.
    pub(super) async fn part(&mut self, queue: &mut UnboundedReceiver<Input>) {
        let why = self.stop.as_ref().map(ToString::to_string).unwrap_or_default();
        self.workers.send_all(self.workers.everyone(), &ToWorker::Stop(why));
        let leaving = async {
            while self.workers.any_connected() {
                match queue.recv().await {
                    Some(
                        Input::Ended(Ended::Worker { worker, session, .. })
                        | Input::Worker { worker, session, message: FromWorker::Bye, .. },
                    ) if self.workers.is_current(worker, session) => {
                        self.workers.remove(worker);
                    }
                    Some(Input::Ended(Ended::Worker { worker, session, .. })) => {
                        self.workers.gone(worker, session);
                    }
                    Some(Input::Call(call)) => {
                        let _ = call.reply.send(Err("the run is over".to_owned()));
                    }
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
