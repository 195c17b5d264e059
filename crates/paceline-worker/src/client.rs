//! The life of a worker, from its first word to its last.

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
    work::{Bench, Compute, Ended, Tally},
};

/// What a worker is told by whoever starts it; the rest it learns from the coordinator.
#[derive(Clone, Default)]
pub struct WorkerConfig {
    /// The coordinator's address.
    pub address: String,
    /// What lets it in.
    pub token: Option<String>,
    /// The number it would like.
    pub wish: Option<u32>,
    /// Host and process, for people.
    pub name: String,
    /// Faults that it bears on purpose.
    pub faults: Option<MakeFaults>,
    /// What gradients and parameters go by.
    pub transport: Transport,
}

impl WorkerConfig {
    pub(crate) fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// The address of a shard; one without an address of its own is at the coordinator's.
    pub(crate) fn shard_address<'a>(&'a self, shard: &'a str) -> &'a str {
        if shard.is_empty() { &self.address } else { shard }
    }
}

/// Why a worker could not go on.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The coordinator cannot be reached, refused, or speaks otherwise.
    #[error("failed to join at {address}: {error}")]
    Join {
        /// Where.
        address: String,
        /// Why.
        error: FrameError,
    },
    /// What the coordinator asks for cannot be computed here.
    #[error("failed to prepare: {0}")]
    Prepare(String),
    /// A connection failed in mid-run.
    #[error("lost the server: {0}")]
    Lost(String),
    /// A shard failed or refused what it was sent.
    #[error("failed at a shard: {0}")]
    Data(#[from] FrameError),
}

/// Makes the rule by which a pull waits for shards with these numbers of blocks; values of a shard may
/// miss at most so many updates. The caller brings it, so a worker needs no policy of its own.
pub type PullWait = fn(Enough, &[u32], u64) -> Shards;

/// How long a worker that lost a shard waits for the coordinator to say why.
const LAST_WORD: Duration = Duration::from_secs(1);

type Reader = BlockingReader<Box<dyn Read + Send>>;
type Writer = BlockingWriter<Box<dyn Write + Send>>;

/// Connects, says who this is, and returns the connection with the answer.
pub(crate) fn greet<T: DeserializeOwned>(
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
    match reader.message()? {
        Reply::Welcome(answer) => Ok((reader, writer, answer)),
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
    let join = |error| WorkerError::Join { address: config.address.clone(), error };
    let role = Role::Worker { wish: config.wish, name: config.name.clone() };
    let (reader, writer, job) =
        greet::<Job>(connect, &config.address, config.token(), role).map_err(join)?;
    let clock = Instant::now();
    let voice = Voice { writer: Arc::new(Mutex::new(writer)), clock };
    let mailbox = Arc::new(Mailbox::default());
    listen(reader, job.worker, Arc::clone(&mailbox), clock);
    let _alive = voice.give_signs_of_life(&job);
    let _parting = Parting(voice.clone());

    let (mut compute, samples) = prepare(&job).map_err(WorkerError::Prepare)?;
    let costs = compute.costs();
    let known = costs.as_deref().map(Costs::fingerprint);
    if job.balance.is_some() && job.balance != known {
        return Err(other_costs());
    }
    let costs = costs.map(|costs| Costs::new(costs, job.batch));
    let balance = costs.clone().filter(|_| job.balance.is_some());
    // What is pushed for later rounds is carried on; what is not admitted there is not.
    let carried = if job.straggler == Straggler::Finish { Until::End } else { Until::Close };
    let (data, mut buffers) =
        DataPlane::connect(connect, config, &job, wait, &mailbox, carried).map_err(join)?;
    let parts = job.micro_batches.max(1);
    let until = match (job.any_newer, job.straggler) {
        (true, _) => Until::End,
        (false, Straggler::Salvage) => Until::Close,
        (false, Straggler::Abort | Straggler::Finish) => Until::Cut,
    };
    let gradient = buffers.remove(0);
    let outbox = Arc::new(Outbox::new(data, buffers, parts, until, job.norms));
    if outbox.salvages() {
        answer_cuts(Arc::clone(&outbox), Arc::clone(&mailbox), voice.clone());
    }
    let mut bench = Bench {
        compute: &mut *compute,
        outbox: &outbox,
        mailbox: &mailbox,
        faults: config.faults.as_ref().map(|make| make(&job)),
        orders: OrderSpec { balance, ..OrderSpec::new(job.seed, job.samples) },
        batch: job.batch,
        costs,
        micro_batches: parts,
        any_newer: job.any_newer,
        gradient,
        order: EpochOrder::none(),
    };
    voice.say(FromWorker::Ready { samples }).map_err(join)?;
    work(&mut bench, &voice)
}

fn other_costs() -> WorkerError {
    let why = "the run balances batches by what samples cost, which is unknown or different here; give \
               --costs the file that the server has";
    WorkerError::Prepare(why.to_owned())
}

fn work(bench: &mut Bench<'_>, voice: &Voice) -> Result<Tally, WorkerError> {
    let mut tally = Tally::default();
    let outcome = loop {
        let task = match bench.mailbox.next() {
            Next::Task(task) => task,
            Next::Stop(Ok(why)) => {
                tracing::debug!("the run is over: {why}");
                break Ok(());
            }
            Next::Stop(Err(error)) => break Err(WorkerError::Lost(error)),
        };
        match bench.work(&task, &|message| voice.say(message)) {
            Ok(Ended::Pushed) => tally.finished += 1,
            Ok(Ended::Salvaged) => tally.salvaged += 1,
            Ok(Ended::Aborted) => tally.aborted += 1,
            // At the end of a run connections close in any order; and what a shard found wrong, the
            // coordinator should hear from it before it hears goodbye.
            Err(error) => match (bench.mailbox.last_word(LAST_WORD), &error) {
                (Some(Ok(_)), _) => break Ok(()),
                // A shard's own word may be lost with its connection.
                (Some(Err(why)), FrameError::Io(_)) => break Err(WorkerError::Lost(why)),
                _ => break Err(error.into()),
            },
        }
    };
    (tally.closed, tally.used) = bench.mailbox.rounds();
    outcome.map(|()| tally)
}

fn listen(mut reader: Reader, me: WorkerId, mailbox: Arc<Mailbox>, clock: Instant) {
    let listen = move || {
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
        .name("listen".to_owned())
        .spawn(listen)
        .expect("failed to start a thread");
}

fn answer_cuts(outbox: Arc<Outbox>, mailbox: Arc<Mailbox>, voice: Voice) {
    let answer = move || outbox.answer_cuts(&mailbox, &|message| voice.say(message));
    thread::Builder::new()
        .name("answer cuts".to_owned())
        .spawn(answer)
        .expect("failed to start a thread");
}

/// Says goodbye however the work ends, so that nobody waits for it.
struct Parting(Voice);

impl Drop for Parting {
    fn drop(&mut self) {
        let _ = self.0.say(FromWorker::Bye);
    }
}

/// The worker's side of the control connection, spoken on by two threads.
#[derive(Clone)]
struct Voice {
    writer: Arc<Mutex<Writer>>,
    /// What signs of life are dated by.
    clock: Instant,
}

impl Voice {
    fn say(&self, message: FromWorker) -> Result<(), FrameError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.message(&message)
    }

    /// From a thread of its own, so that a long micro-batch is not taken for death. Ends when what
    /// it returns is dropped.
    fn give_signs_of_life(&self, job: &Job) -> mpsc::Sender<()> {
        let (alive, ended) = mpsc::channel();
        let (voice, every) = (self.clone(), job.heartbeat);
        let beat = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let sent = voice.clock.elapsed();
                if voice.say(FromWorker::Heartbeat { sent }).is_err() {
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
