//! The placement of the parameters: shards in this process or in others, behind one interface.

use std::sync::{Arc, mpsc};

use paceline_core::ShardId;
use paceline_params::{Block, FlatVec, Layout};
use paceline_wire::{
    Transport,
    message::{FromShard, ShardSpec, ToShard},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::{
    config::{ServerConfig, Start},
    door::Door,
    error::ServerError,
    input::{Input, ShardCall},
    shard::{self, ShardCommand, ShardInbox, link::BlockShape, sharing},
};

/// The channels to all shards.
pub(crate) struct ShardChannels {
    channels: Vec<ShardChannel>,
    /// Inputs that arrived before the shards were ready, to be handled then.
    pub(crate) early: Vec<Input>,
    /// The address of each shard for workers; empty for shards behind the coordinator's own door.
    pub(crate) addresses: Vec<String>,
}

enum ShardChannel {
    Local(mpsc::Sender<ShardInbox>),
    Remote(UnboundedSender<ShardCommand>),
}

impl ShardChannel {
    fn send(&self, command: ShardCommand) {
        // A shard that has failed reports it itself.
        match self {
            ShardChannel::Local(sender) => drop(sender.send(ShardInbox::Command(command))),
            ShardChannel::Remote(sender) => drop(sender.send(command)),
        }
    }
}

impl ShardChannels {
    pub(crate) fn len(&self) -> usize {
        self.channels.len()
    }

    /// Whether a shard in another process is still connected.
    pub(crate) fn any_connected(&self) -> bool {
        self.channels
            .iter()
            .any(|channel| matches!(channel, ShardChannel::Remote(sender) if !sender.is_closed()))
    }

    pub(crate) fn send_all(&self, message: &ToShard) {
        for channel in &self.channels {
            channel.send(message.clone().into());
        }
    }

    /// Sends `message` to some of the shards.
    pub(crate) fn send_to<'a>(
        &self,
        shards: impl IntoIterator<Item = &'a ShardId>,
        message: &ToShard,
    ) {
        for ShardId(shard) in shards {
            self.channels[*shard as usize].send(message.clone().into());
        }
    }

    /// Sends the parameters to the shards and waits until all hold them.
    pub(crate) async fn place(
        config: &ServerConfig,
        layout: &Layout,
        staging: u32,
        start: &Start,
        door: &Door,
        inbox: (&UnboundedSender<Input>, &mut UnboundedReceiver<Input>),
    ) -> Result<ShardChannels, ServerError> {
        let slowed = config.shard_faults.values().any(|faults| faults.slows_link());
        let spec = |index| ShardSpec {
            index,
            layout: layout.clone(),
            optimizer: config.update.optimizer.clone(),
            wire: config.wire,
            version: start.version,
            staging,
            fold_at_close: config.folds_at_close(),
            patience: config.liveness,
            // A shard that is left behind reads gradients later than their memory is kept. A slowed link must
            // not be bypassed.
            sharers: (config.transport == Transport::Auto && !config.is_weak() && !slowed)
                .then_some(u32::try_from(config.round.expected).unwrap_or(u32::MAX)),
            history: if config.keeps_history() { history(layout) } else { 0 },
        };
        let specs: Vec<ShardSpec> = (0..config.placement.shards).map(spec).collect();
        let (inputs, queue) = inbox;
        match config.placement.remote {
            true => call_remote(specs, start, queue).await,
            false => {
                let mut shards = spawn_local(config, specs, start, door, inputs)?;
                shards.ready(queue).await?;
                Ok(shards)
            }
        }
    }

    async fn ready(&mut self, queue: &mut UnboundedReceiver<Input>) -> Result<(), ServerError> {
        let mut missing = self.len();
        while missing > 0 {
            match queue.recv().await.ok_or(ServerError::NoInputs)? {
                Input::Shard { report: Ok(report), .. } if report.message == FromShard::Ready => {
                    missing -= 1;
                }
                Input::Shard { report: Err(error), .. } => return Err(ServerError::Shard(error)),
                early => self.early.push(early),
            }
        }
        Ok(())
    }
}

/// Memory for earlier versions, over all shards.
const HISTORY_BYTES: usize = 256 << 20;

/// Earlier versions that shards keep for workers that missed them: as many as fit into the memory for them,
/// at least 4 and at most 64.
fn history(layout: &Layout) -> u32 {
    let version = layout.total().max(1) * size_of::<f32>();
    (HISTORY_BYTES / version).clamp(4, 64) as u32
}

fn spawn_local(
    config: &ServerConfig,
    mut specs: Vec<ShardSpec>,
    start: &Start,
    door: &Door,
    inputs: &UnboundedSender<Input>,
) -> Result<ShardChannels, ServerError> {
    sharing::disable_without_room(&mut specs);
    let mut local = Vec::new();
    for spec in specs {
        let (index, inputs) = (spec.index, inputs.clone());
        let blocks = blocks_of(&spec, start);
        let report = move |report| drop(inputs.send(Input::Shard { index, report }));
        let faults = config.shard_faults.get(&index).cloned();
        local.push(shard::spawn(spec, blocks, faults, report).map_err(ServerError::Shard)?);
    }
    let channels = local.iter().map(|(_, sender)| ShardChannel::Local(sender.clone())).collect();
    let addresses = vec![String::new(); local.len()];
    assert!(door.shards.set(local).is_ok(), "parameters are placed once");
    Ok(ShardChannels { channels, addresses, early: Vec::new() })
}

/// A shard of another process that has connected.
struct Caller {
    channel: ShardChannel,
    address: String,
    /// Whether it holds its part of the parameters.
    ready: bool,
}

/// Sends each shard its part as it connects, until all hold theirs. If a shard leaves before that, the next
/// one to connect takes its place.
async fn call_remote(
    specs: Vec<ShardSpec>,
    start: &Start,
    queue: &mut UnboundedReceiver<Input>,
) -> Result<ShardChannels, ServerError> {
    let mut callers: Vec<Option<Caller>> = specs.iter().map(|_| None).collect();
    let mut early = Vec::new();
    while !callers.iter().all(|caller| caller.as_ref().is_some_and(|caller| caller.ready)) {
        match queue.recv().await.ok_or(ServerError::NoInputs)? {
            Input::ShardCall(call) => take_call(call, &specs, start, &mut callers),
            Input::Shard { index, report: Ok(report) } if report.message == FromShard::Ready => {
                callers[index as usize].iter_mut().for_each(|caller| caller.ready = true);
            }
            Input::Shard { index, report: Err(error) } => {
                tracing::warn!("{error}");
                callers[index as usize] = None;
            }
            other => early.push(other),
        }
    }
    let callers = callers.into_iter().flatten().map(|caller| (caller.channel, caller.address));
    let (channels, addresses) = callers.unzip();
    Ok(ShardChannels { channels, addresses, early })
}

fn take_call(call: ShardCall, specs: &[ShardSpec], start: &Start, callers: &mut [Option<Caller>]) {
    let index = call.index as usize;
    let taken = callers.get(index).is_some_and(Option::is_some);
    if let Err(why) = check_call(&call, specs.len() as u32, taken) {
        let _ = call.reply.send(Err(why));
        return;
    }
    let spec = specs[index].clone();
    let shape = BlockShape::new(&spec.layout, spec.index, &spec.optimizer);
    let _ = call.reply.send(Ok(shape));
    let channel = ShardChannel::Remote(call.commands);
    let blocks = blocks_of(&spec, start);
    channel.send(ShardCommand { message: ToShard::Init(spec), blocks });
    callers[index] = Some(Caller { channel, address: call.address, ready: false });
    let here = callers.iter().flatten().count();
    tracing::info!("{here} of {} shards have called", specs.len());
}

fn check_call(call: &ShardCall, count: u32, taken: bool) -> Result<(), String> {
    let ShardCall { index, of, .. } = call;
    if *of != count {
        return Err(format!("this run has {count} shards, not {of}"));
    }
    if *index >= count {
        return Err(format!("there is no shard {index} of {count}"));
    }
    match taken {
        true => Err(format!("shard {index} is already there")),
        false => Ok(()),
    }
}

fn blocks_of(spec: &ShardSpec, start: &Start) -> Vec<Block> {
    let part = |flat: &FlatVec, block| flat.copy(spec.layout.block_range(block));
    let block = |block| {
        let values = part(&start.params, block);
        match start.slots.is_empty() {
            true => Block::new(values, spec.optimizer.of(spec.layout.group(block))),
            false => {
                Block::restore(values, start.slots.iter().map(|slot| part(slot, block)).collect())
            }
        }
    };
    spec.layout.shard_blocks(spec.index).map(block).collect()
}

/// Collects the shards' snapshots into the whole model.
pub(crate) struct Gathering {
    parts: Vec<Option<Vec<Block>>>,
}

impl Gathering {
    pub(crate) fn new(shards: usize) -> Self {
        Gathering { parts: (0..shards).map(|_| None).collect() }
    }

    /// Adds one shard's part. Returns the whole model once all parts are here.
    pub(crate) fn add(&mut self, shard: u32, blocks: Vec<Block>) -> Option<Vec<Block>> {
        *self.parts.get_mut(shard as usize)? = Some(blocks);
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        Some(self.parts.iter_mut().flat_map(Option::take).flatten().collect())
    }
}

/// The values of all blocks, or one of their optimiser slots, as one flat vector, without copying.
pub(crate) fn flat(blocks: &[Block], slot: Option<usize>) -> FlatVec {
    let pick = |block: &Block| match slot {
        None => block.snapshot(),
        Some(slot) => Arc::clone(&block.slots()[slot]),
    };
    blocks.iter().map(pick).collect()
}
