//! The thread that a shard's arithmetic runs on.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use paceline_core::Version;
use paceline_params::Block;
use paceline_wire::message::{FromShard, ShardSpec, ToShard};

use super::{
    ShardCommand, ShardReport, ShardState, Staged, Store, state::ShardError, store::Published,
};

/// What a shard's thread is handed.
#[derive(Debug)]
pub(crate) enum ShardInbox {
    Command(ShardCommand),
    Staged(Staged),
}

/// Starts a shard. It ends when told to stop, or when nobody can reach it any more; `report` hears
/// everything it has to say, an error that ends it included.
pub(crate) fn spawn(
    spec: ShardSpec,
    blocks: Vec<Block>,
    report: impl Fn(Result<ShardReport, String>) + Send + 'static,
) -> Result<(Arc<Store>, mpsc::Sender<ShardInbox>), String> {
    let store = Arc::new(Store::new(&spec));
    let name = format!("shard {}", spec.index);
    let version = spec.version;
    let state = ShardState::new(spec, blocks).map_err(|error| error.to_string())?;
    let (sender, inbox) = mpsc::channel();
    let shard = ShardThread { state, store: Arc::clone(&store), report: Box::new(report) };
    thread::Builder::new()
        .name(name.clone())
        .spawn(move || shard.run(version, &inbox))
        .map_err(|error| format!("failed to start {name}: {error}"))?;
    Ok((store, sender))
}

struct ShardThread {
    state: ShardState,
    store: Arc<Store>,
    report: Box<dyn Fn(Result<ShardReport, String>) + Send>,
}

impl ShardThread {
    fn run(mut self, version: Version, inbox: &mpsc::Receiver<ShardInbox>) {
        self.publish(version);
        self.say(FromShard::Ready);
        while let Ok(first) = inbox.recv() {
            // All that has come is taken before folding, so that folds are fused.
            for input in std::iter::once(first).chain(inbox.try_iter()) {
                match self.handle(input) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => return (self.report)(Err(error.to_string())),
                }
            }
            self.state.fold_accepted();
        }
    }

    /// Returns whether to go on.
    fn handle(&mut self, input: ShardInbox) -> Result<bool, ShardError> {
        let command = match input {
            ShardInbox::Command(command) => command,
            ShardInbox::Staged(staged) => {
                let (worker, base) = (staged.worker, staged.base);
                if self.store.is_admitted(worker, staged.session) {
                    self.state.stage(staged);
                    self.say(FromShard::Staged { worker, base });
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
            ToShard::Accept { worker, base } => self.state.accept(worker, base)?,
            ToShard::Discard { worker, base } => self.state.discard(worker, base),
            ToShard::Close { closes } => {
                let norms = self.state.close(closes)?;
                self.say(FromShard::Summed { norms });
            }
            ToShard::Apply { version, step, learning_rate, scales, hash } => {
                // Nobody is owed the old version any more: taking it down first lets the update
                // run in place, except in blocks that somebody is still reading.
                let making = Published { version, blocks: None };
                self.store.published.send_replace(making);
                self.state.apply(step, learning_rate, &scales)?;
                self.publish(version);
                let hash = hash.then(|| self.state.hash());
                self.say(FromShard::Applied { version, hash });
            }
            ToShard::Snapshot => {
                let version = self.store.published.borrow().version;
                let blocks = self.state.blocks().to_vec();
                let message = FromShard::Snapshot { version };
                (self.report)(Ok(ShardReport { message, blocks }));
            }
            ToShard::Stop => return Ok(false),
        }
        Ok(true)
    }

    fn publish(&self, version: Version) {
        let blocks = self.state.blocks().iter().map(Block::snapshot).collect();
        self.store.published.send_replace(Published { version, blocks: Some(blocks) });
    }

    fn say(&self, message: FromShard) {
        (self.report)(Ok(message.into()));
    }
}
