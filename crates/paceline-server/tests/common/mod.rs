//! A server on loopback with workers that minimise a quadratic, all in this process.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod rogue;

use std::{
    cell::RefCell,
    net::SocketAddr,
    pin::Pin,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use paceline_core::{Event, EventKind, LeaveReason, NoiseScale, RoundConfig, StopReason, Version};
use paceline_faults::SlownessSpec;
use paceline_params::{
    Clip, FlatVec, LrScaling, OptimizerSpec, Schedule, TensorSpec, UpdateConfig, WireType,
};
use paceline_policy::wait_for_answers;
use paceline_server::{
    Evaluator, Limits, Outcome, Placement, ResumedOffer, ServerConfig, ServerError, Start,
    WeakSync, serve, serve_offered,
};
use paceline_wire::{Tcp, Transport, message::Job, offer::Offer};
use paceline_worker::{Compute, Tally, WorkerConfig, WorkerError};
use tokio::{net::TcpListener, sync::oneshot};

/// Nothing here takes nearly as long; what does hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

pub const SAMPLES: u32 = 1000;
pub const PARAMS: usize = 1000;

/// A small run: 40 rounds of 3 workers over 2 shards in 8 blocks of 125 values.
pub fn config(workers: usize) -> ServerConfig {
    ServerConfig {
        name: "test".to_owned(),
        model: "quadratic".to_owned(),
        data: "none".to_owned(),
        costs: String::new(),
        balance: None,
        seed: 1,
        samples: Some(SAMPLES),
        epoch_barrier: false,
        policy: "full".parse().unwrap(),
        objective: paceline_policy::Objective::Samples,
        run_time_model: paceline_model::Model::prior(),
        round: RoundConfig {
            expected: workers,
            batch: 8,
            micro_batches: 2,
            quorum_grace: Duration::from_millis(300),
            ..RoundConfig::default()
        },
        weak: WeakSync::default(),
        shard_faults: std::collections::BTreeMap::new(),
        placement: Placement { shards: 2, remote: false, block_elems: 128, staging_bytes: 1 << 30 },
        wire: WireType::F32,
        update: UpdateConfig {
            optimizer: OptimizerSpec::SGD.into(),
            learning_rate: 0.1,
            schedule: Schedule::default(),
            scaling: LrScaling::None,
            reference_weight: 1.0,
            clip: Clip::None,
        },
        limits: Limits { rounds: Some(40), ..Limits::default() },
        deterministic: false,
        checkpoints: None,
        evaluate_every: 10,
        heartbeat: Duration::from_millis(100),
        liveness: Duration::from_secs(5),
        token: None,
        transport: Transport::Auto,
    }
}

pub fn start() -> Start {
    Start {
        tensors: vec![TensorSpec::new("a", [PARAMS / 2]), TensorSpec::new("b", [PARAMS / 2])],
        params: FlatVec::from(vec![0.0; PARAMS]),
        slots: Vec::new(),
        version: Version(0),
        step: 0,
        ledger: None,
        noise: NoiseScale::default(),
    }
}

/// Pulls every parameter towards 1.
pub struct Quadratic {
    params: Vec<f32>,
}

impl Quadratic {
    pub fn new() -> Self {
        Quadratic { params: Vec::new() }
    }
}

impl Compute for Quadratic {
    fn load(&mut self, at: usize, params: &[f32]) {
        self.params.resize(self.params.len().max(at + params.len()), 0.0);
        self.params[at..at + params.len()].copy_from_slice(params);
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        let n = samples.len() as f32;
        for (g, p) in gradient.iter_mut().zip(&self.params) {
            *g += n * (p - 1.0);
        }
        samples.len() as f64
    }
}

/// Resolves when the test interrupts the run.
type Interrupted = Pin<Box<dyn Future<Output = StopReason>>>;

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    token: Option<String>,
    thread: JoinHandle<Result<Outcome, ServerError>>,
    events: mpsc::Receiver<Event>,
    seen: RefCell<Vec<Event>>,
    interrupt: Option<oneshot::Sender<()>>,
}

impl Server {
    pub fn start(config: ServerConfig, start: Start) -> Self {
        Self::start_with(config, start, None)
    }

    pub fn start_with(config: ServerConfig, start: Start, evaluator: Option<Evaluator>) -> Self {
        let token = config.token.clone();
        Self::spawn(token, |listener, events, interrupted| {
            serve(config, start, listener, evaluator, events, interrupted)
        })
    }

    /// A server for workers that bring their model, which it waits for as long as `idle`.
    pub fn offered(
        idle: Duration,
        plan: impl FnMut(&Offer) -> Result<ServerConfig, String> + Send + 'static,
    ) -> Self {
        Self::resuming(idle, None, plan)
    }

    /// A server that goes on with such a run.
    pub fn resuming(
        idle: Duration,
        resumed: Option<ResumedOffer>,
        plan: impl FnMut(&Offer) -> Result<ServerConfig, String> + Send + 'static,
    ) -> Self {
        Self::spawn(None, move |listener, events, interrupted| {
            serve_offered((None, LIMIT, idle), resumed, plan, listener, events, interrupted)
        })
    }

    fn spawn<F>(
        token: Option<String>,
        serve: impl FnOnce(TcpListener, mpsc::Sender<Event>, Interrupted) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Outcome, ServerError>>,
    {
        let (ready, address) = mpsc::channel();
        let (sender, events) = mpsc::channel();
        let (interrupt, interrupted) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let interrupted = Box::pin(async {
                    if interrupted.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    StopReason::Interrupted
                });
                serve(listener, sender, interrupted).await
            })
        });
        let address = address.recv().unwrap();
        let seen = RefCell::default();
        Server { address, token, thread, events, seen, interrupt: Some(interrupt) }
    }

    pub fn worker(&self, wish: u32) -> JoinHandle<Result<Tally, WorkerError>> {
        self.worker_with(wish, "", || Box::new(Quadratic::new()))
    }

    pub fn worker_with(
        &self,
        wish: u32,
        slowness: &str,
        compute: impl FnOnce() -> Box<dyn Compute> + Send + 'static,
    ) -> JoinHandle<Result<Tally, WorkerError>> {
        let config = WorkerConfig {
            wish: Some(wish),
            name: format!("test worker {wish}"),
            faults: Some(slowness.parse::<SlownessSpec>().unwrap().into_faults()),
            ..self.worker_config()
        };
        thread::spawn(move || {
            let prepare = |_: &Job| Ok((compute(), SAMPLES));
            paceline_worker::run(&config, &Tcp, wait_for_answers, prepare)
        })
    }

    /// How a worker reaches the server.
    pub fn worker_config(&self) -> WorkerConfig {
        WorkerConfig {
            address: self.address.to_string(),
            token: self.token.clone(),
            transport: Transport::Auto,
            ..WorkerConfig::default()
        }
    }

    /// Blocks until an event is as wanted; those since the last such wait are returned with it.
    #[track_caller]
    pub fn wait_for(&self, wanted: impl Fn(&EventKind) -> bool) -> Vec<Event> {
        let first = self.seen.borrow().len();
        let deadline = Instant::now() + LIMIT;
        loop {
            let event =
                self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let event = event.unwrap_or_else(|_| panic!("it never came; {}", self.last_seen()));
            let found = wanted(&event.kind);
            self.seen.borrow_mut().push(event);
            if found {
                return self.seen.borrow()[first..].to_vec();
            }
        }
    }

    /// The first event as wanted that comes within `time`, if one does.
    pub fn poll(&self, time: Duration, wanted: impl Fn(&EventKind) -> bool) -> Option<Event> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).ok()?;
            self.seen.borrow_mut().push(event.clone());
            if wanted(&event.kind) {
                return Some(event);
            }
        }
    }

    pub fn interrupt(&mut self) {
        if let Some(interrupt) = self.interrupt.take() {
            interrupt.send(()).unwrap();
        }
    }

    /// What became of the run, with everything that happened in it.
    #[track_caller]
    pub fn join(self) -> (Result<Outcome, ServerError>, Vec<Event>) {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => self.seen.borrow_mut().push(event),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the run hangs; {}", self.last_seen()),
            }
        }
        (self.thread.join().unwrap(), self.seen.into_inner())
    }

    fn last_seen(&self) -> String {
        let seen = self.seen.borrow();
        format!("the last of {} events: {:#?}", seen.len(), &seen[seen.len().saturating_sub(12)..])
    }
}

/// Whether an event says that a connection or a worker was shown out, and names `error`.
pub fn names(event: &EventKind, error: &str) -> bool {
    match event {
        EventKind::ConnectionClosed { error: said, .. } => said.contains(error),
        EventKind::WorkerLeft {
            why: LeaveReason::Misbehaved(said) | LeaveReason::NotFinite(said),
            ..
        } => said.contains(error),
        _ => false,
    }
}

/// Plain descent on the quadratic leaves a distance to 1 of (1 - rate)ʳ after r rounds, whoever
/// contributed. Every update rounds a parameter near 1 by up to half of 2⁻²⁴, which adds up to that over
/// the rate; twice as much is allowed.
#[track_caller]
pub fn check_descent(events: &[Event], rate: f64) {
    let norms = events.iter().filter_map(|event| match event.kind {
        EventKind::Updated { gradient_norm, .. } => Some(gradient_norm),
        _ => None,
    });
    let norms: Vec<f64> = norms.collect();
    assert!(!norms.is_empty());
    for (round, norm) in (0..).zip(norms) {
        let scale = (PARAMS as f64).sqrt();
        let expected = (1.0 - rate).powi(round) * scale;
        let rounding = scale * f64::from(f32::EPSILON) / 2.0 / rate;
        let error = (norm - expected).abs();
        assert!(error < 0.01 * expected + rounding, "round {round}: {norm} against {expected}");
    }
}

/// The learning rate of an [`endless`] run: small, so that thousands of rounds can be told apart.
pub const RATE: f32 = 0.001;

/// A run of two workers that goes on until it is interrupted.
pub fn endless() -> ServerConfig {
    let mut config = config(2);
    config.limits.rounds = None;
    config.update.learning_rate = RATE;
    config
}

/// Lets `attack` loose on a run of two honest workers, and returns the run when it was interrupted
/// after that.
#[track_caller]
pub fn attacked(config: ServerConfig, attack: impl FnOnce(&Server)) -> Outcome {
    let mut server = Server::start(config, start());
    let honest = [server.worker(0), server.worker(1)];
    wait_for_rounds(&server, 1);
    attack(&server);
    wait_for_rounds(&server, 2);
    server.interrupt();
    let (outcome, events) = server.join();
    for worker in honest {
        worker.join().unwrap().unwrap();
    }
    let outcome = outcome.unwrap();
    assert_eq!(outcome.reason, StopReason::Interrupted);
    assert!(outcome.ledger.balanced);
    check_descent(&events, f64::from(RATE));
    outcome
}

#[track_caller]
pub fn wait_for_rounds(server: &Server, rounds: usize) {
    for _ in 0..rounds {
        server.wait_for(|event| matches!(event, EventKind::Updated { .. }));
    }
}
