//! A server on loopback with workers that minimise a quadratic, all in this process.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::{
    net::SocketAddr,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use paceline_core::{Event, EventKind, RoundConfig, Version};
use paceline_params::{Clip, FlatVec, LrScaling, OptimizerSpec, Schedule, TensorSpec};
use paceline_server::{
    Limits, Outcome, Placement, ServerConfig, ServerError, Start, UpdateConfig, serve,
};
use paceline_wire::{Tcp, message::Job};
use paceline_worker::{Compute, SlownessSpec, Tally, WorkerConfig, WorkerError};
use tokio::sync::oneshot;

pub const SAMPLES: u32 = 1000;
pub const PARAMS: usize = 1000;

/// A small run: 40 rounds of 3 workers over 2 shards in blocks of 128 values.
pub fn config(workers: usize) -> ServerConfig {
    ServerConfig {
        name: "test".to_owned(),
        model: "quadratic".to_owned(),
        data: "none".to_owned(),
        seed: 1,
        samples: SAMPLES,
        batch: 8,
        micro_batches: 2,
        policy: "full".parse().unwrap(),
        round: RoundConfig {
            expected: workers,
            quorum_grace: Duration::from_millis(300),
            ..RoundConfig::default()
        },
        placement: Placement { shards: 2, remote: false, block_elems: 128, staging_bytes: 1 << 30 },
        update: UpdateConfig {
            optimizer: OptimizerSpec::SGD,
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
    fn load(&mut self, params: &[f32]) {
        self.params = params.to_vec();
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        let n = samples.len() as f32;
        for (g, p) in gradient.iter_mut().zip(&self.params) {
            *g += n * (p - 1.0);
        }
        samples.len() as f64
    }
}

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    thread: JoinHandle<Result<Outcome, ServerError>>,
    events: mpsc::Receiver<Event>,
    interrupt: Option<oneshot::Sender<()>>,
}

impl Server {
    pub fn start(config: ServerConfig, start: Start) -> Self {
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
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let interrupted = async {
                    if interrupted.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                serve(config, start, listener, None, sender, interrupted).await
            })
        });
        let address = address.recv().unwrap();
        Server { address, thread, events, interrupt: Some(interrupt) }
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
            address: self.address.to_string(),
            token: None,
            wish: Some(wish),
            name: format!("test worker {wish}"),
            slowness: slowness.parse::<SlownessSpec>().unwrap(),
        };
        thread::spawn(move || {
            paceline_worker::run(&config, &Tcp, |job: &Job| Ok((compute(), job.samples)))
        })
    }

    /// Blocks until an event is as wanted; those before it are returned with it.
    #[track_caller]
    pub fn wait_for(&self, wanted: impl Fn(&EventKind) -> bool) -> Vec<Event> {
        let mut seen = Vec::new();
        loop {
            let event = self.events.recv_timeout(Duration::from_secs(20));
            let event = event.unwrap_or_else(|_| panic!("it never came; seen: {seen:#?}"));
            let found = wanted(&event.kind);
            seen.push(event);
            if found {
                return seen;
            }
        }
    }

    pub fn interrupt(&mut self) {
        if let Some(interrupt) = self.interrupt.take() {
            interrupt.send(()).unwrap();
        }
    }

    pub fn join(self) -> (Result<Outcome, ServerError>, Vec<Event>) {
        let outcome = self.thread.join().unwrap();
        (outcome, self.events.try_iter().collect())
    }
}
