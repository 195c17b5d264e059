//! Runs that stop and go on from what they left on disk.

mod common;

use std::{
    cell::Cell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
};

use common::{PARAMS, SAMPLES, Server, config};
use paceline_core::{
    Event, EventKind, NoiseScale, Portion, SampleRange, StopReason, Version, WorkerId,
};
use paceline_params::{LrScaling, OptimizerSpec, checkpoint};
use paceline_server::{CheckpointConfig, Outcome, ServerConfig, ServerError, Start};
use paceline_worker::{Compute, Tally, WorkerError};

const ROUNDS: u64 = 100;

/// Every sample pulls the parameters its own way, so it matters who computes which.
struct Scattered {
    params: Vec<f32>,
    gate: Arc<Gate>,
    loaded: u32,
}

/// Stops workers after so many rounds, so that a run stands still while it is looked at.
struct Gate {
    after: u32,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn new(after: u32) -> Arc<Gate> {
        Arc::new(Gate { after, open: Mutex::new(false), opened: Condvar::new() })
    }

    fn pass(&self, loaded: u32) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open && loaded > self.after).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Compute for Scattered {
    fn load(&mut self, _: usize, params: &[f32]) {
        self.params = params.to_vec();
        self.loaded += 1;
        self.gate.pass(self.loaded);
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        for &sample in samples {
            let mut state = sample.wrapping_mul(2_654_435_761) | 1;
            for (g, p) in gradient.iter_mut().zip(&self.params) {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                *g += p - state as f32 / u32::MAX as f32;
            }
        }
        samples.len() as f64
    }
}

fn exact(dir: &Path, optimizer: OptimizerSpec) -> ServerConfig {
    let mut config = config(3);
    config.deterministic = true;
    config.update.optimizer = optimizer.into();
    config.limits.rounds = Some(ROUNDS);
    config.checkpoints = Some(CheckpointConfig { dir: dir.to_owned(), every: 10, keep: 100 });
    config
}

/// Runs with as many workers as are expected, to the end.
fn run(config: ServerConfig, start: Start) -> (Outcome, Vec<Event>) {
    let gate = Gate::new(u32::MAX);
    let (server, workers) = begin(config, start, &gate);
    end(server, workers)
}

/// Stops the workers after so many rounds, waits until something is on disk, and interrupts.
fn interrupt(config: ServerConfig, start: Start, rounds: u32) -> (Outcome, Vec<Event>) {
    let gate = Gate::new(rounds);
    let last = start.version.0 + u64::from(rounds);
    let (mut server, workers) = begin(config, start, &gate);
    let (stands, saved) = (Cell::new(false), Cell::new(false));
    server.wait_for(|event| {
        match event {
            EventKind::RoundStarted { round, .. } if round.0 >= last => stands.set(true),
            EventKind::Checkpointed { .. } => saved.set(true),
            _ => {}
        }
        stands.get() && saved.get()
    });
    server.interrupt();
    server.wait_for(|event| matches!(event, EventKind::Stopped { .. }));
    gate.open();
    let (outcome, events) = end(server, workers);
    assert_eq!(outcome.reason, StopReason::Interrupted);
    assert!(outcome.ledger.balanced);
    (outcome, events)
}

type Workers = Vec<JoinHandle<Result<Tally, WorkerError>>>;

fn begin(config: ServerConfig, start: Start, gate: &Arc<Gate>) -> (Server, Workers) {
    let workers = config.round.expected as u32;
    let server = Server::start(config, start);
    let worker = |number| {
        let gate = Arc::clone(gate);
        let compute =
            || -> Box<dyn Compute> { Box::new(Scattered { params: Vec::new(), gate, loaded: 0 }) };
        server.worker_with(number, "", compute)
    };
    let workers = (0..workers).map(worker).collect();
    (server, workers)
}

fn end(server: Server, workers: Workers) -> (Outcome, Vec<Event>) {
    let (outcome, events) = server.join();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    (outcome.unwrap(), events)
}

fn resume(path: &Path) -> Start {
    Start::resume(checkpoint::read(path).unwrap()).unwrap().0
}

fn latest(dir: &Path) -> PathBuf {
    checkpoint::latest(dir).unwrap().unwrap().path
}

#[test]
fn an_interrupted_run_ends_with_the_same_bits_as_one_that_was_not() {
    for optimizer in [OptimizerSpec::SGD, OptimizerSpec::MOMENTUM, OptimizerSpec::ADAMW] {
        let dir = tempfile::tempdir().unwrap();
        let (whole, _) = run(exact(&dir.path().join("whole"), optimizer), common::start());
        assert_eq!(whole.reason, StopReason::Rounds);

        let parts = dir.path().join("parts");
        let (first, _) = interrupt(exact(&parts, optimizer), common::start(), 50);
        let saved = checkpoint::list(&parts).unwrap();
        let (at_the_end, before) = (&saved[0], &saved[saved.len() - 1]);
        assert_eq!(resume(at_the_end).version, first.version, "the end writes one");
        assert_ne!(at_the_end, before);

        // As after an orderly end, and as after a crash that lost what came later.
        for (from, shards) in [(at_the_end, 3), (before, 1)] {
            let mut config = exact(&dir.path().join("rest"), optimizer);
            config.placement.shards = shards;
            config.placement.block_elems = 100;
            let (rest, _) = run(config, resume(from));
            assert_eq!(rest.reason, StopReason::Rounds);
            assert_eq!(rest.version, Version(ROUNDS));
            assert_eq!(rest.param_hash, whole.param_hash, "{optimizer}");
            assert_eq!(rest.samples, whole.samples);
            assert!(rest.ledger.balanced);
        }
    }
}

#[test]
fn the_round_in_a_checkpoint_is_the_one_that_a_resumed_run_starts_with() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = exact(dir.path(), OptimizerSpec::SGD);
    config.limits.rounds = Some(7);
    run(config.clone(), common::start());
    let path = latest(dir.path());
    assert!(path.ends_with("round-00000007"), "{}", path.display());
    let saved = checkpoint::read(&path).unwrap();
    assert_eq!((saved.round, saved.version, saved.step), (7, 7, 7));
    config.limits.rounds = Some(8);
    let (_, events) = run(config, resume(&path));
    let first = events.iter().find_map(|event| match event.kind {
        EventKind::RoundStarted { round, .. } => Some(round.0),
        _ => None,
    });
    assert_eq!(first, Some(saved.round));
}

#[test]
fn what_is_known_of_the_noise_is_kept_with_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let config = |rounds| {
        let mut config = exact(dir.path(), OptimizerSpec::SGD);
        config.update.scaling = LrScaling::AdaScale;
        config.limits.rounds = Some(rounds);
        config
    };
    let told = |events: &[Event]| {
        let scale = |event: &Event| match event.kind {
            EventKind::Updated { noise_scale, .. } => noise_scale,
            _ => None,
        };
        events.iter().filter_map(scale).collect::<Vec<f64>>()
    };
    let (_, events) = run(config(50), common::start());
    let saved = resume(&latest(dir.path()));
    assert!(saved.noise.scale().is_some());
    assert_eq!(saved.noise.scale(), told(&events).last().copied());
    // One round more moves an estimate over fifty by little; a first one alone could be anywhere.
    let (_, events) = run(config(51), saved.clone());
    let (before, after) = (saved.noise.scale().unwrap(), told(&events)[0]);
    assert!((after / before - 1.0).abs() < 0.2, "{before} to {after}");
    let (_, events) = run(config(51), Start { noise: NoiseScale::default(), ..saved });
    assert!(told(&events).first() != Some(&after), "as if nothing had been known");
}

/// Which samples the updates of a run used, from its events alone.
fn used(events: &[Event], used: &mut BTreeMap<u32, Vec<u32>>) {
    let mut given: BTreeMap<(WorkerId, Version), Portion> = BTreeMap::new();
    let mut arrived: Vec<Portion> = Vec::new();
    for event in events {
        match &event.kind {
            EventKind::RoundStarted { round, work } => {
                arrived.clear();
                given.extend(
                    work.iter().map(|work| ((work.worker, round.base()), work.portion.clone())),
                );
            }
            EventKind::Enlisted { round, work } => {
                given.insert((work.worker, round.base()), work.portion.clone());
            }
            EventKind::Arrived { worker, base, .. } => {
                arrived.push(given[&(*worker, *base)].clone())
            }
            EventKind::Closed { .. } => {
                let ranges: Vec<SampleRange> =
                    arrived.drain(..).flat_map(|portion| portion.ranges().to_vec()).collect();
                for range in ranges {
                    let epoch =
                        used.entry(range.epoch).or_insert_with(|| vec![0; SAMPLES as usize]);
                    let samples = &mut epoch[range.start as usize..range.end as usize];
                    samples.iter_mut().for_each(|count| *count += 1);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn every_sample_is_used_once_an_epoch_whoever_resumes_on_whatever_shards() {
    let dir = tempfile::tempdir().unwrap();
    let stage = |workers: usize, shards: u32, policy: &str| {
        let mut config = config(workers);
        config.policy = policy.parse().unwrap();
        config.update.optimizer = OptimizerSpec::MOMENTUM.into();
        config.placement.shards = shards;
        config.limits.rounds = None;
        config.limits.epochs = Some(3);
        config.checkpoints =
            Some(CheckpointConfig { dir: dir.path().to_owned(), every: 10, keep: 2 });
        config
    };
    let mut counts = BTreeMap::new();
    let (first, events) = interrupt(stage(3, 2, "static:2"), common::start(), 30);
    used(&events, &mut counts);

    let resumed = resume(&latest(dir.path()));
    let (second, events) = interrupt(stage(5, 1, "full"), resumed, 30);
    used(&events, &mut counts);
    assert_eq!(second.samples.used, first.samples.used + second.samples_here);

    let (last, events) = run(stage(2, 5, "full"), resume(&latest(dir.path())));
    used(&events, &mut counts);
    assert_eq!(last.reason, StopReason::Epochs);
    assert_eq!(last.samples.used, 3 * u64::from(SAMPLES));
    assert_eq!((last.ledger.epochs, last.ledger.unused.len()), (3, 0));
    assert!(last.ledger.balanced);
    assert_eq!(counts.len(), 3);
    for (epoch, samples) in counts {
        assert!(samples.iter().all(|&count| count == 1), "epoch {epoch}: {samples:?}");
    }
    assert!(checkpoint::list(dir.path()).unwrap().len() <= 2, "old ones are removed");
}

#[test]
fn a_start_that_does_not_fit_the_run_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = exact(dir.path(), OptimizerSpec::ADAMW);
    config.limits.rounds = Some(3);
    run(config.clone(), common::start());
    let saved = resume(&latest(dir.path()));
    let refused = |config: ServerConfig, start: Start| -> ServerError {
        Server::start(config, start).join().0.unwrap_err()
    };

    let mut other = config.clone();
    other.update.optimizer = OptimizerSpec::MOMENTUM.into();
    let error = refused(other, saved.clone()).to_string();
    assert!(error.contains("2 vectors of optimizer state where"), "{error}");

    let mut short = saved.clone();
    short.params = vec![0.0; PARAMS - 1].into();
    let error = refused(config.clone(), short).to_string();
    assert!(error.contains("999 values for 1000 parameters"), "{error}");

    config.samples = Some(SAMPLES + 1);
    let error = refused(config, saved).to_string();
    assert!(error.contains("ledger of 1000 samples does not fit a data set of 1001"), "{error}");
}

/// Its first gradient and loss are as they should be.
struct BlowsUp {
    loaded: u32,
    value: f32,
    loss: f64,
    /// What must be on disk before it computes its second.
    saved: Option<PathBuf>,
}

impl BlowsUp {
    fn boxed(value: f32, loss: f64, saved: Option<PathBuf>) -> Box<dyn Compute> {
        Box::new(BlowsUp { loaded: 0, value, loss, saved })
    }
}

impl Compute for BlowsUp {
    fn load(&mut self, _: usize, _: &[f32]) {
        self.loaded += 1;
        while self.loaded == 2 && !self.saved.as_ref().is_none_or(|path| path.is_dir()) {
            std::thread::yield_now();
        }
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        let good = self.loaded == 1;
        gradient.fill(if good { 1.0 } else { self.value });
        if good { samples.len() as f64 } else { self.loss }
    }
}

#[test]
fn a_run_that_diverges_says_so_and_leaves_its_last_good_checkpoint() {
    // Gradients from version 5, or only the loss, are not finite; or they are, and version 6 is not.
    for (value, loss, rate, good) in
        [(f32::NAN, 1.0, 0.1, 4), (1.0, f64::INFINITY, 0.1, 4), (f32::MAX / 8.0, 1.0, 1e9, 5)]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(3);
        config.limits.rounds = Some(4);
        let saved = CheckpointConfig { dir: dir.path().to_owned(), every: 1, keep: 1 };
        config.checkpoints = Some(saved);
        run(config.clone(), common::start());
        config.limits.rounds = None;
        config.update.learning_rate = rate;
        let server = Server::start(config, resume(&latest(dir.path())));
        let worker = |wish| {
            let saved = Some(dir.path().join("round-00000005"));
            server.worker_with(wish, "", move || BlowsUp::boxed(value, loss, saved))
        };
        let workers: Workers = (0..3).map(worker).collect();
        let (outcome, _) = server.join();
        let reason = outcome.unwrap().reason;
        assert!(matches!(reason, StopReason::Diverged(_)), "{reason}");
        assert!(reason.to_string().contains("lower the learning rate"), "{reason}");
        drop(workers);
        let left = resume(&latest(dir.path()));
        assert_eq!(left.version, Version(good), "with {value} {loss}");
        assert!(left.params.pieces().flatten().all(|value| value.is_finite()));
    }
}

#[test]
fn one_worker_that_blows_up_among_others_is_shown_out_and_the_run_goes_on() {
    let mut config = config(3);
    config.limits.rounds = Some(20);
    let server = Server::start(config, common::start());
    let honest = [server.worker(0), server.worker(1)];
    let rogue = server.worker_with(2, "", || BlowsUp::boxed(f32::NAN, 1.0, None));
    let outcome = server.join().0.unwrap();
    assert_eq!((outcome.reason, outcome.rounds), (StopReason::Rounds, 20));
    assert!(rogue.join().unwrap().unwrap_err().to_string().contains("not finite"));
    for worker in honest {
        worker.join().unwrap().unwrap();
    }
}
