//! A worker's session, from the handshake to its last message.

use std::{
    io::{Read, Write},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use paceline_core::{Costs, Enough, EpochOrder, OrderSpec, Shards, Straggler, WorkerId};
use paceline_wire::{
    BlockingReader, BlockingWriter, Connect, FrameError, Transport,
    message::{FromWorker, Hello, Job, Reply, Role, ToWorker},
};
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::{
    data::DataPlane,
    faults::MakeFaults,
    mailbox::{Mailbox, Next, Until},
    outbox::Outbox,
    work::{Compute, Native, Source, Tally, TaskRunner},
};

/// The settings of one worker; the coordinator sends it the rest.
#[derive(Clone, Default)]
pub struct WorkerConfig {
    /// The coordinator's address.
    pub address: String,
    /// The run's token, if it has one.
    pub token: Option<String>,
    /// The worker number that it asks for.
    pub wish: Option<u32>,
    /// Host and process, for display.
    pub name: String,
    /// Injected faults, if any.
    pub faults: Option<MakeFaults>,
    /// The transport of gradients and parameters.
    pub transport: Transport,
}

impl WorkerConfig {
    pub(crate) fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// The address of a shard. A shard without an address of its own is at the coordinator's.
    pub(crate) fn shard_address<'a>(&'a self, shard: &'a str) -> &'a str {
        if shard.is_empty() { &self.address } else { shard }
    }
}

/// Why a worker ended early.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The coordinator cannot be reached, refused the worker, or uses another protocol.
    #[error("failed to join at {address}: {error}")]
    Join {
        /// The coordinator's address.
        address: String,
        /// The error.
        error: FrameError,
    },
    /// The coordinator's job cannot be computed here.
    #[error("failed to prepare: {0}")]
    Prepare(String),
    /// The control connection failed during the run.
    #[error("lost the server: {0}")]
    Lost(String),
    /// A shard failed, or refused a message or gradient.
    #[error("failed at a shard: {0}")]
    Data(#[from] FrameError),
    /// A state could not be sent or fetched.
    #[error("failed to exchange a state: {0}")]
    State(FrameError),
    /// The caller ended a transfer.
    #[error("interrupted")]
    Interrupted,
}

/// Creates the wait of a pull for shards, from the number of blocks on each shard and the number of updates
/// that a shard's values may miss. The caller passes it, so a worker needs no policy crate.
pub type PullWait = fn(Enough, &[u32], u64) -> Shards;

/// How long a worker that lost a shard waits for the coordinator's reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) type Reader = BlockingReader<Box<dyn Read + Send>>;
pub(crate) type Writer = BlockingWriter<Box<dyn Write + Send>>;

/// Connects, sends `Hello`, and returns the connection with the answer.
pub(crate) fn handshake<T: DeserializeOwned>(
    connect: &dyn Connect,
    address: &str,
    token: &str,
    role: Role,
) -> Result<(Reader, Writer, T), FrameError> {
    let (read, write) = connect.connect(address)?;
    let (mut reader, mut writer) = (BlockingReader::new(read), BlockingWriter::new(write));
    writer.preamble()?;
    writer.message(&Hello { token: token.to_owned(), role })?;
    reader.preamble()?;
    let answer = welcome(&mut reader)?;
    Ok((reader, writer, answer))
}

/// The server's answer, unless it refuses.
pub(crate) fn welcome<T: DeserializeOwned>(reader: &mut Reader) -> Result<T, FrameError> {
    match reader.message()? {
        Reply::Welcome(answer) => Ok(answer),
        Reply::Refused(why) => Err(FrameError::Refused(why)),
    }
}

/// Works for the coordinator at `config.address` until the run is over. `wait` decides how long a pull
/// waits for slow shards, where the run does not wait for all of them. `prepare` builds the model and
/// data, and returns them with the number of samples.
pub fn run(
    config: &WorkerConfig,
    connect: &dyn Connect,
    wait: PullWait,
    prepare: impl FnOnce(&Job) -> Result<(Box<dyn Compute>, u32), String>,
) -> Result<Tally, WorkerError> {
    run_source(config, connect, wait, |job, _| {
        let (compute, samples) = prepare(job)?;
        let (costs, micro_batches) = (compute.costs(), job.micro_batches.max(1));
        let source = Box::new(Native { compute, micro_batches });
        Ok(Prepared { source, costs, samples: Some(samples), ahead: 0 })
    })
}

/// A source of gradients that is ready for work.
pub(crate) struct Prepared {
    pub(crate) source: Box<dyn Source>,
    /// The cost of every sample, if samples differ.
    pub(crate) costs: Option<Arc<[f32]>>,
    /// Samples in its data; `None` for a stream.
    pub(crate) samples: Option<u32>,
    /// Portions to lease before their rounds.
    pub(crate) ahead: u32,
}

/// The connection to the coordinator, as a source of gradients uses it.
#[derive(Clone)]
pub(crate) struct Control {
    pub(crate) sender: ControlSender,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// Like [`run`], with any source of gradients.
pub(crate) fn run_source(
    config: &WorkerConfig,
    connect: &dyn Connect,
    wait: PullWait,
    prepare: impl FnOnce(&Job, &Control) -> Result<Prepared, String>,
) -> Result<Tally, WorkerError> {
    let join = |error| WorkerError::Join { address: config.address.clone(), error };
    let role = Role::Worker { wish: config.wish, name: config.name.clone() };
    let (reader, writer, job) =
        handshake::<Job>(connect, &config.address, config.token(), role).map_err(join)?;
    let clock = Instant::now();
    let sender = ControlSender { writer: Arc::new(Mutex::new(writer)), clock };
    let mailbox = Arc::new(Mailbox::new(job.epochs));
    receive_messages(reader, job.worker, Arc::clone(&mailbox), clock);
    let _heartbeats = sender.start_heartbeats(job.heartbeat);
    let _bye = ByeOnDrop(sender.clone());
    let control = Control { sender, mailbox };

    let prepared = prepare(&job, &control).map_err(WorkerError::Prepare)?;
    let Prepared { mut source, costs, samples, ahead } = prepared;
    let Control { sender: control, mailbox } = control;
    let known = costs.as_deref().map(Costs::fingerprint);
    if job.balance.is_some() && job.balance != known {
        return Err(other_costs());
    }
    let costs = costs.map(|costs| Costs::new(costs, job.batch));
    let balance = costs.clone().filter(|_| job.balance.is_some());
    // A gradient that later rounds admit is sent to its end.
    let push_until = if job.straggler.keeps_work() { Until::End } else { Until::Close };
    let connected = DataPlane::connect(connect, config, &job, wait, &mailbox, push_until);
    let (data, mut buffers) = match connected {
        // The user's loop left meanwhile, and shards no longer let the worker in.
        Err(_) if mailbox.stop_reason(Duration::ZERO).is_some_and(|why| why.is_ok()) => {
            return Ok(Tally::default());
        }
        connected => connected.map_err(join)?,
    };
    let parts = job.micro_batches.max(1);
    let until = match (job.any_newer, job.straggler) {
        (true, _) => Until::End,
        (false, Straggler::Salvage) => Until::Close,
        (false, Straggler::Abort | Straggler::Finish) => Until::Cut,
    };
    let gradient = buffers.remove(0);
    // Where shards average, other values may follow the gradient.
    let gradient_elems =
        if job.follow { job.layout.first_group_elems() } else { job.layout.total() };
    let norms = job.norms.then_some(gradient_elems);
    let outbox = Arc::new(Outbox::new(data, buffers, parts, until, norms));
    // Workers that finish, or whose work later rounds admit, get no cuts.
    if until != Until::End && !job.straggler.keeps_work() {
        answer_cuts(Arc::clone(&outbox), Arc::clone(&mailbox), control.clone());
    }
    let mut runner = TaskRunner {
        source: &mut *source,
        outbox: &outbox,
        mailbox: &mailbox,
        faults: config.faults.as_ref().map(|make| make(&job)),
        orders: samples.map(|samples| OrderSpec { balance, ..OrderSpec::new(job.seed, samples) }),
        batch: job.batch,
        costs,
        any_newer: job.any_newer,
        gradient,
        order: EpochOrder::none(),
        parts,
    };
    control.send(FromWorker::Ready { samples, ahead }).map_err(join)?;
    run_tasks(&mut runner, &control)
}

fn other_costs() -> WorkerError {
    let why = "the run balances batches by what samples cost, which is unknown or different here; give \
               --costs the file that the server has";
    WorkerError::Prepare(why.to_owned())
}

fn run_tasks(runner: &mut TaskRunner<'_>, control: &ControlSender) -> Result<Tally, WorkerError> {
    let mut tally = Tally::default();
    let outcome = loop {
        let outcome = match runner.mailbox.next(runner.source.follows()) {
            Next::Task(task) => {
                let ended = runner.run(&task, &|message| control.send(message));
                ended.map(|ended| tally.count(&ended))
            }
            Next::Follow(version) => runner.follow(version),
            Next::Stop(Ok(why)) => {
                tracing::debug!("the run is over: {why}");
                break Ok(());
            }
            Next::Stop(Err(error)) => break Err(WorkerError::Lost(error)),
        };
        // At the end of a run, connections close in any order. An error should reach the coordinator from
        // the shard that found it, before `Bye`.
        if let Err(error) = outcome {
            match (runner.mailbox.stop_reason(REASON_TIMEOUT), &error) {
                (Some(Ok(_)), _) => break Ok(()),
                // A shard's own reason may be lost with its connection.
                (Some(Err(why)), FrameError::Io(_)) => break Err(WorkerError::Lost(why)),
                _ => break Err(error.into()),
            }
        }
    };
    (tally.closed, tally.used) = runner.mailbox.rounds();
    outcome.map(|()| tally)
}

fn receive_messages(mut reader: Reader, me: WorkerId, mailbox: Arc<Mailbox>, clock: Instant) {
    let receive = move || {
        loop {
            match reader.message::<ToWorker>() {
                Ok(ToWorker::Heard { sent }) => {
                    let took = clock.elapsed().saturating_sub(sent);
                    tracing::debug!("answered after {} us", took.as_micros());
                }
                Ok(message) => mailbox.deliver(me, message),
                Err(error) => return mailbox.hang_up(error.to_string()),
            }
        }
    };
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(receive)
        .expect("failed to start a thread");
}

fn answer_cuts(outbox: Arc<Outbox>, mailbox: Arc<Mailbox>, control: ControlSender) {
    let answer = move || outbox.answer_cuts(&mailbox, &|message| control.send(message));
    thread::Builder::new()
        .name("answer cuts".to_owned())
        .spawn(answer)
        .expect("failed to start a thread");
}

/// Sends `Bye` however the session ends, so that the coordinator does not wait for this worker.
struct ByeOnDrop(ControlSender);

impl Drop for ByeOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(FromWorker::Bye);
    }
}

/// The writing direction of the control connection, shared by the worker's threads.
#[derive(Clone)]
pub(crate) struct ControlSender {
    writer: Arc<Mutex<Writer>>,
    /// The clock of heartbeats.
    clock: Instant,
}

impl ControlSender {
    pub(crate) fn send(&self, message: FromWorker) -> Result<(), FrameError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.message(&message)
    }

    /// Sends heartbeats from a thread of their own, so that a long micro-batch is not taken for death,
    /// until the returned sender is dropped.
    fn start_heartbeats(&self, every: Duration) -> mpsc::Sender<()> {
        let (alive, ended) = mpsc::channel();
        let control = self.clone();
        let beat = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let sent = control.clock.elapsed();
                if control.send(FromWorker::Heartbeat { sent }).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("heartbeat".to_owned())
            .spawn(beat)
            .expect("failed to start a thread");
        alive
    }
}
