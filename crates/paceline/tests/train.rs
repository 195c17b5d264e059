//! `paceline train`, as a user meets it: real processes, real files.

mod common;

use common::{Place, children};
use paceline_core::{EventKind, LeaveReason, RunTime};
use rustix::process::Signal;

#[test]
fn a_run_trains_leaves_its_record_and_says_so_in_json() {
    let place = Place::new();
    let ended = place.run("train --model mlp --policy full --rounds 20 --name first --json").ok();
    let summary = ended.json();
    assert_eq!(summary["rounds"], 20);
    assert_eq!(summary["samples"]["used"], 20 * 4 * 32);
    assert_eq!(summary["ledger"]["balanced"], true);
    for field in ["seconds", "loss", "test_accuracy", "rounds_per_s", "samples_per_s"] {
        assert!(summary[field].is_number(), "{field} in {summary}");
    }
    assert_eq!(summary["param_hash"].as_str().unwrap().len(), 16);
    assert!(ended.stderr.contains("test accuracy"), "{}", ended.stderr);
    for file in ["config.toml", "events.jsonl", "summary.json", "checkpoints/round-00000020"] {
        assert!(place.path("runs/first").join(file).exists(), "{file}");
    }
    // The log alone tells the whole story.
    let events = place.events("first");
    let count = |wanted: fn(&EventKind) -> bool| events.iter().filter(|e| wanted(&e.kind)).count();
    assert_eq!(count(|e| matches!(e, EventKind::RoundStarted { .. })), 20);
    assert_eq!(count(|e| matches!(e, EventKind::Arrived { .. })), 80);
    assert_eq!(count(|e| matches!(e, EventKind::Closed { .. })), 20);
    assert!(events.windows(2).all(|pair| pair[0].at <= pair[1].at), "time goes forward");
}

#[test]
fn settings_come_from_file_environment_and_flags_in_that_order() {
    let place = Place::new();
    place.write("run.toml", "model = \"softmax\"\nrounds = 3\nworkers = 1\nseed = 5\n");
    let mut command = place.command("train run.toml --name layered --seed 7 --json");
    let output = command.env("PACELINE_WORKERS", "2").env("PACELINE_SEED", "6").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let config = std::fs::read_to_string(place.path("runs/layered/config.toml")).unwrap();
    for line in ["model = \"softmax\"", "rounds = 3", "workers = 2", "seed = 7"] {
        assert!(config.contains(line), "{line} in {config}");
    }
}

#[test]
fn wrong_input_is_refused_with_what_and_where_and_leaves_nothing_behind() {
    let place = Place::new();
    place.write("typo.toml", "workers = 2\nshard = 3\n");
    place.run("train typo.toml").failed(2, &["typo.toml", "line 2", "shard"]);
    place.run("train missing.toml").failed(2, &["missing.toml"]);
    place.run("train --policy fastest").failed(2, &["unknown policy `fastest`"]);
    place.run("train --workers none").failed(2, &["--workers"]);
    place.run("train --quorum 9").failed(2, &["quorum must be from 1 to the number of workers"]);
    place.run("train --stragglers lazy:1").failed(2, &["slow:WORKER:FACTOR"]);
    place
        .run("train --stragglers stop:1:5s")
        .failed(2, &["stop:WORKER:EVERY:FOR", "shorter than EVERY"]);
    place.run("train --stragglers slow:7:2").failed(2, &["worker 7, but there are 4"]);
    place.run("train --stragglers shard:2:5").failed(2, &["shard 2, but there are 2"]);
    place.run("train --pull most").failed(2, &["use all, auto, or a share"]);
    place.run("train --pull auto --clip norm:1").failed(2, &["clip needs --pull all"]);
    place.run("train --pull 0.5 --policy async").failed(2, &["policy async needs --pull all"]);
    place.run("train --pull auto --max-stale 0").failed(2, &["max-stale must be at least 1"]);
    place.run("train --shards 100000").failed(2, &["shards must be from 1 to 1024"]);
    place.run("train --workers 2000").failed(2, &["2000 worker processes"]);
    place.run("train --staging-mb 0").failed(2, &["staging-mb must be from 1"]);
    place.run("train --deterministic").failed(2, &["--policy full"]);
    place
        .run("train --data nowhere")
        .failed(1, &["nowhere", "train-images-idx3-ubyte", "data_batch_1.bin"]);
    place.run("train --resume nobody").failed(1, &["there is no run nobody"]);
    place.run("train --name ../out").failed(1, &["no name for a run"]);
    assert!(!place.path("runs").exists() || place.path("runs").read_dir().unwrap().count() == 0);
}

#[test]
fn data_files_that_are_damaged_are_named_with_the_offset() {
    let place = Place::new();
    std::fs::create_dir(place.path("mnist")).unwrap();
    place.write("mnist/train-images-idx3-ubyte", "\0\0\u{8}\u{3}\0\0\0\u{1}");
    place.write("mnist/train-labels-idx1-ubyte", "\0\0\u{8}\u{1}\0\0\0\u{1}\0");
    place.run("train --data mnist").failed(1, &["train-images-idx3-ubyte", ": byte 8:"]);
}

#[test]
fn the_residual_network_trains_on_the_files_of_cifar_10() {
    let place = Place::new();
    place.write_cifar("cifar", 16);
    let args = "train --model resnet --data cifar --workers 2 --batch 8 --epochs 1 --policy full \
                --json";
    let summary = place.run(args).ok().json();
    assert_eq!(summary["ledger"]["epochs"], 1);
    assert_eq!(summary["ledger"]["balanced"], true);
    assert!(summary["test_accuracy"].as_f64().is_some(), "{summary}");
    place.write("cifar/data_batch_4.bin", "cut short");
    let args = "train --model resnet --data cifar";
    place.run(args).failed(1, &["data_batch_4.bin", ": byte 0:", "3073 bytes"]);
}

#[test]
fn halves_of_a_data_set_that_do_not_fit_each_other_are_refused() {
    let place = Place::new();
    place.write_images("halves", 28, 20);
    let parts = ["training images are 1×28×28", "test images 1×20×20"];
    place.run("train --model softmax --data halves").failed(1, &parts);
}

#[test]
fn a_killed_workers_samples_are_used_by_others_and_the_epoch_balances() {
    let place = Place::new();
    let args = "train --model mlp --policy full --epochs 1 --name killed --stragglers kill:2@5 \
                --json";
    let summary = place.run(args).ok().json();
    assert_eq!(summary["ledger"]["epochs"], 1);
    assert_eq!(summary["ledger"]["balanced"], true);
    assert_eq!(summary["ledger"]["unused"].as_array().unwrap().len(), 0);
    assert_eq!(summary["samples"]["requeued"], 32);
    let left = place.events("killed").into_iter().find_map(|event| match event.kind {
        EventKind::WorkerLeft { worker, why: LeaveReason::Disconnected } => Some(worker.0),
        _ => None,
    });
    assert_eq!(left, Some(2));
}

#[test]
fn losing_the_quorum_is_a_clear_error_and_the_run_can_be_resumed() {
    let place = Place::new();
    let args = "train --model mlp --workers 2 --quorum 2 --quorum-grace 300ms --epochs 1 \
                --name quorum --stragglers kill:1@7";
    place.run(args).failed(3, &["quorum lost", "1 live workers, 2 needed"]);
    let args = "train --resume quorum --json --workers 3 --shards 1 --stragglers slow:0:1";
    let summary = place.run(args).ok().json();
    assert_eq!(summary["ledger"]["epochs"], 1);
    assert_eq!(summary["ledger"]["balanced"], true);
    assert!(summary["version"].as_u64() > summary["rounds"].as_u64(), "{summary}");
}

#[test]
fn ctrl_c_writes_a_checkpoint_and_resuming_gives_the_bits_of_an_undisturbed_run() {
    let place = Place::new();
    let settings = "--model mlp --policy full --deterministic --workers 2 --optimizer adamw --lr \
                    0.001 --rounds 60";
    let whole = place.run(&format!("train --name whole {settings} --json")).ok().json();
    // Slowed, so that it is interrupted in the middle; slowness does not change the bits.
    let cut = place.start(&format!("train --name cut {settings} --nominal 50ms"));
    place.wait_for("cut", |e| matches!(e, EventKind::Updated { round, .. } if round.0 == 5));
    cut.signal(Signal::INT);
    let ended = cut.wait().failed(130, &["stopping"]);
    assert!(ended.stdout.contains("interrupted"), "{}", ended.stdout);
    assert!(place.events("cut").len() > 5);
    let resumed = place.run("train --resume cut --json --nominal 0").ok().json();
    assert!(resumed["rounds"].as_u64().unwrap() < 60);
    assert_eq!(resumed["param_hash"], whole["param_hash"]);
    assert_eq!(resumed["samples"]["used"], whole["samples"]["used"]);
    let events = place.events("cut");
    assert!(events.windows(2).all(|pair| pair[0].at <= pair[1].at), "time goes forward");
}

#[test]
fn a_run_that_diverges_says_what_to_do_and_resumes_from_what_was_good() {
    let place = Place::new();
    let args = "train --model mlp --workers 2 --rounds 5 --checkpoint-every 1 --name wild";
    place.run(args).ok();
    let wild = place.run("train --resume wild --rounds 500 --lr 1e30");
    wild.failed(1, &["training diverged", "lower the learning rate"]);
    let tame = place.run("train --resume wild --rounds 12 --lr 0.01 --json").ok().json();
    assert_eq!(tame["version"], 12);
    assert!(tame["test_loss"].is_number() && tame["loss"].is_number(), "{tame}");
}

#[test]
fn a_damaged_newest_checkpoint_is_named_and_survives_a_resume_from_the_older_one() {
    let place = Place::new();
    place.run("train --model softmax --rounds 6 --checkpoint-every 3 --name worn").ok();
    let checkpoints = place.path("runs/worn/checkpoints");
    let params = checkpoints.join("round-00000006/params.safetensors");
    let mut bytes = std::fs::read(&params).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&params, bytes).unwrap();

    let resumed = place.run("train --resume worn --rounds 9 --json").ok();
    assert_eq!(resumed.json()["version"], 9);
    let warning = resumed.stderr.lines().find(|line| line.contains("damaged")).unwrap();
    let damage = "round-00000006/params.safetensors: checksum";
    for part in ["warning: the checkpoint", damage, "resumes from the older", "round-00000003"] {
        assert!(warning.contains(part), "{part} in {warning}");
    }
    let mut left: Vec<String> = std::fs::read_dir(&checkpoints)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["round-00000006", "round-00000006.damaged", "round-00000009"]);
}

#[test]
fn flags_on_a_resume_are_checked_against_the_run_and_not_the_defaults() {
    let place = Place::new();
    place.run("train --model softmax --workers 6 --rounds 3 --name six").ok();
    let args = "train --resume six --quorum 5 --rounds 5 --json";
    assert_eq!(place.run(args).ok().json()["version"], 5);
    place.run("train --resume six --quorum 7 --rounds 9").failed(2, &["workers (6), not 7"]);
}

#[test]
fn a_finished_run_is_left_as_it_is_and_says_what_would_extend_it() {
    let place = Place::new();
    place.run("train --model softmax --workers 2 --rounds 6 --name done").ok();
    let summary = || std::fs::read_to_string(place.path("runs/done/summary.json")).unwrap();
    let before = summary();
    place.run("train --resume done").failed(2, &["done is finished", "6 rounds", "--rounds"]);
    assert_eq!(summary(), before);
    let longer = place.run("train --resume done --epochs 1 --batch 600 --json").ok().json();
    assert_eq!(longer["ledger"]["epochs"], 1);
    place.run("train --resume done").failed(2, &["1 epochs", "--epochs"]);
}

#[test]
fn a_run_can_be_repeated_from_its_config() {
    let place = Place::new();
    let first = "train --model softmax --workers 2 --batch 3000 --policy full --deterministic \
                 --name first --json";
    let first = place.run(first).ok().json();
    let again = place.run("train runs/first/config.toml --json").ok().json();
    assert_ne!(again["name"], first["name"]);
    assert_eq!(again["param_hash"], first["param_hash"]);
    let config = std::fs::read_to_string(place.path("runs/first/config.toml")).unwrap();
    assert!(config.contains("epochs = 5"), "{config}");
}

#[test]
fn a_run_goes_on_and_is_recorded_when_nobody_reads_what_it_says() {
    let place = Place::new();
    let mut run = place.start("train --model softmax --workers 2 --rounds 6 --name unheard");
    drop(run.0.stderr.take());
    drop(run.0.stdout.take());
    run.wait().ok();
    assert!(place.path("runs/unheard/summary.json").is_file());
    let stopped = place.events("unheard").pop().map(|event| event.kind);
    assert!(matches!(stopped, Some(EventKind::Stopped { .. })), "{stopped:?}");
}

#[test]
fn a_closed_terminal_stops_a_run_in_order() {
    let place = Place::new();
    let args = "train --model softmax --workers 2 --epochs 100 --nominal 20ms --name hung-up";
    let run = place.start(args);
    place.wait_for("hung-up", |e| matches!(e, EventKind::Updated { .. }));
    run.signal(Signal::HUP);
    run.wait().failed(130, &["stopping"]);
    assert!(place.path("runs/hung-up/summary.json").is_file());
    place.run("train --resume hung-up --rounds 20 --epochs 1 --nominal 0 --json").ok();
}

#[test]
fn a_run_whose_workers_all_fail_says_why_at_once() {
    let place = Place::new();
    let args = "train --model mlp --workers 2 --name orphaned --stragglers kill:0@3,kill:1@3";
    place.run(args).failed(3, &["quorum lost", "0 live workers"]);
}

#[test]
fn a_straggler_is_cut_and_its_run_time_is_censored() {
    let place = Place::new();
    let args = "train --model softmax --name slow --policy static:3 --stragglers slow:1:20 \
                --nominal 20ms --rounds 15 --json";
    let summary = place.run(args).ok().json();
    assert_eq!(summary["ledger"]["balanced"], true);
    assert!(summary["samples"]["requeued"].as_u64().unwrap() > 0);
    let events = place.events("slow");
    let censored = events.iter().any(|event| match &event.kind {
        EventKind::Closed { run_times, .. } => run_times
            .iter()
            .any(|(worker, time)| worker.0 == 1 && matches!(time, RunTime::Censored { .. })),
        _ => false,
    });
    assert!(censored);
}

#[test]
fn a_count_of_workers_that_there_are_not_is_said_once() {
    let place = Place::new();
    let ended = place.run("train --model softmax --workers 2 --policy static:3 --rounds 3").ok();
    assert_eq!(ended.stderr.matches("more workers than there are (2)").count(), 1);
}

/// Busy loops that the process `parent` has started and that are still there.
fn hogs(parent: u32) -> usize {
    children(parent).iter().filter(|(_, line)| line.contains(" hog ")).count()
}

#[test]
fn a_busy_loop_beside_a_worker_lives_as_long_as_the_run() {
    let place = Place::new();
    let args = "train --model softmax --workers 2 --epochs 100 --nominal 20ms --name busy \
                --stragglers hog:0,stalls:2";
    let run = place.start(args);
    let parent = run.0.id();
    place.wait_for("busy", |e| matches!(e, EventKind::Updated { .. }));
    assert_eq!(hogs(parent), 1);
    run.signal(Signal::TERM);
    run.wait().failed(130, &["stopping"]);
    assert_eq!(hogs(parent), 0);
}

#[test]
fn schedule_scaling_and_clipping_are_what_the_flags_say() {
    let place = Place::new();
    let run = |name: &str, flags: &str| -> (Vec<f32>, String) {
        let args = format!(
            "train --model softmax --workers 2 --batch 8 --rounds 4 --policy full --deterministic \
             --optimizer sgd --lr 0.08 --name {name} {flags} --json"
        );
        let hash = place.run(&args).ok().json()["param_hash"].to_string();
        let rate = |kind| match kind {
            EventKind::Updated { learning_rate, .. } => Some(learning_rate),
            _ => None,
        };
        (place.events(name).into_iter().filter_map(|event| rate(event.kind)).collect(), hash)
    };
    let (rates, plain) = run("plain", "");
    assert_eq!(rates, [0.08; 4]);
    assert_eq!(run("step", "--schedule step:2:0.5").0, [0.08, 0.08, 0.04, 0.04]);
    // 16 samples a round, four times the reference.
    assert_eq!(run("linear", "--lr-scaling linear --reference-weight 4").0, [0.32; 4]);
    assert_eq!(run("sqrt", "--lr-scaling sqrt --reference-weight 4").0, [0.16; 4]);
    assert_eq!(run("none", "--lr-scaling none --reference-weight 4").0, [0.08; 4]);
    assert_eq!(run("wide", "--clip norm:1e9").1, plain, "a bound that is never met");
    assert_ne!(run("tight", "--clip norm:0.01").1, plain);
}

#[test]
fn a_straggler_that_is_to_finish_does_and_its_run_time_is_known() {
    let place = Place::new();
    let args = "train --model softmax --workers 2 --policy static:1 --straggler finish --rounds 40 \
                --nominal 10ms --stragglers slow:1:10 --name finish";
    place.run(args).ok();
    let (mut late, mut aborted) = (Vec::new(), 0);
    for event in place.events("finish") {
        match event.kind {
            EventKind::Late { worker, run_time: RunTime::Observed(time), .. } => {
                late.push((worker.0, time.as_millis() >= 100));
            }
            EventKind::Aborted { .. } => aborted += 1,
            _ => {}
        }
    }
    assert!(!late.is_empty() && late.iter().all(|late| *late == (1, true)), "{late:?}");
    assert_eq!(aborted, 0);
}

#[test]
fn as_many_checkpoints_stay_as_are_to_be_kept() {
    let place = Place::new();
    for keep in [1, 3] {
        let args = format!(
            "train --model softmax --workers 1 --batch 8 --rounds 10 --nominal 30ms \
             --checkpoint-every 1 --keep-checkpoints {keep} --name keep-{keep}"
        );
        place.run(&args).ok();
        let kept = place.path(&format!("runs/keep-{keep}/checkpoints")).read_dir().unwrap();
        assert_eq!(kept.count(), keep);
    }
}

#[test]
fn a_run_stops_at_its_time_or_its_accuracy() {
    let place = Place::new();
    let timed = place.run("train --model softmax --time-limit 1s --workers 2").ok();
    assert!(timed.stdout.contains("time limit reached"), "{}", timed.stdout);
    let args = "train --model mlp --target-accuracy 0.2 --eval-every 10 --workers 2";
    let reached = place.run(args).ok();
    assert!(reached.stdout.contains("target accuracy reached"), "{}", reached.stdout);
    let args = "train --model mlp --target-loss 2.2 --eval-every 10 --workers 2 --name loss";
    let reached = place.run(args).ok();
    assert!(reached.stdout.contains("target loss reached"), "{}", reached.stdout);
    let again = place.run("train --resume loss");
    again.failed(2, &["loss is finished", "test loss is reached", "smaller --target-loss"]);
    place.run("train --target-loss 0").failed(2, &["target-loss must be a positive number"]);
}

/// Two samples in a batch of which one, in a random order, is at times ten times as dear.
#[test]
fn batches_are_balanced_by_what_samples_cost_and_a_resume_keeps_the_order() {
    let place = Place::new();
    let costs: String = (0..12_000).map(|i| if i % 2 == 0 { "10\n" } else { "1\n" }).collect();
    place.write("lengths.txt", &costs);
    let rounds = "train --model softmax --policy full --workers 2 --batch 2 --micro-batches 1 \
                  --costs lengths.txt --nominal 20ms --rounds 40 --json";
    let seconds = |extra: &str| {
        let summary = place.run(&format!("{rounds} {extra}")).ok().json();
        assert_eq!(summary["ledger"]["balanced"], true);
        summary["seconds"].as_f64().unwrap()
    };
    let (balanced, shuffled) = (seconds("--name even"), seconds("--balance false"));
    // 20 ms a round, or 36 where both samples are dear, which is so in nearly half of the rounds.
    assert!(balanced < 0.9 * shuffled, "{balanced} s balanced, {shuffled} s shuffled");
    // Cut at the first, updates rather have the cheap ones, and the summary says so.
    let bias = |extra: &str| {
        let args = rounds.replace("--policy full", extra);
        let summary = place.run(&format!("{args} --balance false")).ok().json();
        summary["cost_bias"].as_f64().expect("costs are known")
    };
    assert!(bias("--policy full").abs() < 1e-9);
    let cut = bias("--policy static:1 --straggler abort");
    assert!(cut < -0.05, "samples in updates cost {cut:+} more than those handed out");
    let resume = "train --resume even --rounds 45";
    place.run(&format!("{resume} --batch 4")).failed(1, &["balance of batches", "batches of 4"]);
    place.run(resume).ok();
    let other: String = (0..12_000).map(|i| if i % 2 == 1 { "10\n" } else { "1\n" }).collect();
    place.write("lengths.txt", &other);
    place.run("train --resume even --rounds 50").failed(1, &["balance of batches", "the costs"]);
    place.write("lengths.txt", "1\n2\n");
    place.run(rounds).failed(1, &["lengths.txt: 2 costs for", "samples"]);
}
