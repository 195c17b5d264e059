//! The door: the handshake of every incoming connection, which is then admitted or refused.

mod state;

use std::{
    io::ErrorKind,
    sync::{Arc, OnceLock},
    time::Duration,
};

use paceline_core::WorkerId;
use paceline_wire::{
    FrameError, FrameReader, FrameWriter, Listener,
    frame::MAX_HELLO,
    message::{FromWorker, Hello, Invitation, Job, Reply, Role},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadHalf, WriteHalf},
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::JoinSet,
    time::timeout,
};

use crate::{
    handshakes::{Handshake, Handshakes},
    input::{Call, Ended, Input, ShardCall, leave_reason},
    shard::{
        LocalShard, ShardCommand,
        data::{DataConnection, DataError},
        link::{self, ReportReader},
    },
};

/// Messages of one worker that may be queued for the coordinator. Further messages wait in the worker's
/// connection.
const BACKLOG: usize = 64;

/// The refusal of a peer that looks for the coordinator at a shard's address.
const NO_COORDINATOR: &str = "this is a shard, not the coordinator";

/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The destinations of admitted connections, and the conditions of admission.
pub(crate) struct Door {
    /// The token that peers must present; `None` to admit all.
    pub(crate) token: Option<String>,
    /// The coordinator, if there is one behind this door.
    pub(crate) coordinator: Option<UnboundedSender<Input>>,
    /// Shards of this process, once they are placed. A data connection names its shard by number.
    pub(crate) shards: OnceLock<Vec<LocalShard>>,
    /// How long a peer may take to introduce itself, and to be admitted by its shard.
    pub(crate) patience: Duration,
    /// Called for every worker's connection that ended and for every peer that was refused.
    pub(crate) report: Box<dyn Fn(Ended) + Send + Sync>,
}

impl Door {
    /// Accepts connections for as long as it is polled. They end with it.
    pub(crate) async fn serve(self: Arc<Self>, mut listener: impl Listener) {
        let mut guests = JoinSet::new();
        let mut handshakes = Handshakes::new();
        let mut is_failing = false;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    is_failing = false;
                    // While there is no room, the kernel queues further connections.
                    let (door, handshake) = (Arc::clone(&self), handshakes.begin().await);
                    guests.spawn(async move { door.meet(stream, peer, handshake).await });
                    while guests.try_join_next().is_some() {}
                }
                Err(error) => {
                    // Most likely out of file descriptors; some will be freed.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!("failed to accept a connection, will try again: {error}");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn meet<S>(&self, stream: S, peer: String, mut handshake: Handshake)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (read, write) = tokio::io::split(stream);
        let mut reader = FrameReader::new(read, MAX_HELLO);
        let mut writer = FrameWriter::new(write);
        let hello = tokio::select! {
            hello = timeout(self.patience, self.hello(&mut reader, &mut writer)) => hello,
            Ok(()) = &mut handshake.displaced => {
                let error = "did not say who it is, and other connections were waiting";
                return self.reject(peer, error.to_owned());
            }
        };
        let hello = match hello {
            Ok(Ok(hello)) => hello,
            Ok(Err(FrameError::Closed)) => return,
            Ok(Err(error)) => return self.reject(peer, error.to_string()),
            Err(_) => return self.reject(peer, "did not say who it is".to_owned()),
        };
        if !self.admits(&hello.token) {
            self.refuse(writer, peer, "wrong token").await;
            return;
        }
        drop(handshake);
        reader.trust();
        match hello.role {
            Role::Worker { wish, name } => self.worker(reader, writer, peer, wish, name).await,
            Role::Data { worker, session, shard } => {
                self.data(reader, writer, peer, (worker, session, shard)).await;
            }
            Role::Shard { index, of, address } => {
                self.shard(reader, writer, peer, (index, of, address)).await;
            }
            Role::Offer => self.offer(reader, writer, peer).await,
            Role::State { worker, session, upload } => {
                self.state(reader, writer, peer, (worker, session, upload)).await;
            }
        }
    }

    async fn hello<S: AsyncRead + AsyncWrite>(
        &self,
        reader: &mut FrameReader<ReadHalf<S>>,
        writer: &mut FrameWriter<WriteHalf<S>>,
    ) -> Result<Hello, FrameError> {
        // Our preamble goes first, so that a peer of another version learns ours.
        writer.preamble().await?;
        reader.preamble().await?;
        reader.message().await
    }

    /// Compares in constant time.
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
        self.reject(peer, why.to_owned());
    }

    fn reject(&self, peer: String, error: String) {
        (self.report)(Ended::Stranger { peer, error });
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
            return self.refuse(writer, peer, NO_COORDINATOR).await;
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
                error = speak(writer, frames, self.patience) => error,
            },
        };
        (self.report)(Ended::Worker { worker, session, why: leave_reason(&ended) });
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
        let Some(local) = shards.iter().find(|(store, _)| store.index == shard) else {
            return self.refuse(writer, peer, &format!("shard {shard} is not here")).await;
        };
        let store = &local.0;
        let admitted = store.admission(worker, session);
        match timeout(self.patience, admitted).await {
            Ok(true) => {}
            Ok(false) => return self.refuse(writer, peer, &format!("{worker} has left")).await,
            Err(_) => return self.refuse(writer, peer, &format!("{worker} is not let in")).await,
        }
        if !store.connect(worker, session) {
            return self.refuse(writer, peer, &format!("{worker} is connected already")).await;
        }
        let listener = store.sharing.as_ref().and_then(|sharing| sharing.invite(&peer));
        let invitation =
            listener.as_ref().map(|listener| Invitation { listener: listener.name().to_owned() });
        if writer.message(&Reply::Welcome(invitation)).await.is_err() {
            return;
        }
        let me = (worker, session);
        let connection = DataConnection::new(me, local.clone(), (reader, writer), listener);
        let report =
            |error: &DataError| (self.report)(Ended::Worker { worker, session, why: error.why() });
        connection.serve(report).await;
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
            return self.refuse(writer, peer, NO_COORDINATOR).await;
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
                error = hear_shard(ReportReader::new(reader, shape), coordinator, index) => error,
                error = tell_shard(writer, queue) => error,
            },
        };
        let report = Err(format!("shard {index} at {peer}: {ended}"));
        let _ = coordinator.send(Input::Shard { index, report });
    }
}

/// A shard that listens on all interfaces is reached at the host from which it connected.
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
    // Most messages are a few bytes: one read takes header and payload together.
    let mut reader = reader.map(|inner| BufReader::with_capacity(1024, inner));
    let backlog = Arc::new(Semaphore::new(BACKLOG));
    loop {
        let Ok(place) = Arc::clone(&backlog).acquire_owned().await else {
            return FrameError::Closed;
        };
        match reader.message::<FromWorker>().await {
            Ok(message) => {
                let said = Input::Worker { worker, session, message, _place: place };
                if coordinator.send(said).is_err() {
                    return FrameError::Closed;
                }
            }
            Err(error) => return error,
        }
    }
}

/// Writes all queued frames in one go. Fails if the worker does not read them in time.
async fn speak<W: AsyncWrite + Unpin>(
    mut writer: FrameWriter<W>,
    mut frames: UnboundedReceiver<Arc<[u8]>>,
    patience: Duration,
) -> FrameError {
    let mut together = Vec::new();
    while let Some(frame) = frames.recv().await {
        together.clear();
        together.extend_from_slice(&frame);
        while let Ok(frame) = frames.try_recv() {
            together.extend_from_slice(&frame);
        }
        match timeout(patience, writer.raw(&together)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error,
            Err(_) => return FrameError::Io(ErrorKind::TimedOut.into()),
        }
    }
    FrameError::Closed
}

async fn hear_shard<R: AsyncRead + Unpin>(
    mut reports: ReportReader<R>,
    coordinator: &UnboundedSender<Input>,
    index: u32,
) -> FrameError {
    loop {
        match reports.next().await {
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
