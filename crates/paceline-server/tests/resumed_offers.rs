//! Checkpoints of runs whose workers bring their model, and runs that go on from them.

mod common;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use common::{LIMIT, PARAMS, SAMPLES, Server, config, rogue::Rogue};
use paceline_core::{EventKind, Ledger, StopReason, Version};
use paceline_params::{OptimizerSpec, TensorSpec, checkpoint};
use paceline_server::{CheckpointConfig, Outcome, ResumedOffer, SavedState, ServerConfig};
use paceline_wire::{
    Tcp,
    message::{FromWorker, ToWorker},
    offer::{Offer, OfferedUpdate},
};
use paceline_worker::{
    WorkerError,
    state::{self, Offered},
};
use safetensors::{Dtype, tensor::TensorView};

fn offer(update: OfferedUpdate) -> Offer {
    Offer {
        tensors: vec![TensorSpec::new("w", [PARAMS])],
        hashes: vec![1],
        frozen_bytes: 0,
        frozen_hash: 0,
        steppers: Vec::new(),
        update,
        samples: Some(SAMPLES),
        batch: 8,
        seed: 1,
        micro_batches: 2,
        package: "0.1.0".to_owned(),
        settings: BTreeMap::new(),
    }
}

fn mean() -> Offer {
    offer(OfferedUpdate::Mean)
}

fn momentum() -> Offer {
    offer(OfferedUpdate::Server(OptimizerSpec::MOMENTUM.into()))
}

/// A safetensors file whose parameters all have this value.
fn state(value: f32) -> Vec<u8> {
    let bytes = value.to_le_bytes().repeat(PARAMS);
    let tensor = TensorView::new(Dtype::F32, vec![PARAMS], &bytes).unwrap();
    safetensors::serialize([("model.w", tensor)], None).unwrap()
}

/// A run of one worker that writes a checkpoint every second round into `dir`.
fn plan(dir: &Path) -> impl FnMut(&Offer) -> Result<ServerConfig, String> + Send + 'static {
    let checkpoints = CheckpointConfig { dir: dir.to_owned(), every: 2, keep: 9 };
    move |offer| {
        let mut config = config(1);
        config.samples = offer.samples;
        config.limits.rounds = None;
        config.checkpoints = Some(checkpoints.clone());
        config.update.optimizer = match &offer.update {
            OfferedUpdate::Mean => OptimizerSpec::Mean.into(),
            OfferedUpdate::Server(optimizer) => optimizer.clone(),
        };
        Ok(config)
    }
}

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn make(server: &Server, offer: &Offer) -> Result<Offered, WorkerError> {
    state::offer(&server.worker_config(), &Tcp, offer)
}

/// A server whose run this offer defines.
#[track_caller]
fn defined(dir: &Path, offer: &Offer) -> Server {
    let server = Server::offered(LIMIT, plan(dir));
    let Offered::Define(upload) = make(&server, offer).unwrap() else { panic!("not asked") };
    upload.send(&state(0.5), &mut go_on).unwrap();
    server
}

/// One round of one worker; returns the version that it makes.
fn round(worker: &mut Rogue) -> u64 {
    let (base, samples) = worker.work();
    worker.done(base, f64::from(samples), 1.0);
    worker.push(base, &[1.0; PARAMS]);
    base.0 + 1
}

fn is_told(worker: &mut Rogue, wanted: &ToWorker) {
    while worker.control.hear::<ToWorker>() != *wanted {}
}

fn upload(server: &Server, worker: &Rogue, version: u64, bytes: &[u8]) {
    let (to, me) = (server.worker_config(), (worker.job.worker, worker.job.session));
    state::upload(&to, &Tcp, me, Version(version), bytes, &mut go_on).unwrap();
}

/// Waits for the checkpoint of a version.
fn saved(server: &Server, at: u64) -> PathBuf {
    let is_it = |event: &EventKind| matches!(event, EventKind::Checkpointed { version, .. } if version.0 == at);
    match server.wait_for(is_it).pop().unwrap().kind {
        EventKind::Checkpointed { path, .. } => path,
        other => panic!("{other:?}"),
    }
}

/// Samples that were used when a checkpoint was written.
fn used(path: &Path) -> u64 {
    let checkpoint = checkpoint::read(path).unwrap();
    let saved: SavedState = serde_json::from_value(checkpoint.state).unwrap();
    Ledger::resume(&saved.ledger, SAMPLES, None).unwrap().counts().used
}

fn interrupted(mut server: Server) -> Outcome {
    server.interrupt();
    server.join().0.unwrap()
}

/// A checkpoint in `dir` of a run of two rounds with the mean as update.
fn stopped_after_two_rounds(dir: &Path) -> PathBuf {
    let server = defined(dir, &mean());
    // While a checkpoint is being written, another that falls due is left out.
    saved(&server, 0);
    let mut worker = Rogue::join(server.address);
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 });
    (0..2).for_each(|_| _ = round(&mut worker));
    is_told(&mut worker, &ToWorker::SendState { at_least: Version(2) });
    upload(&server, &worker, 2, &state(2.0));
    let path = saved(&server, 2);
    drop(worker);
    interrupted(server);
    path
}

fn resumed(path: &Path) -> ResumedOffer {
    ResumedOffer::new(checkpoint::read(path).unwrap()).unwrap().unwrap()
}

#[test]
fn a_workers_state_is_saved_with_the_ledger_of_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let server = defined(dir.path(), &mean());
    let first = saved(&server, 0);
    let mut worker = Rogue::join(server.address);
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 });
    // Two rounds are closed when the state is asked for, and one more when it is sent.
    assert_eq!((0..3).map(|_| round(&mut worker)).last(), Some(3));
    let (base, _) = worker.work();
    assert_eq!(base, Version(3));
    upload(&server, &worker, 3, &state(3.0));
    let later = saved(&server, 3);
    assert_eq!((used(&first), used(&later)), (0, 24));
    let read = |path: &Path| checkpoint::read(path).unwrap();
    assert_eq!(*read(&first).worker_state.unwrap(), state(0.5));
    assert_eq!(*read(&later).worker_state.unwrap(), state(3.0));
    assert_eq!(read(&later).version, 3);
    drop(worker);
    interrupted(server);
}

#[test]
fn an_interrupted_run_asks_for_the_state_of_its_last_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = defined(dir.path(), &mean());
    let mut worker = Rogue::join(server.address);
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 });
    round(&mut worker);
    worker.work();
    server.interrupt();
    is_told(&mut worker, &ToWorker::SendState { at_least: Version(1) });
    upload(&server, &worker, 1, &state(1.0));
    worker.control.say(&FromWorker::Stepped { version: Version(1), record: Vec::new() });
    assert_eq!(used(&saved(&server, 1)), 8);
    drop(worker);
    assert_eq!(server.join().0.unwrap().reason, StopReason::Interrupted);
}

#[test]
fn a_state_that_is_no_safetensors_file_never_replaces_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let server = defined(dir.path(), &mean());
    saved(&server, 0);
    let mut worker = Rogue::join(server.address);
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 });
    (0..2).for_each(|_| _ = round(&mut worker));
    is_told(&mut worker, &ToWorker::SendState { at_least: Version(2) });
    upload(&server, &worker, 2, b"not a file");
    server.wait_for(|event| {
        matches!(event, EventKind::CheckpointFailed { error, .. } if error.contains("no safetensors"))
    });
    assert_eq!(checkpoint::list(dir.path()).unwrap().len(), 1);
    drop(worker);
    interrupted(server);
}

#[test]
fn a_resumed_run_goes_on_with_the_saved_state_and_the_samples_that_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = stopped_after_two_rounds(dir.path());
    let server = Server::resuming(LIMIT, Some(resumed(&path)), plan(dir.path()));
    let changed = Offer { settings: BTreeMap::from([("x".into(), "y".into())]), ..mean() };
    assert!(
        matches!(
            make(&server, &changed).unwrap(),
            Offered::Take { version: Version(2), ref differing } if differing.is_empty()
        ),
        "settings may change, initial values do not matter"
    );
    let mut worker = Rogue::join(server.address);
    assert_eq!(worker.job.version, Version(2));
    worker.control.say(&FromWorker::WantState { at_least: Version(2) });
    is_told(&mut worker, &ToWorker::StateReady { version: Version(2) });
    let (from, me) = (server.worker_config(), (worker.job.worker, worker.job.session));
    let (version, bytes) = state::download(&from, &Tcp, me, &mut go_on).unwrap();
    assert_eq!((version, bytes), (Version(2), state(2.0)));
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 });
    loop {
        if let ToWorker::Work { base, portion, .. } = worker.control.hear() {
            assert_eq!((base, portion.ranges()[0].start), (Version(2), 16));
            break;
        }
    }
    drop(worker);
    interrupted(server);
}

#[test]
fn a_run_is_not_resumed_with_another_model_or_other_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = stopped_after_two_rounds(dir.path());
    let server = Server::resuming(LIMIT, Some(resumed(&path)), plan(dir.path()));
    let refused = |change: fn(&mut Offer), why: &str| {
        let mut other = mean();
        change(&mut other);
        let error = make(&server, &other).unwrap_err().to_string();
        assert!(error.contains(&format!("refused: {why}; a run is resumed with")), "{error}");
    };
    let shape = "tensor `w` has shape [1000, 1] here and [1000] in the run";
    refused(|o| o.tensors[0].shape.push(1), shape);
    refused(|o| o.batch = 4, "the batch size is 4 here and 8 in the run");
    refused(|o| o.seed = 2, "the seed is 2 here and 1 in the run");
    let samples = "the number of samples is 999 here and 1000 in the run";
    refused(|o| o.samples = Some(999), samples);
    let update = "the update is mode server with sgd here and mode mean in the run";
    refused(|o| o.update = OfferedUpdate::Server(OptimizerSpec::SGD.into()), update);
    assert!(matches!(make(&server, &mean()).unwrap(), Offered::Take { .. }));
    // A server that is interrupted before its run has started has no outcome.
    server.wait_for(|event| matches!(event, EventKind::RunStarted { .. }));
    interrupted(server);
}

#[test]
fn shards_go_on_with_their_optimizer_and_workers_with_the_record_of_the_last_step() {
    let dir = tempfile::tempdir().unwrap();
    let server = defined(dir.path(), &momentum());
    let mut worker = Rogue::join(server.address);
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 });
    for _ in 0..2 {
        let version = Version(round(&mut worker));
        let record = format!("step {}", version.0).into_bytes();
        worker.control.say(&FromWorker::Stepped { version, record });
    }
    let path = saved(&server, 2);
    drop(worker);
    interrupted(server);
    let params = checkpoint::read(&path).unwrap().params.into_vec();

    let server = Server::resuming(LIMIT, Some(resumed(&path)), plan(dir.path()));
    assert!(matches!(make(&server, &momentum()).unwrap(), Offered::Take { .. }));
    let mut worker = Rogue::join(server.address);
    assert_eq!(worker.pull(Version(2)), params);
    worker.control.say(&FromWorker::WantRecords { first: Version(2), last: Version(2) });
    let records = vec![b"step 2".to_vec()];
    is_told(&mut worker, &ToWorker::Records { first: Version(2), records });
    drop(worker);
    interrupted(server);
}
