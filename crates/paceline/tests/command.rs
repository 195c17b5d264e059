//! `paceline train --command` and `paceline server --model offered`: workers that bring their model, as
//! processes. The command is this file's own executable.

mod common;

use std::{collections::BTreeMap, ops::ControlFlow, process::Stdio};

use common::{Ended, Place, children, wait_until};
use paceline_core::{Event, EventKind};
use paceline_params::{OptimizerSpec, TensorSpec};
use paceline_policy::wait_for_answers;
use paceline_wire::{
    BlockingReader, BlockingWriter, Connect, Tcp,
    message::{FromWorker, Hello, Job, Reply, Role, ToWorker},
    offer::{Offer, OfferedUpdate},
};
use paceline_worker::{
    Compute, WorkerConfig,
    state::{Offered, offer},
};
use rustix::process::Signal;
use safetensors::{Dtype, tensor::TensorView};

/// What the workers of a test do.
const PART: &str = "PACELINE_TEST_PART";

const SAMPLES: u32 = 640;

/// Pulls every parameter towards 1.
struct Quadratic([f32; 4]);

impl Compute for Quadratic {
    fn load(&mut self, at: usize, params: &[f32]) {
        self.0[at..at + params.len()].copy_from_slice(params);
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        for (g, p) in gradient.iter_mut().zip(&self.0) {
            *g += samples.len() as f32 * (p - 1.0);
        }
        samples.len() as f64
    }
}

/// A worker's process, where the environment says so.
#[test]
#[ignore = "a part of the other tests"]
fn worker() {
    let Ok(part) = std::env::var(PART) else { return };
    let index: u32 = std::env::var("PACELINE_WORKER").unwrap().parse().unwrap();
    assert!(std::env::var("RANK").is_err(), "no other launcher's number");
    println!("worker {index} plays {part}");
    let failing =
        part.strip_prefix("fail:").is_some_and(|who| who == "all" || who == index.to_string());
    assert!(!failing, "on purpose");
    let config = WorkerConfig {
        address: std::env::var("PACELINE_SERVER").unwrap(),
        wish: Some(index),
        name: format!("worker {index}"),
        ..WorkerConfig::default()
    };
    make_offer(&config);
    match part.as_str() {
        "train" => {
            let prepare = |_: &Job| -> Result<(Box<dyn Compute>, u32), String> {
                Ok((Box::new(Quadratic([0.0; 4])), SAMPLES))
            };
            paceline_worker::run(&config, &Tcp, wait_for_answers, prepare).unwrap();
        }
        _ => finish_after_first_work(&config),
    }
}

fn make_offer(config: &WorkerConfig) {
    let mine = Offer {
        tensors: vec![TensorSpec::new("w", [4])],
        hashes: vec![7],
        frozen_bytes: 0,
        frozen_hash: 0,
        steppers: Vec::new(),
        update: OfferedUpdate::Server(OptimizerSpec::SGD.into()),
        samples: Some(SAMPLES),
        batch: 8,
        seed: 5,
        micro_batches: 1,
        package: "0.1.0".to_owned(),
        settings: BTreeMap::from([("policy".to_owned(), "full".to_owned())]),
    };
    if let Offered::Define(upload) = offer(config, &Tcp, &mine).unwrap() {
        let zeros = [0; 16];
        let tensor = TensorView::new(Dtype::F32, vec![4], &zeros).unwrap();
        let state = safetensors::serialize([("model.w", tensor)], None).unwrap();
        upload.send(&state, &mut |_, _| ControlFlow::Continue(())).unwrap();
    }
}

/// Joins, and leaves when it is given work.
fn finish_after_first_work(config: &WorkerConfig) {
    let (read, write) = Tcp.connect(&config.address).unwrap();
    let (mut reader, mut writer) = (BlockingReader::new(read), BlockingWriter::new(write));
    writer.preamble().unwrap();
    let role = Role::Worker { wish: config.wish, name: config.name.clone() };
    writer.message(&Hello { token: String::new(), role }).unwrap();
    reader.preamble().unwrap();
    let Reply::Welcome(_) = reader.message::<Reply<Job>>().unwrap() else { panic!("not let in") };
    writer.message(&FromWorker::Ready { samples: Some(SAMPLES), ahead: 0 }).unwrap();
    while !matches!(reader.message::<ToWorker>().unwrap(), ToWorker::Work { .. }) {}
    writer.message(&FromWorker::Bye).unwrap();
}

/// The program's command line for `train` with workers that play a part.
fn train(place: &Place, part: &str, args: &str) -> std::process::Command {
    with_command(place, part, &format!("--name run {args}"))
}

fn with_command(place: &Place, part: &str, args: &str) -> std::process::Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = place.command(&format!("train {args}"));
    command
        .arg("--command")
        .arg(format!("'{}' --ignored --exact --nocapture worker", exe.display()));
    command.env(PART, part).env("RANK", "3");
    command
}

fn run(place: &Place, part: &str, args: &str) -> Ended {
    Ended::new(train(place, part, args).output().unwrap())
}

#[test]
fn commands_train_the_model_that_they_offer() {
    let place = Place::new();
    let summary = run(&place, "train", "--workers 2 --rounds 8 --json").ok().json();
    assert_eq!(summary["rounds"], 8);
    assert_eq!((&summary["model"], &summary["policy"]), (&"offered".into(), &"full".into()));
    assert_eq!(summary["samples"]["used"], 8 * 2 * 8);
    let config = std::fs::read_to_string(place.path("runs/run/config.toml")).unwrap();
    for line in ["model = \"offered\"", "batch = 8", "seed = 5", "policy = \"full\""] {
        assert!(config.contains(line), "{line} in {config}");
    }
    for worker in [0, 1] {
        let log = place.path(&format!("runs/run/workers/w{worker}.log"));
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains(&format!("worker {worker} plays train")), "{log}");
    }
    assert!(place.path("runs/run/checkpoints/round-00000008").exists());
}

#[test]
fn commands_go_on_with_the_model_that_they_offered() {
    let place = Place::new();
    run(&place, "train", "--workers 2 --rounds 8").ok();
    let resume = |args: &str| {
        let args = format!("--resume run {args}");
        Ended::new(with_command(&place, "train", &args).output().unwrap())
    };
    let more = resume("--workers 1 --rounds 12 --shards 1 --json").ok().json();
    assert_eq!((&more["rounds"], &more["version"]), (&4.into(), &12.into()));
    assert_eq!(more["samples"]["used"], 8 * 2 * 8 + 4 * 8);
    resume("").failed(3, &["a worker's last words"]);
    let log = std::fs::read_to_string(place.path("runs/run/workers/w0.log")).unwrap();
    assert!(log.contains("the run run is finished: 12 rounds are done"), "{log}");
    place.run("train --resume run").failed(2, &["give --command"]);
    place.run("train --name own --rounds 2 --workers 1 --model softmax").ok();
    let own = with_command(&place, "train", "--resume own").output().unwrap();
    Ended::new(own).failed(2, &["own trains a model of this program: leave out --command"]);
}

#[test]
fn the_run_is_over_when_the_commands_have_finished() {
    let place = Place::new();
    let summary = run(&place, "finish", "--workers 2 --json").ok().json();
    assert_eq!(summary["reason"], "all workers have finished");
}

#[test]
fn a_command_that_fails_is_named_and_the_others_go_on() {
    let place = Place::new();
    let args = "--workers 2 --rounds 4 --join-grace 2s";
    let ended = run(&place, "fail:1", args);
    assert!(
        ended.stderr.contains("the command of w1 failed: exit status: 101"),
        "{}",
        ended.stderr
    );
    assert!(ended.stdout.contains("all workers have finished"), "{}", ended.stdout);
    ended.ok();
}

#[test]
fn commands_that_all_fail_are_an_error() {
    let place = Place::new();
    let ended = run(&place, "fail:all", "--workers 2");
    ended.failed(3, &["the command of w0 failed", "the command of w1 failed", "last words"]);
    let missing = place.command("train --name none --workers 1 --command no-such-program");
    let ended = Ended::new({ missing }.output().unwrap());
    ended.failed(3, &["failed to start no-such-program"]);
}

#[test]
fn a_command_is_preempted_from_outside_and_comes_back() {
    let place = Place::new();
    let args = "--workers 2 --time-limit 60s --stragglers preempt:1@3:1ms --policy static:1";
    let mut command = train(&place, "train", args);
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = common::Running(command.spawn().unwrap());
    let joined = || {
        let events = place.events("run");
        let is_back = |event: &&Event| matches!(event.kind, EventKind::WorkerJoined { worker, .. } if worker.0 == 1);
        events.iter().filter(is_back).count()
    };
    wait_until("the worker is back", || joined() == 2);
    running.signal(Signal::INT);
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    assert!(children(running.0.id()).is_empty());
}

#[test]
fn a_server_without_a_model_tells_where_it_is_and_ends_if_no_worker_comes() {
    let place = Place::new();
    let args = "server --model offered --bind 127.0.0.1:0 --address-file here --idle 10ms";
    place.run(args).failed(3, &["no worker offered a model"]);
    let file = std::fs::read_to_string(place.path("here")).unwrap();
    let (address, pid) = file.trim_end().split_once(' ').unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{file}");
    assert!(pid.parse::<u32>().is_ok(), "{file}");
}

#[test]
fn wrong_usage_is_refused_before_a_run_is_made() {
    let place = Place::new();
    place.run("train --model offered").failed(2, &["give --command"]);
    place.run("train --command x --model cnn").failed(2, &["--command", "--model"]);
    place.run("train --command '").failed(2, &["--command", "missing closing quote"]);
    place.run("train --command x --target-loss 1").failed(2, &["target-loss needs a model"]);
    place.run("train --command x --stragglers slow:1:2").failed(2, &["from outside only"]);
    assert!(!place.path("runs").exists());
}
