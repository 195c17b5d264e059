//! Snapshots of a published version: evaluated and written to disk while the run goes on.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use paceline_core::{EventKind, StopReason, Version};
use paceline_params::{Block, ParamHash};
use paceline_wire::{message::ToShard, offer::Offer};

use super::{
    Evaluation, Evaluator, Run, checkpoint_retry::CheckpointRetry, record_wait::AwaitingRecord,
    replica_checkpoints::Moment,
};
use crate::{
    checkpoints,
    config::{SavedState, ServerConfig},
    input::Input,
    placement::{Gathering, flat},
};

/// The state of all shards at one version, being gathered.
pub(super) struct Snapshot {
    version: Version,
    step: u64,
    gathering: Gathering,
    evaluate: bool,
    checkpoint: Option<SavedState>,
}

/// Snapshots of a run: the one being gathered, and the results of earlier ones.
pub(super) struct Snapshots {
    pub(super) gathering: Option<Snapshot>,
    pub(super) evaluator: Option<Arc<Mutex<Evaluator>>>,
    /// Whether an evaluation is under way.
    pub(super) evaluating: bool,
    /// Whether a checkpoint is being written, or waits for a worker's record.
    pub(super) checkpointing: bool,
    pub(super) awaiting_record: Option<AwaitingRecord>,
    pub(super) retry: CheckpointRetry,
    pub(super) evaluation: Option<(Version, Evaluation)>,
    pub(super) checkpointed: Option<(Version, PathBuf)>,
    pub(super) param_hash: Option<(Version, ParamHash)>,
    next_evaluation: u64,
    next_checkpoint: u64,
}

impl Snapshots {
    pub(super) fn new(
        config: &ServerConfig,
        version: Version,
        evaluator: Option<Evaluator>,
    ) -> Snapshots {
        let every = config.checkpoints.as_ref().map_or(0, |checkpoints| checkpoints.every.max(1));
        Snapshots {
            gathering: None,
            evaluator: evaluator.map(|evaluator| Arc::new(Mutex::new(evaluator))),
            evaluating: false,
            checkpointing: false,
            awaiting_record: None,
            retry: CheckpointRetry::default(),
            evaluation: None,
            checkpointed: None,
            param_hash: None,
            next_evaluation: version.0 + config.evaluate_every.max(1),
            next_checkpoint: version.0 + every,
        }
    }
}

impl Run {
    pub(super) fn snapshot_if_due(&mut self, version: Version) {
        if self.snapshots.gathering.is_some() || self.ending.reason.is_some() {
            return;
        }
        let now = self.now();
        let evaluate = self.snapshots.evaluator.is_some()
            && !self.snapshots.evaluating
            && version.0 >= self.snapshots.next_evaluation;
        if evaluate {
            self.snapshots.next_evaluation = version.0 + self.config.evaluate_every.max(1);
        }
        let every = self.config.checkpoints.as_ref().map(|checkpoints| checkpoints.every.max(1));
        let due = every.filter(|_| {
            !self.snapshots.checkpointing
                && version.0 >= self.snapshots.next_checkpoint
                && self.snapshots.retry.is_due(now, false)
        });
        if let Some(every) = due {
            self.snapshots.next_checkpoint = version.0 + every;
        }
        let from_worker = due.is_some() && self.saves_worker_states();
        if from_worker {
            self.want_replica_checkpoint();
        }
        let from_shards = due.is_some() && !from_worker;
        if evaluate || from_shards {
            self.take_snapshot(evaluate, from_shards);
        }
    }

    /// The part of a checkpoint that is neither parameters nor optimizer state.
    pub(super) fn saved_state(&self, moment: Moment) -> SavedState {
        let Moment { ledger, noise, .. } = moment;
        // Initial values do not matter any more.
        let offer = self.offer.clone().map(|offer| Offer { hashes: Vec::new(), ..offer });
        SavedState {
            ledger,
            seed: self.config.seed,
            data: self.config.data.clone(),
            balance: SavedState::balance(self.config.balance, self.config.round.batch),
            noise,
            offer,
            record: None,
        }
    }

    /// A shard handles commands in order, so it reports the state of this version.
    pub(super) fn take_snapshot(&mut self, evaluate: bool, checkpoint: bool) {
        self.snapshots.gathering = Some(Snapshot {
            version: self.updates.version,
            step: self.updates.step,
            gathering: Gathering::new(self.shards.len()),
            evaluate,
            checkpoint: checkpoint.then(|| self.saved_state(self.moment())),
        });
        self.shards.send_all(&ToShard::Snapshot);
    }

    pub(super) fn gathered(&mut self, shard: u32, version: Version, blocks: Vec<Block>) {
        // A shard that is behind reports its older version.
        let Some(snapshot) = self.snapshots.gathering.as_mut().filter(|s| s.version >= version)
        else {
            return self.fail(format!("shard {shard} reported {version}, which nobody asked for"));
        };
        let Some(blocks) = snapshot.gathering.add(shard, blocks) else { return };
        let Some(snapshot) = self.snapshots.gathering.take() else { return };
        let Snapshot { version, step, evaluate, checkpoint, .. } = snapshot;
        if evaluate {
            self.evaluate(version, &blocks);
        }
        let checkpoint =
            checkpoint.filter(|_| !matches!(self.ending.reason, Some(StopReason::Diverged(_))));
        if let Some(saved) = checkpoint {
            let (blocks, since) = (blocks.clone(), self.now());
            self.await_record(AwaitingRecord { version, step, blocks, saved, since });
        }
        if self.ending.reason.is_some() {
            let mut at = 0;
            let parts = blocks.iter().map(|block| {
                at += block.values().len();
                ParamHash::from_values(at - block.values().len(), block.values())
            });
            self.snapshots.param_hash = Some((version, parts.collect()));
        }
    }

    fn evaluate(&mut self, version: Version, blocks: &[Block]) {
        let Some(evaluator) = self.snapshots.evaluator.clone() else { return };
        let params = flat(blocks, None);
        self.snapshots.evaluating = true;
        let evaluate = move || {
            let mut evaluator = evaluator.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(evaluator(&params.into_vec()))
        };
        self.beside(evaluate, move |result| Input::Evaluated { version, result });
    }

    pub(super) fn evaluated(&mut self, version: Version, result: Result<Evaluation, String>) {
        self.snapshots.evaluating = false;
        let evaluation = match result {
            Ok(evaluation) => evaluation,
            Err(error) => return self.fail(format!("failed to measure {version}: {error}")),
        };
        self.snapshots.evaluation = Some((version, evaluation));
        let Evaluation { loss, accuracy } = evaluation;
        self.emit(EventKind::Evaluated { version, loss, accuracy });
        if self.config.limits.accuracy.is_some_and(|target| accuracy >= target) {
            self.stop_because(StopReason::TargetAccuracy);
        }
        if self.config.limits.loss.is_some_and(|target| loss <= target) {
            self.stop_because(StopReason::TargetLoss);
        }
    }

    pub(super) fn checkpoint(
        &mut self,
        version: Version,
        step: u64,
        blocks: &[Block],
        state: &SavedState,
    ) {
        let Some(config) = self.config.checkpoints.clone() else { return };
        let tensors = self.layout.tensors();
        let described = checkpoints::describe(&self.config, tensors, blocks, version, step, state);
        self.snapshots.checkpointing = true;
        let write = move || checkpoints::write(&config, &described);
        self.beside(write, move |result| Input::Checkpointed { version, result });
    }

    /// A checkpoint is on disk, or has failed. A run that continues tries again with a later version. A run
    /// that ends tries its last one a few times, and fails without it.
    pub(super) fn checkpointed(
        &mut self,
        version: Version,
        result: Result<Option<PathBuf>, String>,
    ) {
        self.snapshots.checkpointing = false;
        match result {
            Ok(Some(path)) => {
                self.snapshots.retry.succeeded();
                self.snapshots.checkpointed = Some((version, path.clone()));
                self.emit(EventKind::Checkpointed { version, path });
            }
            Ok(None) => self.diverged(version),
            Err(error) => {
                let (now, is_ending) = (self.now(), self.ending.reason.is_some());
                self.snapshots.next_checkpoint = version.0;
                let gives_up = self.snapshots.retry.failed(now, is_ending);
                self.emit(EventKind::CheckpointFailed { version, error: error.clone() });
                if gives_up {
                    self.fail(format!("failed to write the last checkpoint: {error}"));
                }
            }
        }
    }

    /// Runs a job on a thread of its own. Its result always reaches the queue.
    pub(super) fn beside<T: 'static>(
        &self,
        job: impl FnOnce() -> Result<T, String> + Send + 'static,
        report: impl FnOnce(Result<T, String>) -> Input + Send + 'static,
    ) {
        let inputs = self.inputs.clone();
        tokio::task::spawn_blocking(move || drop(inputs.send(report(outcome(job)))));
    }
}

/// The result of a job. A panic becomes an error, so that the run does not wait for ever.
fn outcome<T>(job: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let said = |panic: &(dyn Any + Send)| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
    };
    catch_unwind(AssertUnwindSafe(job))
        .unwrap_or_else(|panic| Err(format!("it panicked: {}", said(&*panic))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_outcome_with_its_message() {
        assert_eq!(outcome(|| Ok(1)), Ok(1));
        let one = 1;
        let panicked = outcome(|| -> Result<(), String> { panic!("on purpose {one}") });
        assert_eq!(panicked.unwrap_err(), "it panicked: on purpose 1");
        let panicked = outcome(|| -> Result<(), String> { panic!("on purpose") });
        assert_eq!(panicked.unwrap_err(), "it panicked: on purpose");
    }
}
