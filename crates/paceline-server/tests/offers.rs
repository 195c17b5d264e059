//! Servers that start without a model: the first offer defines the run, the others are compared. Workers
//! exchange states through the server.

mod common;

use std::{collections::BTreeMap, ops::ControlFlow, time::Duration};

use common::{
    LIMIT, PARAMS, SAMPLES, Server, config, names,
    rogue::{Line, Rogue},
};
use paceline_core::{EventKind, StopReason, Version, WorkerId};
use paceline_params::{OptimizerSpec, TensorSpec};
use paceline_server::{Outcome, ServerConfig, ServerError};
use paceline_wire::{
    Tcp,
    frame::{Header, MAX_CHUNK},
    message::{FromWorker, Job, Reply, Role, ToWorker},
    offer::{Offer, OfferReply, OfferedUpdate, StateHead},
};
use paceline_worker::{
    WorkerError,
    state::{InitialUpload, Offered},
};
use safetensors::{Dtype, tensor::TensorView};

fn offer() -> Offer {
    Offer {
        tensors: vec![TensorSpec::new("a", [PARAMS / 2]), TensorSpec::new("b", [PARAMS / 2])],
        hashes: vec![1, 2],
        frozen_bytes: 0,
        frozen_hash: 0,
        steppers: Vec::new(),
        update: OfferedUpdate::Server(OptimizerSpec::SGD.into()),
        samples: Some(SAMPLES),
        batch: 8,
        seed: 1,
        micro_batches: 2,
        package: "0.1.0".to_owned(),
        settings: BTreeMap::new(),
    }
}

/// A safetensors file with the parameters of the offer, all with this value.
fn state(value: f32) -> Vec<u8> {
    let bytes = value.to_le_bytes().repeat(PARAMS / 2);
    let tensor = || TensorView::new(Dtype::F32, vec![PARAMS / 2], &bytes).unwrap();
    safetensors::serialize([("model.a", tensor()), ("model.b", tensor())], None).unwrap()
}

/// The settings of a run of one worker, as the offer has them.
fn plan(offer: &Offer) -> Result<ServerConfig, String> {
    if let Some(name) = offer.settings.keys().next() {
        return Err(format!("there is no setting `{name}`"));
    }
    let mut config = config(1);
    config.samples = offer.samples;
    config.limits.rounds = None;
    config.limits.workers_finish = true;
    Ok(config)
}

fn server() -> Server {
    Server::offered(LIMIT, plan)
}

fn make(server: &Server, offer: &Offer) -> Result<Offered, WorkerError> {
    paceline_worker::state::offer(&server.worker_config(), &Tcp, offer)
}

#[track_caller]
fn defines(server: &Server) -> InitialUpload {
    match make(server, &offer()).unwrap() {
        Offered::Define(upload) => upload,
        other => panic!("{other:?}"),
    }
}

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Defines the run, and waits until it has started.
#[track_caller]
fn define(server: &Server) {
    defines(server).send(&state(0.5), &mut go_on).unwrap();
    has_started(server);
}

#[track_caller]
fn has_started(server: &Server) {
    server.wait_for(|event| matches!(event, EventKind::RunStarted { .. }));
}

/// A server whose run is defined.
fn defined() -> Server {
    let server = server();
    define(&server);
    server
}

/// The offer is refused with these words, which the log has as well.
#[track_caller]
fn refused(server: &Server, change: impl FnOnce(&mut Offer), why: &str) {
    let mut changed = offer();
    change(&mut changed);
    let error = make(server, &changed).unwrap_err().to_string();
    assert!(error.ends_with(&format!("refused: {why}")), "{error}");
}

fn interrupted(mut server: Server) -> Outcome {
    server.interrupt();
    server.join().0.unwrap()
}

#[test]
fn the_first_offer_defines_the_run_and_its_state_is_where_the_shards_start() {
    let server = server();
    let mut steps = Vec::new();
    let upload = defines(&server);
    let bytes = state(0.5);
    upload
        .send(&bytes, &mut |sent, total| {
            steps.push((sent, total));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(steps, [(bytes.len() as u64, bytes.len() as u64)]);
    let mut rogue = Rogue::join(server.address);
    let job: &Job = &rogue.job;
    assert_eq!((job.samples, job.layout.tensors()), (Some(SAMPLES), &offer().tensors[..]));
    assert_eq!(rogue.pull(Version(0)), [0.5; PARAMS]);
    drop(rogue);
    interrupted(server);
}

#[test]
fn means_start_at_zero_whatever_the_state_is() {
    let server = Server::offered(LIMIT, |offer| {
        let mut config = plan(offer)?;
        config.update.optimizer = OptimizerSpec::Mean.into();
        Ok(config)
    });
    let mean = Offer { update: OfferedUpdate::Mean, ..offer() };
    let Offered::Define(upload) = make(&server, &mean).unwrap() else { panic!("not defined") };
    upload.send(b"opaque", &mut go_on).unwrap();
    assert_eq!(Rogue::join(server.address).pull(Version(0)), [0.0; PARAMS]);
    interrupted(server);
}

#[test]
fn later_offers_are_compared_and_a_difference_is_named() {
    let server = defined();
    assert!(matches!(make(&server, &offer()).unwrap(), Offered::Keep));
    let other = Offer { hashes: vec![1, 9], ..offer() };
    match make(&server, &other).unwrap() {
        Offered::Take { version: Version(0), differing } => assert_eq!(differing, [1]),
        other => panic!("{other:?}"),
    }
    let shape = "tensor `b` has shape [500, 1] here and [500] in the run";
    refused(&server, |o| o.tensors[1].shape = vec![500, 1], shape);
    server.wait_for(|event| names(event, shape));
    refused(&server, |o| o.batch = 9, "the batch size is 9 here and 8 in the run");
    let version = "the package's version is 2.0 here and 0.1.0 in the run";
    refused(&server, |o| o.package = "2.0".to_owned(), version);
    interrupted(server);
}

#[test]
fn offers_that_cannot_be_run_are_refused_and_the_next_one_defines_the_run() {
    let server = server();
    refused(&server, |o| o.hashes.clear(), "the offer has 0 hashes for 2 tensors");
    refused(&server, |o| o.tensors.truncate(0), "the offer has 2 hashes for 0 tensors");
    let unknown = |o: &mut Offer| drop(o.settings.insert("polciy".to_owned(), "full".to_owned()));
    refused(&server, unknown, "there is no setting `polciy`");
    let huge = "34359738868 parameters are more than the 17179869184 that a server takes";
    refused(&server, |o| o.tensors[0].shape = vec![1 << 35], huge);
    let endless = |o: &mut Offer| o.tensors[0].shape = vec![usize::MAX; 3];
    let error = "the model is too large to address, at tensor `a` of shape \
                 [18446744073709551615, 18446744073709551615, 18446744073709551615]";
    refused(&server, endless, error);
    let upload = defines(&server);
    let error = upload.send(b"not a file", &mut go_on).unwrap_err().to_string();
    assert!(error.contains("the state is no safetensors file"), "{error}");
    define(&server);
    interrupted(server);
}

/// A connection that has made the offer, and has not read the answer.
fn offering(server: &Server) -> Line {
    let mut line = Line::hello(server.address, "", Role::Offer);
    assert_eq!(line.hear::<Reply<()>>(), Reply::Welcome(()));
    line.say(&offer());
    line
}

#[track_caller]
fn is_asked_for_state(line: &mut Line) {
    assert_eq!(line.hear::<Reply<OfferReply>>(), Reply::Welcome(OfferReply::SendState));
}

#[test]
fn if_the_first_worker_dies_the_next_offer_takes_its_place() {
    let server = server();
    let mut first = offering(&server);
    is_asked_for_state(&mut first);
    let bytes = state(0.5);
    first.say(&StateHead { version: Version(0), bytes: bytes.len() as u64 });
    first.send(&Header::Chunk(100).encode());
    first.send(&bytes[..50]);
    let mut second = offering(&server);
    first.close();
    first.ends();
    is_asked_for_state(&mut second);
    second.say(&StateHead { version: Version(0), bytes: bytes.len() as u64 });
    second.send(&Header::Chunk(bytes.len()).encode());
    second.send(&bytes);
    assert_eq!(second.hear::<Reply<()>>(), Reply::Welcome(()));
    has_started(&server);
    interrupted(server);
}

#[test]
fn states_of_hostile_sizes_are_refused() {
    let server = server();
    let begin = |head: StateHead| {
        let mut line = offering(&server);
        is_asked_for_state(&mut line);
        line.say(&head);
        line
    };
    let refusal = |mut line: Line, why: &str| {
        assert_eq!(line.hear::<Reply<()>>(), Reply::Refused(why.to_owned()));
        line.ends();
    };
    let bound = (64 << 20) + 64 * PARAMS as u64;
    let head = |bytes| StateHead { version: Version(0), bytes };
    let long = format!("frame of {} bytes passes the bound of {bound}", bound + 1);
    refusal(begin(head(bound + 1)), &long);
    let never = format!("frame of {} bytes passes the bound of {bound}", u64::MAX);
    refusal(begin(head(u64::MAX)), &never);
    let other = begin(StateHead { version: Version(7), bytes: 1 });
    refusal(other, "unexpected message: a state of v7 where v0 was due");
    let mut more = begin(head(3));
    more.send(&[&Header::Chunk(5).encode()[..], &[0; 5]].concat());
    refusal(more, "unexpected message: a chunk of 5 bytes at 0 of 3");
    let mut none = begin(head(3));
    none.send(&Header::Chunk(0).encode());
    refusal(none, "unexpected message: a chunk of 0 bytes at 0 of 3");
    let mut large = begin(head(3));
    large.send(&[5, 0, 0, 0, 1, 0, 16, 0]);
    refusal(large, &format!("frame of {} bytes passes the bound of {MAX_CHUNK}", MAX_CHUNK + 1));
    let mut control = begin(head(3));
    control.say(&FromWorker::Bye);
    refusal(control, "expected a chunk frame");
    define(&server);
    interrupted(server);
}

#[test]
fn a_worker_that_joins_before_the_offer_waits_for_it() {
    let server = server();
    let role = Role::Worker { wish: None, name: "early".to_owned() };
    let mut early = Line::hello(server.address, "", role);
    define(&server);
    let Reply::Welcome(job) = early.hear::<Reply<Job>>() else { panic!("not let in") };
    assert_eq!(job.layout.total(), PARAMS);
    drop(early);
    interrupted(server);
}

#[test]
fn a_server_that_gets_no_offer_ends() {
    let idle = Duration::from_millis(50);
    let ended = Server::offered(idle, plan).join().0.unwrap_err();
    assert!(matches!(ended, ServerError::NoOffer(time) if time == idle), "{ended}");
}

#[test]
fn a_server_with_a_model_of_its_own_refuses_offers() {
    let server = Server::start(config(1), common::start());
    let error = make(&server, &offer()).unwrap_err().to_string();
    assert!(error.contains("this server trains a model of its own"), "{error}");
    interrupted(server);
}

/// A worker that has joined.
fn joined(server: &Server) -> Rogue {
    let mut worker = Rogue::join(server.address);
    worker.control.say(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 });
    server.wait_for(|event| matches!(event, EventKind::WorkerJoined { .. }));
    worker
}

#[test]
fn the_run_is_over_when_all_workers_have_finished() {
    let server = defined();
    for mut worker in [joined(&server), joined(&server)] {
        worker.control.say(&FromWorker::Bye);
    }
    assert_eq!(server.join().0.unwrap().reason, StopReason::WorkersFinished);
}

#[test]
fn a_worker_that_died_may_come_back_and_finish() {
    let server = defined();
    let mut first = joined(&server);
    drop(joined(&server));
    server.wait_for(|event| matches!(event, EventKind::WorkerLeft { .. }));
    let mut back = joined(&server);
    first.control.say(&FromWorker::Bye);
    back.control.say(&FromWorker::Bye);
    assert_eq!(server.join().0.unwrap().reason, StopReason::WorkersFinished);
}

fn session(worker: &Rogue) -> (WorkerId, u64) {
    (worker.job.worker, worker.job.session)
}

fn upload(server: &Server, worker: &Rogue, version: u64, bytes: &[u8]) -> Result<(), WorkerError> {
    let (to, version) = (server.worker_config(), Version(version));
    paceline_worker::state::upload(&to, &Tcp, session(worker), version, bytes, &mut go_on)
}

#[track_caller]
fn download(server: &Server, worker: &Rogue) -> (Version, Vec<u8>) {
    let from = server.worker_config();
    paceline_worker::state::download(&from, &Tcp, session(worker), &mut go_on).unwrap()
}

/// Waits until a worker is told something as wanted, whatever else it is told.
#[track_caller]
fn is_told(worker: &mut Rogue, wanted: &ToWorker) {
    while worker.control.hear::<ToWorker>() != *wanted {}
}

#[test]
fn the_newest_state_is_kept_and_goes_to_any_worker() {
    let server = defined();
    let mut worker = joined(&server);
    assert_eq!(download(&server, &worker), (Version(0), state(0.5)));
    worker.control.say(&FromWorker::WantState { at_least: Version(0) });
    is_told(&mut worker, &ToWorker::StateReady { version: Version(0) });
    let large: Vec<u8> = (0..3 * MAX_CHUNK + 7).map(|i| (i % 251) as u8).collect();
    upload(&server, &worker, 1, &large).unwrap();
    assert_eq!(download(&server, &worker), (Version(1), large));
    upload(&server, &worker, 0, b"older").unwrap();
    assert_eq!(download(&server, &worker).0, Version(1), "an older one does not replace it");
    let error = upload(&server, &worker, 5, b"x").unwrap_err().to_string();
    assert!(error.ends_with("refused: there is no v5 yet, only v0"), "{error}");
    worker.job.session += 1;
    let error = upload(&server, &worker, 1, b"x").unwrap_err().to_string();
    assert!(error.ends_with("refused: w9 is not let in"), "{error}");
    drop(worker);
    interrupted(server);
}

#[test]
fn a_transfer_ends_when_its_caller_says_so() {
    let server = defined();
    let worker = joined(&server);
    let (to, me, bytes) = (server.worker_config(), session(&worker), vec![0; 2 * MAX_CHUNK]);
    let mut chunks = 0;
    let mut stop = |_, _| {
        chunks += 1;
        ControlFlow::Break(())
    };
    let ended = paceline_worker::state::upload(&to, &Tcp, me, Version(1), &bytes, &mut stop);
    assert!(matches!(ended, Err(WorkerError::Interrupted)), "{ended:?}");
    assert_eq!(chunks, 1);
    server.wait_for(|event| names(event, "connection closed"));
    upload(&server, &worker, 1, &bytes).unwrap();
    drop(worker);
    interrupted(server);
}

#[test]
fn few_states_are_received_at_once_and_one_from_each_worker() {
    let server = defined();
    let workers = [0, 1, 2].map(|_| joined(&server));
    let begin = |worker: &Rogue| {
        let (worker, session) = session(worker);
        let role = Role::State { worker, session, upload: Some(Version(0)) };
        let mut line = Line::hello(server.address, "", role);
        let reply: Reply<()> = line.hear();
        (line, reply)
    };
    let (_first, reply) = begin(&workers[0]);
    assert_eq!(reply, Reply::Welcome(()));
    let (_again, reply) = begin(&workers[0]);
    assert_eq!(reply, Reply::Refused("w9 is sending a state already".to_owned()));
    let (_second, reply) = begin(&workers[1]);
    assert_eq!(reply, Reply::Welcome(()));
    let (_third, reply) = begin(&workers[2]);
    assert_eq!(reply, Reply::Refused("2 workers are sending states already".to_owned()));
    drop(workers);
    interrupted(server);
}

#[test]
fn a_worker_of_the_newest_round_is_asked_for_its_state_and_another_if_it_dies() {
    let server = Server::offered(LIMIT, |offer| {
        let mut config = plan(offer)?;
        config.round.expected = 3;
        Ok(config)
    });
    define(&server);
    let [mut donor, mut waiting, mut dying] = [0, 1, 2].map(|_| joined(&server));
    for worker in [&mut donor, &mut dying] {
        let (base, samples) = worker.work();
        worker.done(base, f64::from(samples), 1.0);
        worker.push(base, &[1.0; PARAMS]);
        server.wait_for(|event| matches!(event, EventKind::Arrived { .. }));
    }
    waiting.control.say(&FromWorker::WantState { at_least: Version(1) });
    let asked = ToWorker::SendState { at_least: Version(1) };
    is_told(&mut dying, &asked);
    drop(dying);
    is_told(&mut donor, &asked);
    upload(&server, &donor, 1, b"the state").unwrap();
    is_told(&mut waiting, &ToWorker::StateReady { version: Version(1) });
    assert_eq!(download(&server, &waiting), (Version(1), b"the state".to_vec()));
    drop((donor, waiting));
    interrupted(server);
}
