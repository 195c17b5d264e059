//! A shard in a process of its own.

use std::sync::{Arc, OnceLock};

use paceline_wire::{
    FrameError, FrameReader, FrameWriter, Listener,
    frame::MAX_CONTROL,
    message::{FromShard, Hello, Reply, Role, ToShard},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
};

use crate::{
    config::check_listener,
    door::Door,
    error::ServerError,
    faults::ShardFaults,
    input::Ended,
    shard::{self, ShardInbox, ShardReport, link, sharing},
};

/// The settings of a shard process.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// The shard's number.
    pub index: u32,
    /// The number of shards.
    pub of: u32,
    /// The address at which workers reach it.
    pub address: String,
    /// The token that it presents to the coordinator and that workers must present to it.
    pub token: Option<String>,
    /// Injected faults, if any.
    pub faults: Option<Arc<dyn ShardFaults>>,
}

/// Runs one shard: connects to the coordinator over `stream`, holds its part of the parameters, and serves
/// workers on `listener` until the run is over.
pub async fn serve_shard<S>(
    config: ShardConfig,
    stream: S,
    listener: impl Listener,
) -> Result<(), ServerError>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    check_listener(&listener, config.token.as_deref())?;
    let (read, write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read, MAX_CONTROL);
    let mut writer = FrameWriter::new(write);
    writer.preamble().await?;
    let ShardConfig { index, of, address, token, faults } = config;
    let role = Role::Shard { index, of, address };
    writer.message(&Hello { token: token.clone().unwrap_or_default(), role }).await?;
    reader.preamble().await?;
    if let Reply::Refused(why) = reader.message::<Reply<()>>().await? {
        return Err(FrameError::Refused(why).into());
    }
    let init = link::read_command(&mut reader).await?;
    let ToShard::Init(mut spec) = init.message else {
        let error = format!("{:?} where the parameters were due", init.message);
        return Err(FrameError::Unexpected(error).into());
    };

    if faults.as_ref().is_some_and(|faults| faults.slows_link()) {
        spec.sharers = None;
    }
    sharing::disable_without_room(std::slice::from_mut(&mut spec));
    let patience = spec.patience;
    let (reports, mut outgoing) = unbounded_channel::<Result<ShardReport, String>>();
    let say = reports.clone();
    let report = move |report| drop(say.send(report));
    let (store, sender) =
        shard::spawn(spec, init.blocks, faults, report).map_err(ServerError::Shard)?;
    let door = Door {
        token,
        coordinator: None,
        shards: OnceLock::from(vec![(store, sender.clone())]),
        patience,
        report: Box::new(tell(reports)),
    };
    let mut serving = JoinSet::new();
    serving.spawn(Arc::new(door).serve(listener));

    tokio::select! {
        outcome = async {
            loop {
                let command = link::read_command(&mut reader).await?;
                let stop = command.message == ToShard::Stop;
                if stop || sender.send(ShardInbox::Command(command)).is_err() {
                    return Ok(());
                }
            }
        } => outcome,
        outcome = link::write_reports(&mut writer, &mut outgoing, patience / 5) => outcome,
    }
}

/// Reports connections that ended here to the coordinator as if they had ended at its own door.
fn tell(reports: UnboundedSender<Result<ShardReport, String>>) -> impl Fn(Ended) {
    move |ended| {
        let report = match ended {
            Ended::Stranger { peer, error } => FromShard::Rejected { peer, error },
            Ended::Worker { worker, session, why } => FromShard::Gone { worker, session, why },
        };
        let _ = reports.send(Ok(report.into()));
    }
}
