//! The entrance to a run: the open door, and the queue of everything that comes through it. [`serve`] and
//! [`serve_offered`] open it, check what a run starts from, place the shards and hand over to the [`Run`].

use std::{
    future::Future,
    sync::{Arc, OnceLock, mpsc},
    time::Duration,
};

use paceline_core::{Event, StopReason};
use paceline_params::Layout;
use paceline_wire::{Listener, offer::Offer};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
};

use crate::{
    config::{ResumedOffer, ServerConfig, Start, check_listener},
    door::Door,
    error::ServerError,
    input::Input,
    placement::ShardChannels,
    run::{Evaluator, Origin, Outcome, Run, contribution_bytes},
    workers::roomy,
};

/// Runs a server until the run is over or `interrupt` gives a reason to end it. Every event goes to `events`.
pub async fn serve(
    config: ServerConfig,
    start: Start,
    listener: impl Listener,
    evaluator: Option<Evaluator>,
    events: mpsc::Sender<Event>,
    interrupt: impl Future<Output = StopReason>,
) -> Result<Outcome, ServerError> {
    config.check()?;
    let entrance = Entrance::open(listener, config.token.clone(), config.liveness)?;
    entrance.run(config, Origin { start, offered: None }, evaluator, events, interrupt).await
}

/// Runs a server for workers that bring their model. It waits for the first offer for `idle`, and makes the
/// run's settings of it with `plan`, which may refuse it. Peers must present the `token`, if there is one, and
/// may be silent for `patience` where they must speak. A run that is `resumed` goes on with the first worker
/// that has the same model and data.
pub async fn serve_offered(
    (token, patience, idle): (Option<String>, Duration, Duration),
    resumed: Option<ResumedOffer>,
    mut plan: impl FnMut(&Offer) -> Result<ServerConfig, String>,
    listener: impl Listener,
    events: mpsc::Sender<Event>,
    interrupt: impl Future<Output = StopReason>,
) -> Result<Outcome, ServerError> {
    let mut entrance = Entrance::open(listener, token, patience)?;
    tokio::pin!(interrupt);
    let (config, origin) = tokio::select! {
        offered = entrance.await_offer(&mut plan, idle, resumed) => offered?,
        reason = &mut interrupt => return Err(ServerError::Stopped(reason)),
    };
    entrance.run(config, origin, None, events, interrupt).await
}

/// The open door, and the queue of everything that comes through it.
pub(crate) struct Entrance {
    door: Arc<Door>,
    pub(crate) inputs: UnboundedSender<Input>,
    pub(crate) queue: UnboundedReceiver<Input>,
    /// Accepts connections until the entrance is dropped.
    _serving: JoinSet<()>,
}

impl Entrance {
    fn open(
        listener: impl Listener,
        token: Option<String>,
        patience: Duration,
    ) -> Result<Self, ServerError> {
        check_listener(&listener, token.as_deref())?;
        let (inputs, queue) = unbounded_channel();
        let door = Arc::new(Door {
            token,
            coordinator: Some(inputs.clone()),
            shards: OnceLock::new(),
            patience,
            report: Box::new({
                let inputs = inputs.clone();
                move |ended| drop(inputs.send(Input::Ended(ended)))
            }),
        });
        let mut serving = JoinSet::new();
        serving.spawn(Arc::clone(&door).serve(listener));
        Ok(Entrance { door, inputs, queue, _serving: serving })
    }

    async fn run(
        mut self,
        config: ServerConfig,
        origin: Origin,
        evaluator: Option<Evaluator>,
        events: mpsc::Sender<Event>,
        interrupt: impl Future<Output = StopReason>,
    ) -> Result<Outcome, ServerError> {
        let (start, placement) = (&origin.start, &config.placement);
        let layout = Layout::new(start.tensors.clone(), placement.block_elems, placement.shards)?;
        check_start(start, &config, &layout)?;
        let staging = staging(&config, &layout)?;
        tokio::pin!(interrupt);
        let inbox = (&self.inputs, &mut self.queue);
        let shards = tokio::select! {
            shards = ShardChannels::place(&config, &layout, staging, start, &self.door, inbox) => {
                shards?
            }
            reason = &mut interrupt => return Err(ServerError::Stopped(reason)),
        };
        let inputs = self.inputs.clone();
        let mut run = Run::new(config, origin, layout, staging, shards, evaluator, events, inputs)?;
        Ok(run.drive(&mut self.queue, interrupt).await)
    }
}

fn check_start(start: &Start, config: &ServerConfig, layout: &Layout) -> Result<(), ServerError> {
    let (optimizer, total) = (&config.update.optimizer, layout.total());
    let (slots, kept) = (start.slots.len(), optimizer.slot_names().len());
    if slots != 0 && slots != kept {
        return Err(ServerError::Start(format!(
            "{slots} vectors of optimizer state where {optimizer} keeps {kept}"
        )));
    }
    let (groups, used) = (optimizer.len(), layout.groups());
    if groups < used {
        return Err(ServerError::Start(format!(
            "tensors in {used} parameter groups, optimizers for {groups}"
        )));
    }
    match std::iter::once(&start.params).chain(&start.slots).find(|flat| flat.len() != total) {
        Some(flat) => {
            let error = format!("{} values for {total} parameters", flat.len());
            Err(ServerError::Start(error))
        }
        None => Ok(()),
    }
}

/// Contributions that may be staged at once.
fn staging(config: &ServerConfig, layout: &Layout) -> Result<u32, ServerError> {
    let workers = config.round.expected as u32;
    let one = contribution_bytes(layout);
    let fit = u32::try_from(config.placement.staging_bytes / one).unwrap_or(u32::MAX).max(1);
    if config.deterministic && fit < workers {
        let (needed, bound) = (one * u64::from(workers), config.placement.staging_bytes);
        return Err(ServerError::Staging { workers, needed, bound });
    }
    Ok(fit.min(roomy(config.round.expected) as u32))
}
