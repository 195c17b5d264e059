//! A whole worker against a coordinator and shards that the test plays, message by message.

use std::{
    io,
    ops::Range,
    os::unix::net::UnixStream,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use paceline_core::{
    ContributionId, CutReason, Decision, Enough, Policy, Portion, RoundView, SampleRange, Shards,
    Straggler, Version, WorkerId,
};
use paceline_params::{Layout, TensorSpec, WireType};
use paceline_wire::{
    BlockingReader, BlockingWriter, Connect, Connection,
    frame::{BlockHead, Header},
    message::{FromData, FromWorker, Hello, Invitation, Job, Reply, Role, ToData, ToWorker},
};
use paceline_worker::{Compute, Tally, WorkerConfig, WorkerError};
use serde::{Serialize, de::DeserializeOwned};

/// No message takes nearly as long; a test that waits longer has failed.
const LIMIT: Duration = Duration::from_secs(20);

/// Samples in the data of the run.
const SAMPLES: u32 = 64;
const BLOCK: usize = 100;
const BLOCKS: u32 = 4;

/// The test's end of one of the worker's connections.
struct Peer {
    reader: BlockingReader<UnixStream>,
    writer: BlockingWriter<UnixStream>,
}

impl Peer {
    /// Completes the handshake of a connection that the worker opened, and lets it in.
    fn accept<T: Serialize>(stream: UnixStream, answer: T) -> (Role, Peer) {
        Self::answer(stream, Reply::Welcome(answer))
    }

    fn answer<T: Serialize>(stream: UnixStream, answer: Reply<T>) -> (Role, Peer) {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let writer = BlockingWriter::new(stream.try_clone().unwrap());
        let mut peer = Peer { reader: BlockingReader::new(stream), writer };
        peer.writer.preamble().unwrap();
        peer.reader.preamble().unwrap();
        let hello: Hello = peer.receive();
        peer.send(&answer);
        (hello.role, peer)
    }

    fn send<T: Serialize>(&mut self, message: &T) {
        self.writer.message(message).unwrap();
    }

    #[track_caller]
    fn receive<T: DeserializeOwned>(&mut self) -> T {
        self.reader.message().unwrap()
    }

    /// Sends these blocks of a version, each value being the version's number.
    fn send_blocks(&mut self, version: u64, blocks: Range<u32>) {
        for block in blocks {
            let values = [version as f32; BLOCK];
            self.writer.block(BlockHead { key: version, block }, &values[..]).unwrap();
        }
    }

    /// The first value of every block of a gradient, which must be from `base`.
    #[track_caller]
    fn receive_gradient(&mut self, base: u64) -> Vec<f32> {
        self.receive_blocks(base, 0..BLOCKS)
    }

    /// The first value of each of these blocks.
    #[track_caller]
    fn receive_blocks(&mut self, base: u64, blocks: Range<u32>) -> Vec<f32> {
        blocks
            .map(|block| {
                assert_eq!(self.reader.header().unwrap(), Header::Block(WireType::F32, BLOCK));
                let head = self.reader.block_head().unwrap();
                assert_eq!(head, BlockHead { key: id_on(base).0, block });
                let mut values = [0.0; BLOCK];
                self.reader.values(WireType::F32, &mut values).unwrap();
                values[0]
            })
            .collect()
    }
}

/// Hands the other end of every connection to the test.
struct InProcess(mpsc::Sender<UnixStream>);

impl Connect for InProcess {
    fn connect(&self, _: &str) -> io::Result<Connection> {
        let (near, far) = UnixStream::pair()?;
        self.0.send(far).map_err(io::Error::other)?;
        Ok((Box::new(near.try_clone()?), Box::new(near)))
    }
}

/// The gradient of a sample is the parameters.
#[derive(Default)]
struct Echo {
    params: Vec<f32>,
    /// Announces a micro-batch, and waits until the test lets it be computed.
    gate: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
}

impl Compute for Echo {
    fn load(&mut self, at: usize, params: &[f32]) {
        self.params.resize(self.params.len().max(at + params.len()), 0.0);
        self.params[at..at + params.len()].copy_from_slice(params);
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        if let Some((started, may_go_on)) = &self.gate {
            let _ = started.send(());
            let _ = may_go_on.recv();
        }
        for (sum, param) in gradient.iter_mut().zip(&self.params) {
            *sum += samples.len() as f32 * param;
        }
        samples.len() as f64
    }
}

fn job(straggler: Straggler) -> Job {
    job_with(1, straggler)
}

fn job_with(shards: u32, straggler: Straggler) -> Job {
    let tensors = vec![TensorSpec::new("w", [BLOCK * BLOCKS as usize])];
    Job {
        worker: WorkerId(0),
        session: 7,
        workers: 2,
        heartbeat: Duration::from_secs(3600),
        seed: 1,
        model: String::new(),
        data: String::new(),
        costs: String::new(),
        balance: None,
        samples: Some(SAMPLES),
        epochs: 0,
        batch: 8,
        micro_batches: 2,
        straggler,
        norms: false,
        any_newer: false,
        version: Version(0),
        follow: false,
        wire: WireType::F32,
        pull: "all".to_owned(),
        partial_push: false,
        max_stale: 0,
        layout: Layout::new(tensors, BLOCK, shards).unwrap(),
        shards: vec![String::new(); shards as usize],
    }
}

/// A policy that waits for the first of the shards.
struct First;

impl Policy for First {
    fn name(&self) -> String {
        "first".to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        if view.arrivals.is_empty() { Decision::WAIT } else { Decision::cut(CutReason::Deadline) }
    }
}

fn wait_for_first(_: Enough, blocks: &[u32], max_stale: u64) -> Shards {
    Shards::asked_anew(blocks, Box::new(First), 1, max_stale)
}

/// A worker that has joined, with the test's ends of its connections.
struct Session {
    worker: JoinHandle<Result<Tally, WorkerError>>,
    control: Peer,
    shards: Vec<Peer>,
}

impl Session {
    fn start(job: Job) -> Session {
        let compute = Box::new(Echo::default());
        Self::start_with(job, compute)
    }

    fn start_with(job: Job, compute: Box<dyn Compute + Send>) -> Session {
        let (worker, accepted) = start_worker(compute);
        let shards = job.layout.shards();
        let (role, control) = Peer::accept(accepted.recv_timeout(LIMIT).unwrap(), job);
        assert!(matches!(role, Role::Worker { .. }));
        let shards = (0..shards).map(|shard| {
            let no_memory: Option<Invitation> = None;
            let (role, peer) = Peer::accept(accepted.recv_timeout(LIMIT).unwrap(), no_memory);
            assert_eq!(role, Role::Data { worker: WorkerId(0), session: 7, shard });
            peer
        });
        let shards = shards.collect();
        let mut session = Session { worker, control, shards };
        let ready = FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 };
        assert_eq!(session.control.receive::<FromWorker>(), ready);
        session
    }

    /// Gives work on samples 0 to 8.
    fn give_work(&mut self, base: u64) {
        self.control.send(&work(base, true));
    }

    fn cut(&mut self, base: u64) {
        self.control.send(&ToWorker::Cut { base: Version(base) });
    }

    /// The answer to a cut that found nothing finished.
    #[track_caller]
    fn receive_aborted(&mut self, base: u64) {
        let message: FromWorker = self.control.receive();
        assert_eq!(message, FromWorker::Aborted { id: id_on(base), done: 0 });
    }

    /// The weight of a contribution, and the shards whose values were old.
    #[track_caller]
    fn receive_done(&mut self, expected: u64) -> (f64, Vec<u32>) {
        match self.control.receive() {
            FromWorker::Done { id, weight, stale, .. } if id == id_on(expected) => (weight, stale),
            message => panic!("{message:?}"),
        }
    }

    #[track_caller]
    fn receive_pull(&mut self, shard: usize, base: u64) {
        let pull = ToData::Pull { version: Version(base), shared: false };
        assert_eq!(self.shards[shard].receive::<ToData>(), pull);
    }

    #[track_caller]
    fn receive_cancel(&mut self, shard: usize) {
        assert_eq!(self.shards[shard].receive::<ToData>(), ToData::Cancel);
    }

    /// Ends the run; returns what the worker did in it.
    #[track_caller]
    fn stop(mut self) -> Tally {
        self.control.send(&ToWorker::Stop("done".to_owned()));
        let tally = self.worker.join().unwrap().unwrap();
        assert_eq!(self.control.receive::<FromWorker>(), FromWorker::Bye);
        tally
    }
}

/// The contribution that the tests give out on a version.
fn id_on(base: u64) -> ContributionId {
    ContributionId(100 + base)
}

fn work(base: u64, push_at_once: bool) -> ToWorker {
    let portion = Portion::new(SampleRange { epoch: 0, start: 0, end: 8 });
    ToWorker::Work {
        id: id_on(base),
        base: Version(base),
        portion,
        push_at_once,
        behind: Vec::new(),
    }
}

type Worker = JoinHandle<Result<Tally, WorkerError>>;

/// Starts a worker with so many samples; the receiver gets the test's end of every connection.
fn start_worker(compute: Box<dyn Compute + Send>) -> (Worker, mpsc::Receiver<UnixStream>) {
    let (connections, accepted) = mpsc::channel();
    let worker = thread::spawn(move || {
        let prepare = |_: &Job| Ok((compute as Box<dyn Compute>, SAMPLES));
        let connect = InProcess(connections);
        paceline_worker::run(&WorkerConfig::default(), &connect, wait_for_first, prepare)
    });
    (worker, accepted)
}

#[test]
fn a_cut_during_a_pull_is_answered_at_once_and_the_next_pull_is_whole() {
    for straggler in [Straggler::Salvage, Straggler::Abort] {
        let mut session = Session::start(job(straggler));
        session.give_work(1);
        session.receive_pull(0, 1);
        session.shards[0].send_blocks(1, 0..1);
        session.cut(1);
        session.receive_aborted(1);
        session.receive_cancel(0);
        // One more block was under way when the shard read the cancel.
        session.shards[0].send_blocks(1, 1..2);
        session.shards[0].send(&FromData::Cancelled);
        session.give_work(2);
        session.receive_pull(0, 2);
        session.shards[0].send_blocks(2, 0..BLOCKS);
        assert_eq!(session.receive_done(2), (8.0, vec![]));
        assert_eq!(session.shards[0].receive_gradient(2), [16.0; BLOCKS as usize]);
        let tally = session.stop();
        assert_eq!((tally.finished, tally.aborted), (1, 1));
    }
}

#[test]
fn a_pull_is_cancelled_on_every_shard_that_has_not_answered() {
    let mut session = Session::start(job_with(2, Straggler::Abort));
    session.give_work(1);
    for shard in 0..2 {
        session.receive_pull(shard, 1);
    }
    // The second shard has sent a part, the first has sent nothing.
    session.shards[1].send_blocks(1, 2..3);
    session.cut(1);
    session.receive_aborted(1);
    for shard in 0..2 {
        session.receive_cancel(shard);
        session.shards[shard].send(&FromData::Cancelled);
    }
    session.give_work(2);
    for (shard, blocks) in [(0, 0..2), (1, 2..4)] {
        session.receive_pull(shard, 2);
        session.shards[shard].send_blocks(2, blocks);
    }
    assert_eq!(session.receive_done(2), (8.0, vec![]));
    for shard in 0..2 {
        session.shards[shard].receive_blocks(2, session_blocks(shard));
    }
    session.stop();
}

#[test]
fn a_version_that_was_requested_ahead_can_be_cancelled_too() {
    let mut session = Session::start(job(Straggler::Abort));
    session.give_work(1);
    session.receive_pull(0, 1);
    session.shards[0].send_blocks(1, 0..BLOCKS);
    session.receive_done(1);
    session.shards[0].receive_gradient(1);
    session.receive_pull(0, 2);
    session.give_work(2);
    session.cut(2);
    session.receive_aborted(2);
    session.receive_cancel(0);
    session.shards[0].send(&FromData::Cancelled);
    session.give_work(3);
    session.receive_pull(0, 3);
    session.shards[0].send_blocks(3, 0..BLOCKS);
    assert_eq!(session.receive_done(3), (8.0, vec![]));
    assert_eq!(session.shards[0].receive_gradient(3), [24.0; BLOCKS as usize]);
    session.stop();
}

#[test]
fn a_cut_during_a_micro_batch_pushes_those_that_are_finished() {
    let (started, batches) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let compute = Echo { gate: Some((started, may_go_on)), ..Echo::default() };
    let mut session = Session::start_with(job(Straggler::Salvage), Box::new(compute));
    session.give_work(1);
    session.receive_pull(0, 1);
    session.shards[0].send_blocks(1, 0..BLOCKS);
    batches.recv_timeout(LIMIT).unwrap();
    go_on.send(()).unwrap();
    // The second micro-batch is under way, and stays so.
    batches.recv_timeout(LIMIT).unwrap();
    session.cut(1);
    assert_eq!(session.receive_done(1), (4.0, vec![]));
    assert_eq!(session.shards[0].receive_gradient(1), [4.0; BLOCKS as usize]);
    go_on.send(()).unwrap();
    assert_eq!(session.stop().salvaged, 1);
}

#[test]
fn a_worker_that_must_wait_pushes_once_it_may() {
    let mut session = Session::start(job(Straggler::Abort));
    session.control.send(&work(1, false));
    session.receive_pull(0, 1);
    session.shards[0].send_blocks(1, 0..BLOCKS);
    session.receive_done(1);
    // No block may come before the permission, nor after a cut.
    session.cut(1);
    let message: FromWorker = session.control.receive();
    assert_eq!(message, FromWorker::Aborted { id: id_on(1), done: 2 });
    session.control.send(&work(2, false));
    session.receive_pull(0, 2);
    session.shards[0].send_blocks(2, 0..BLOCKS);
    session.receive_done(2);
    session.control.send(&ToWorker::Push { id: id_on(2) });
    session.shards[0].receive_gradient(2);
    session.stop();
}

#[test]
fn shards_that_send_different_versions_give_the_worker_nothing_to_compute_from() {
    let mut session = Session::start(job_with(2, Straggler::Abort));
    session.give_work(1);
    for (shard, version, blocks) in [(0, 1, 0..2), (1, 2, 2..4)] {
        session.receive_pull(shard, 1);
        session.shards[shard].send_blocks(version, blocks);
    }
    session.receive_aborted(1);
    session.stop();
}

/// A run in which a pull waits for the first shard that answers.
fn partial(shards: u32) -> Job {
    let (pull, max_stale) = ("0.5".to_owned(), 4);
    Job { pull, partial_push: true, max_stale, ..job_with(shards, Straggler::Abort) }
}

#[test]
fn a_slow_shard_is_not_waited_for_and_its_values_count_when_they_come() {
    let mut session = Session::start(partial(2));
    session.give_work(1);
    for (shard, blocks) in [(0, 0..2), (1, 2..4)] {
        session.receive_pull(shard, 1);
        session.shards[shard].send_blocks(1, blocks);
    }
    session.receive_done(1);
    for shard in 0..2 {
        session.shards[shard].receive_blocks(1, session_blocks(shard));
        session.receive_pull(shard, 2);
    }
    // Only the first shard has version 2 in time.
    session.shards[0].send_blocks(2, 0..2);
    session.give_work(2);
    assert_eq!(session.receive_done(2), (8.0, vec![1]));
    assert_eq!(session.shards[0].receive_blocks(2, 0..2), [16.0; 2]);
    session.receive_pull(0, 3);
    // The second shard answers at last; then its thread sends the gradient that waited for that, in which
    // its own values are still those of version 1.
    session.shards[1].send_blocks(2, 2..4);
    assert_eq!(session.shards[1].receive_blocks(2, 2..4), [8.0; 2]);
    session.stop();
}

#[test]
fn a_cut_ends_the_wait_for_the_first_values_and_cancels_no_transfer() {
    let mut session = Session::start(partial(1));
    session.give_work(1);
    session.receive_pull(0, 1);
    session.cut(1);
    session.receive_aborted(1);
    session.give_work(2);
    session.shards[0].send_blocks(1, 0..BLOCKS);
    session.receive_pull(0, 2);
    session.shards[0].send_blocks(2, 0..BLOCKS);
    assert_eq!(session.receive_done(2), (8.0, vec![]));
    assert_eq!(session.shards[0].receive_gradient(2), [16.0; BLOCKS as usize]);
    session.stop();
}

#[test]
fn a_shard_that_refuses_a_worker_is_quoted() {
    for job in [job(Straggler::Abort), partial(1)] {
        let mut session = Session::start(job);
        session.give_work(1);
        session.receive_pull(0, 1);
        session.shards[0].send(&FromData::Error("no such worker".to_owned()));
        let error = session.worker.join().unwrap().unwrap_err().to_string();
        assert_eq!(error, "failed at a shard: refused: no such worker");
        assert_eq!(session.control.receive::<FromWorker>(), FromWorker::Bye);
    }
}

#[test]
fn a_coordinator_that_refuses_or_vanishes_is_named() {
    let (worker, accepted) = start_worker(Box::new(Echo::default()));
    Peer::answer::<Job>(accepted.recv_timeout(LIMIT).unwrap(), Reply::Refused("full".to_owned()));
    let error = worker.join().unwrap().unwrap_err();
    assert!(matches!(&error, WorkerError::Join { .. }), "{error}");
    assert!(error.to_string().ends_with("refused: full"), "{error}");

    let Session { worker, control, .. } = Session::start(job(Straggler::Abort));
    drop(control);
    let error = worker.join().unwrap().unwrap_err();
    assert!(matches!(error, WorkerError::Lost(_)), "{error}");
}

#[test]
fn a_worker_with_other_sample_costs_does_not_join() {
    let (worker, accepted) = start_worker(Box::new(Echo::default()));
    let job = Job { balance: Some(1), ..job(Straggler::Abort) };
    let (_, mut control) = Peer::accept(accepted.recv_timeout(LIMIT).unwrap(), job);
    let error = worker.join().unwrap().unwrap_err();
    assert!(matches!(&error, WorkerError::Prepare(_)), "{error}");
    assert_eq!(control.receive::<FromWorker>(), FromWorker::Bye);
}

#[test]
fn heartbeats_come_while_a_micro_batch_is_computed() {
    let (started, batches) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let compute = Echo { gate: Some((started, may_go_on)), ..Echo::default() };
    let job = Job { heartbeat: Duration::from_millis(1), ..job(Straggler::Abort) };
    let (worker, accepted) = start_worker(Box::new(compute));
    let (_, mut control) = Peer::accept(accepted.recv_timeout(LIMIT).unwrap(), job);
    let no_memory: Option<Invitation> = None;
    let (_, mut shard) = Peer::accept(accepted.recv_timeout(LIMIT).unwrap(), no_memory);
    control.send(&work(1, true));
    shard.receive::<ToData>();
    shard.send_blocks(1, 0..BLOCKS);
    batches.recv_timeout(LIMIT).unwrap();
    let mut beats = 0;
    while beats < 3 {
        beats += usize::from(matches!(control.receive(), FromWorker::Heartbeat { .. }));
    }
    control.send(&ToWorker::Stop("done".to_owned()));
    drop(go_on);
    worker.join().unwrap().unwrap();
}

/// The blocks of each of two shards.
fn session_blocks(shard: usize) -> Range<u32> {
    let half = BLOCKS / 2;
    shard as u32 * half..(shard as u32 + 1) * half
}
