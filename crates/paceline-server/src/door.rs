//! The door: every connection says what it is and is let in or not, whatever it is for.

use std::{
    sync::{Arc, OnceLock, mpsc},
    time::Duration,
};

use paceline_core::{LeaveReason, WorkerId};
use paceline_wire::{
    FrameError, FrameReader, FrameWriter, Listener,
    frame::MAX_HELLO,
    message::{FromWorker, Hello, Job, Reply, Role},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadHalf, WriteHalf},
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    time::timeout,
};

use crate::{
    input::{Call, Input, ShardCall},
    shard::{
        ShardCommand, ShardInbox, Store,
        data::DataConnection,
        link::{self, BlockShape},
    },
};

/// How long a peer has to say who it is.
const HELLO_TIME: Duration = Duration::from_secs(10);

/// A shard in this process, as the door knows it.
pub(crate) type LocalShard = (Arc<Store>, mpsc::Sender<ShardInbox>);

/// What the door leads to.
pub(crate) struct Door {
    /// What peers must show; nothing is asked of them without one.
    pub(crate) token: Option<String>,
    /// The coordinator, where there is one behind this door.
    pub(crate) coordinator: Option<UnboundedSender<Input>>,
    /// Shards of this process, once they are placed. A data connection finds its own by number.
    pub(crate) shards: OnceLock<Vec<LocalShard>>,
    /// Told of every connection that ended badly.
    pub(crate) report: Box<dyn Fn(Option<WorkerId>, String, String) + Send + Sync>,
}

impl Door {
    /// Accepts connections for as long as it is polled.
    pub(crate) async fn serve(self: Arc<Self>, mut listener: impl Listener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let door = Arc::clone(&self);
                    tokio::spawn(async move { door.meet(stream, peer).await });
                }
                Err(error) => {
                    // Out of file descriptors, most likely; those in use will be freed.
                    tracing::warn!("failed to accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn meet<S>(&self, stream: S, peer: String)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (read, write) = tokio::io::split(stream);
        let mut reader = FrameReader::new(read, MAX_HELLO);
        let mut writer = FrameWriter::new(write);
        let hello = match timeout(HELLO_TIME, self.hello(&mut reader, &mut writer)).await {
            Ok(Ok(hello)) => hello,
            Ok(Err(FrameError::Closed)) => return,
            Ok(Err(error)) => return (self.report)(None, peer, error.to_string()),
            Err(_) => return (self.report)(None, peer, "said nothing".to_owned()),
        };
        if !self.admits(&hello.token) {
            self.refuse(writer, peer, "wrong token").await;
            return;
        }
        reader.trust();
        match hello.role {
            Role::Worker { wish, name } => self.worker(reader, writer, peer, wish, name).await,
            Role::Data { worker, session, shard } => {
                self.data(reader, writer, peer, (worker, session, shard)).await;
            }
            Role::Shard { index, of, address } => {
                self.shard(reader, writer, peer, (index, of, address)).await;
            }
        }
    }

    async fn hello<S: AsyncRead + AsyncWrite>(
        &self,
        reader: &mut FrameReader<ReadHalf<S>>,
        writer: &mut FrameWriter<WriteHalf<S>>,
    ) -> Result<Hello, FrameError> {
        // Ours goes first, so that a peer of another version learns what this one is.
        writer.preamble().await?;
        reader.preamble().await?;
        reader.message().await
    }

    /// Takes the same time whatever the difference is.
    fn admits(&self, shown: &str) -> bool {
        let Some(token) = &self.token else { return true };
        let (token, shown) = (token.as_bytes(), shown.as_bytes());
        let differing = token.iter().zip(shown).fold(0, |acc, (a, b)| acc | (a ^ b));
        differing == 0 && token.len() == shown.len()
    }

    async fn refuse<W: AsyncWrite + Unpin>(
        &self,
        mut writer: FrameWriter<W>,
        peer: String,
        why: &str,
    ) {
        let _ = writer.message(&Reply::<()>::Refused(why.to_owned())).await;
        (self.report)(None, peer, why.to_owned());
    }

    async fn worker<S>(
        &self,
        reader: FrameReader<ReadHalf<S>>,
        mut writer: FrameWriter<WriteHalf<S>>,
        peer: String,
        wish: Option<u32>,
        name: String,
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let Some(coordinator) = &self.coordinator else {
            return self.refuse(writer, peer, "this is a shard, not the coordinator").await;
        };
        let (outbox, frames) = unbounded_channel();
        let (reply, answer) = oneshot::channel();
        let call = Call { wish, name, outbox, reply };
        if coordinator.send(Input::Call(call)).is_err() {
            return;
        }
        let job: Job = match answer.await {
            Ok(Ok(job)) => job,
            Ok(Err(why)) => return self.refuse(writer, peer, &why).await,
            Err(_) => return,
        };
        let (worker, session) = (job.worker, job.session);
        let ended = match writer.message(&Reply::Welcome(job)).await {
            Err(error) => error,
            Ok(()) => tokio::select! {
                error = listen(reader, coordinator, worker, session) => error,
                error = speak(writer, frames) => error,
            },
        };
        let why = match ended {
            FrameError::Closed | FrameError::Truncated | FrameError::Io(_) => {
                LeaveReason::Disconnected
            }
            error => LeaveReason::Misbehaved(error.to_string()),
        };
        let _ = coordinator.send(Input::Gone { worker, session, why });
    }

    async fn data<S>(
        &self,
        reader: FrameReader<ReadHalf<S>>,
        mut writer: FrameWriter<WriteHalf<S>>,
        peer: String,
        (worker, session, shard): (WorkerId, u64, u32),
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let shards = self.shards.get().map_or(&[][..], Vec::as_slice);
        let Some((store, sender)) = shards.iter().find(|(store, _)| store.index == shard) else {
            return self.refuse(writer, peer, &format!("shard {shard} is not here")).await;
        };
        let admitted = store.admission(worker, session, true);
        if timeout(HELLO_TIME, admitted).await.is_err() {
            return self.refuse(writer, peer, &format!("{worker} is not let in")).await;
        }
        if writer.message(&Reply::Welcome(())).await.is_err() {
            return;
        }
        let (store, shard) = (Arc::clone(store), sender.clone());
        let connection = DataConnection { worker, session, store, shard, reader, writer };
        if let Err(error) = connection.serve().await {
            (self.report)(Some(worker), peer, error.to_string());
        }
    }

    async fn shard<S>(
        &self,
        reader: FrameReader<ReadHalf<S>>,
        mut writer: FrameWriter<WriteHalf<S>>,
        peer: String,
        (index, of, address): (u32, u32, String),
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let Some(coordinator) = &self.coordinator else {
            return self.refuse(writer, peer, "this is a shard, not the coordinator").await;
        };
        let (commands, queue) = unbounded_channel();
        let (reply, answer) = oneshot::channel();
        let address = reachable(&address, &peer);
        let call = ShardCall { index, of, address, commands, reply };
        if coordinator.send(Input::ShardCall(call)).is_err() {
            return;
        }
        let shape = match answer.await {
            Ok(Ok(shape)) => shape,
            Ok(Err(why)) => return self.refuse(writer, peer, &why).await,
            Err(_) => return,
        };
        let ended = match writer.message(&Reply::Welcome(())).await {
            Err(error) => error,
            Ok(()) => tokio::select! {
                error = hear_shard(reader, coordinator, index, &shape) => error,
                error = tell_shard(writer, queue) => error,
            },
        };
        let report = Err(format!("shard {index} at {peer}: {ended}"));
        let _ = coordinator.send(Input::Shard { index, report });
    }
}

/// A shard that listens everywhere is reached where it called from.
fn reachable(address: &str, peer: &str) -> String {
    let (Some((host, port)), Some((peer_host, _))) =
        (address.rsplit_once(':'), peer.rsplit_once(':'))
    else {
        return address.to_owned();
    };
    match host {
        "" | "0.0.0.0" | "[::]" => format!("{peer_host}:{port}"),
        _ => address.to_owned(),
    }
}

async fn listen<R: AsyncRead + Unpin>(
    reader: FrameReader<R>,
    coordinator: &UnboundedSender<Input>,
    worker: WorkerId,
    session: u64,
) -> FrameError {
    // Most messages are a few bytes: one read takes header and payload.
    let mut reader = reader.map(|inner| BufReader::with_capacity(1024, inner));
    loop {
        match reader.message::<FromWorker>().await {
            Ok(message) => {
                if coordinator.send(Input::Worker { worker, session, message }).is_err() {
                    return FrameError::Closed;
                }
            }
            Err(error) => return error,
        }
    }
}

/// Writes what is queued, all of it in one go.
async fn speak<W: AsyncWrite + Unpin>(
    mut writer: FrameWriter<W>,
    mut frames: UnboundedReceiver<Arc<[u8]>>,
) -> FrameError {
    let mut together = Vec::new();
    while let Some(frame) = frames.recv().await {
        together.clear();
        together.extend_from_slice(&frame);
        while let Ok(frame) = frames.try_recv() {
            together.extend_from_slice(&frame);
        }
        if let Err(error) = writer.raw(&together).await {
            return error;
        }
    }
    FrameError::Closed
}

async fn hear_shard<R: AsyncRead + Unpin>(
    mut reader: FrameReader<R>,
    coordinator: &UnboundedSender<Input>,
    index: u32,
    shape: &BlockShape,
) -> FrameError {
    loop {
        match link::read_report(&mut reader, shape).await {
            Ok(report) => {
                if coordinator.send(Input::Shard { index, report: Ok(report) }).is_err() {
                    return FrameError::Closed;
                }
            }
            Err(error) => return error,
        }
    }
}

async fn tell_shard<W: AsyncWrite + Unpin>(
    mut writer: FrameWriter<W>,
    mut commands: UnboundedReceiver<ShardCommand>,
) -> FrameError {
    while let Some(command) = commands.recv().await {
        if let Err(error) = link::write_command(&mut writer, &command).await {
            return error;
        }
    }
    FrameError::Closed
}
