//! The thread that a shard's arithmetic runs on.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use paceline_core::{ShardCounts, Version};
use paceline_params::Block;
use paceline_wire::message::{Apply, FromShard, ShardSpec, ToShard};

use super::{
    ShardCommand, ShardReport, ShardState, Staged, Store, data::DataError, sharing::Sharing,
    state::ShardError, store::Published, sums::Spoilt,
};
use crate::faults::ShardFaults;

/// The inputs of a shard's thread.
#[derive(Debug)]
pub(crate) enum ShardInbox {
    Command(ShardCommand),
    Staged(Staged),
}

/// A shard in this process: the state that it shares with its data connections, and the channel to its
/// thread.
pub(crate) type LocalShard = (Arc<Store>, mpsc::Sender<ShardInbox>);

/// Starts a shard. It ends when told to stop, or when no sender is left. `report` receives all of its
/// messages, including an error that ends it.
pub(crate) fn spawn(
    spec: ShardSpec,
    blocks: Vec<Block>,
    faults: Option<Arc<dyn ShardFaults>>,
    report: impl Fn(Result<ShardReport, String>) + Send + Sync + 'static,
) -> Result<LocalShard, String> {
    let (sharing, mirror) = Sharing::open(&spec).unzip();
    let store = Arc::new(Store::new(&spec, sharing, faults, Box::new(report)));
    let name = format!("shard {}", spec.index);
    let version = spec.version;
    let state = ShardState::new(spec, blocks, mirror).map_err(|error| error.to_string())?;
    let (sender, inbox) = mpsc::channel();
    let shard = ShardThread { name: name.clone(), state, store: Arc::clone(&store), queue: 0 };
    thread::Builder::new()
        .name(name.clone())
        .spawn(move || shard.live(version, &inbox))
        .map_err(|error| format!("failed to start {name}: {error}"))?;
    Ok((store, sender))
}

struct ShardThread {
    name: String,
    state: ShardState,
    store: Arc<Store>,
    /// The most inputs that were queued at once since the last update.
    queue: u32,
}

impl ShardThread {
    /// However the thread ends, the coordinator learns of it.
    fn live(mut self, version: Version, inbox: &mpsc::Receiver<ShardInbox>) {
        match catch_unwind(AssertUnwindSafe(|| self.run(version, inbox))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.store.fail(format!("{}: {error}", self.name)),
            Err(_) => self.store.fail(format!("{} panicked", self.name)),
        }
    }

    fn run(
        &mut self,
        version: Version,
        inbox: &mpsc::Receiver<ShardInbox>,
    ) -> Result<(), ShardError> {
        // Workers that share memory find the first version there, too.
        self.state.begin_mirror();
        self.publish(version);
        self.store.say(FromShard::Ready);
        let mut waiting = Vec::new();
        while let Ok(first) = inbox.recv() {
            // All queued inputs are handled before folding, so that folds are fused.
            waiting.push(first);
            waiting.extend(inbox.try_iter());
            self.queue = self.queue.max(waiting.len() as u32);
            for input in waiting.drain(..) {
                if !self.handle(input)? {
                    return Ok(());
                }
            }
            self.state.fold_accepted(self.store.admitted());
        }
        Ok(())
    }

    /// Reports the workers whose gradients were not finite. This comes before the report of the update, so
    /// its receiver knows that the update is without them.
    fn tell_spoilt(&mut self) {
        let mut told = Vec::new();
        for Spoilt { worker, session, id, at, .. } in self.state.take_spoilt() {
            if !told.contains(&worker) {
                told.push(worker);
                let why = DataError::not_finite(&self.store.layout, id, at, "").why();
                self.store.say(FromShard::Gone { worker, session, why });
            }
        }
    }

    /// Returns whether to continue.
    fn handle(&mut self, input: ShardInbox) -> Result<bool, ShardError> {
        let command = match input {
            ShardInbox::Command(command) => command,
            ShardInbox::Staged(staged) => {
                if self.store.is_admitted(staged.worker, staged.session) {
                    self.state.stage(staged);
                }
                return Ok(true);
            }
        };
        match command.message {
            // The spec comes with the thread's start.
            ToShard::Init(_) => {}
            ToShard::Admit { worker, session } => self.store.admit(worker, session),
            ToShard::Forget { worker } => {
                self.store.forget(worker);
                self.state.forget(worker);
            }
            ToShard::Accept { worker, id, share } => self.state.accept(worker, id, share)?,
            ToShard::Discard { worker, id } => self.state.discard(worker, id),
            ToShard::Close { closes, apply } => {
                if let Some(apply) = &apply {
                    self.take_down(apply);
                }
                let began = Instant::now();
                let norms = self.state.close(closes, apply.as_ref())?;
                self.tell_spoilt();
                self.store.say(FromShard::Summed { norms });
                if let Some(apply) = &apply {
                    self.put_up(apply, began);
                }
            }
            ToShard::Apply(apply) => {
                self.take_down(&apply);
                let began = Instant::now();
                self.state.apply(&apply)?;
                self.put_up(&apply, began);
            }
            ToShard::Skip { version } => self.publish(version),
            ToShard::Snapshot => {
                let version = self.store.published.borrow().version;
                let blocks = self.state.blocks().to_vec();
                let message = FromShard::Snapshot { version };
                self.store.report(ShardReport { message, blocks });
            }
            ToShard::Stop => return Ok(false),
        }
        Ok(true)
    }

    /// The old version is no longer needed. Withdrawing it first lets the update run in place, except in
    /// blocks that a connection still reads.
    fn take_down(&mut self, apply: &Apply) {
        let making = Published { version: apply.version, blocks: None, segment: None };
        self.store.published.send_replace(making);
        if self.store.sharing.as_ref().is_some_and(|sharing| sharing.is_used()) {
            self.state.begin_mirror();
        }
    }

    fn put_up(&mut self, apply: &Apply, began: Instant) {
        if let Some(faults) = &self.store.faults {
            faults.after_update(began.elapsed());
        }
        // Counted up to here: a pull of the new version belongs to the next round.
        let counts = self.counts();
        self.publish(apply.version);
        let hash = apply.hash.then(|| self.state.hash());
        self.store.say(FromShard::Applied { version: apply.version, hash, counts });
    }

    fn counts(&mut self) -> ShardCounts {
        ShardCounts {
            fold: self.state.take_fold_time(),
            queue: std::mem::take(&mut self.queue),
            ..self.store.traffic.take()
        }
    }

    fn publish(&mut self, version: Version) {
        let segment = self.state.finish_mirror(version);
        let blocks = Some(self.state.outgoing());
        self.store.publish(Published { version, blocks, segment });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_core::{BlockClose, Blocks, WorkerId};
    use paceline_params::{Layout, OptimizerSpec, TensorSpec, WireType};

    use super::*;

    fn spec() -> ShardSpec {
        ShardSpec {
            index: 0,
            layout: Layout::new(vec![TensorSpec::new("w", [2])], 2, 1).unwrap(),
            optimizer: OptimizerSpec::SGD.into(),
            wire: WireType::F32,
            version: Version(0),
            staging: 1,
            fold_at_close: true,
            patience: Duration::ZERO,
            sharers: None,
            history: 0,
        }
    }

    #[test]
    fn a_shard_that_breaks_down_says_so() {
        let (say, said) = mpsc::channel();
        let blocks = vec![Block::new(vec![0.0; 2], &OptimizerSpec::SGD)];
        let (_, shard) = spawn(spec(), blocks, None, move |report| drop(say.send(report))).unwrap();
        assert_eq!(said.recv().unwrap().unwrap().message, FromShard::Ready);
        let closes = vec![BlockClose { blocks: Blocks::All, members: vec![(WorkerId(3), 1.0)] }];
        shard.send(ShardInbox::Command(ToShard::Close { closes, apply: None }.into())).unwrap();
        let error = said.recv().unwrap().unwrap_err();
        assert_eq!(error, "shard 0: w3 is a member of the close but was not accepted here");
        assert!(said.recv().is_err(), "it has ended");
    }

    #[test]
    fn a_shard_that_panics_does_not_leave_the_run_waiting() {
        let (say, said) = mpsc::channel();
        let blocks = vec![Block::new(vec![0.0; 2], &OptimizerSpec::SGD)];
        let report = move |report: Result<ShardReport, String>| {
            let failed = report.is_err();
            say.send(report).unwrap();
            assert!(failed, "panics on purpose, at the first good report");
        };
        spawn(spec(), blocks, None, report).unwrap();
        assert!(said.recv().unwrap().is_ok());
        assert_eq!(said.recv().unwrap().unwrap_err(), "shard 0 panicked");
    }
}
