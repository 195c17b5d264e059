//! Workers that hang: they compute for ever while their heartbeats go on. No run stands still for them.

mod common;

use common::Place;
use paceline_core::EventKind;
use serde_json::Value;

/// Slower than any test: a worker that hangs.
fn hung(workers: impl IntoIterator<Item = u32>) -> String {
    let each = workers.into_iter().map(|worker| format!("slow:{worker}:1000000"));
    each.collect::<Vec<_>>().join(",")
}

/// Runs to the end, which must be what the run is about and not its time limit.
#[track_caller]
fn completes(place: &Place, args: &str, reason: &str) -> Value {
    let ended = place.run(&format!("train --model softmax --time-limit 90s --json {args}")).ok();
    let summary = ended.json();
    assert!(summary["reason"].as_str().unwrap().contains(reason), "{summary}");
    assert_eq!(summary["ledger"]["balanced"], true, "{summary}");
    summary
}

#[test]
fn samples_that_come_back_again_and_again_do_not_end_with_a_hung_newcomer() {
    let place = Place::new();
    for policy in ["static:2", "auto"] {
        let stragglers = format!("{},preempt:9@30:500ms", hung(2..10));
        let args = format!(
            "--workers 10 --policy {policy} --nominal 10ms --rounds 150 --stragglers {stragglers}"
        );
        completes(&place, &args, "all rounds");
    }
}

#[test]
fn the_first_round_closes_though_all_workers_but_one_hang() {
    let place = Place::new();
    let args =
        format!("--workers 5 --policy auto --nominal 20ms --rounds 20 --stragglers {}", hung(1..5));
    completes(&place, &args, "all rounds");
}

#[test]
fn a_hung_worker_that_keeps_its_samples_does_not_keep_the_run_from_its_last_epoch() {
    let place = Place::new();
    // With bounded staleness the bound may take the samples from the hung worker before that.
    let modes = [
        ("finish", "--straggler finish", true),
        ("async", "--policy async", true),
        ("stale", "--policy stale:4", false),
    ];
    for (name, mode, has_second_holder) in modes {
        let args = format!(
            "--name {name} --workers 3 --batch 256 --epochs 2 {mode} --stragglers {}",
            hung([1])
        );
        let summary = completes(&place, &args, "all epochs");
        assert_eq!(summary["ledger"]["epochs"], 2);
        assert_eq!(summary["ledger"]["unused"].as_array().unwrap().len(), 0);
        let samples = summary["samples"]["used"].as_u64().unwrap();
        let events = place.events(name);
        let superseded = |e: &&paceline_core::Event| matches!(e.kind, EventKind::Superseded { .. });
        let is_superseded = events.iter().any(|event| superseded(&event));
        assert!(is_superseded || !has_second_holder, "{name}: another worker was sooner");
        let used: f64 = events
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Arrived { weight, .. } => Some(weight),
                _ => None,
            })
            .sum();
        assert_eq!(used, samples as f64, "every sample is used once");
    }
}
