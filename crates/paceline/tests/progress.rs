//! Nothing wasted, live: salvage, late gradients, asynchronous rounds, progress by the noise scale.

mod common;

use common::Place;
use paceline_core::{Event, EventKind};
use serde_json::Value;

/// Runs to the end; its summary and its events.
fn train(place: &Place, name: &str, args: &str) -> (Value, Vec<Event>) {
    let ended = place.run(&format!("train --json --model softmax --name {name} {args}")).ok();
    let summary: Value = serde_json::from_str(ended.stdout.trim()).expect("a summary");
    assert_eq!(summary["ledger"]["balanced"], true, "{summary}");
    (summary, place.events(name))
}

/// Moments between each cut and its close, in seconds.
fn graces(events: &[Event]) -> Vec<f64> {
    let mut cut = None;
    let mut graces = Vec::new();
    for event in events {
        match &event.kind {
            EventKind::Cut { stragglers, .. } if !stragglers.is_empty() => cut = Some(event.at),
            EventKind::Closed { .. } => {
                graces.extend(cut.take().map(|cut| event.at.since(cut).as_secs_f64()));
            }
            _ => {}
        }
    }
    graces
}

#[test]
fn stragglers_push_what_they_have_finished_and_nobody_waits_for_the_rest() {
    let place = Place::new();
    let args = "--workers 4 --batch 32 --micro-batches 8 --policy static:2 --nominal 160ms \
                --stragglers slow:2:1.6,slow:3:1.6 --rounds 25";
    let (summary, events) = train(&place, "salvage", args);
    let salvaged = summary["samples"]["salvaged"].as_u64().unwrap();
    assert!(salvaged > 25 * 16, "{salvaged} samples of two stragglers in 25 rounds");
    let mut graces = graces(&events);
    graces.sort_by(f64::total_cmp);
    // A micro-batch of theirs takes 32 ms.
    let median = graces[graces.len() / 2];
    assert!(median < 0.03, "a round waits {median} s for what is finished");
}

#[test]
fn late_gradients_ride_along_with_the_next_round_once() {
    let place = Place::new();
    let args = "--workers 4 --policy static:3 --straggler finish --late fold --nominal 40ms \
                --stragglers slow:3:2.5 --epochs 1 --batch 64";
    let (summary, events) = train(&place, "fold", args);
    assert_eq!(summary["samples"]["dropped"], 0);
    assert_eq!(summary["samples"]["used"], 12_000);
    let shares: Vec<f64> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Arrived { share, .. } if share < 1.0 => Some(share),
            _ => None,
        })
        .collect();
    assert!(shares.len() > 5 && shares.iter().all(|&share| share <= 0.5), "{shares:?}");
    place
        .run("train --late fold --straggler abort")
        .failed(2, &["late fold needs --straggler finish"]);
}

#[test]
fn asynchronous_rounds_close_with_whoever_comes_and_nobody_is_told_to_stop() {
    let place = Place::new();
    for policy in ["async", "stale:2"] {
        let name = policy.replace(':', "-");
        let args = format!(
            "--workers 4 --policy {policy} --nominal 20ms --stragglers slow:3:4 --rounds 120"
        );
        let (_, events) = train(&place, &name, &args);
        let mut oldest = 0;
        for event in &events {
            match event.kind {
                EventKind::Arrived { round, base, .. } => oldest = oldest.max(round.0 - base.0),
                EventKind::Aborted { base, .. } => {
                    assert!(base.0 >= 100, "somebody was stopped before the end");
                }
                _ => {}
            }
        }
        match policy {
            "async" => assert!(oldest > 4, "the slow one is at most {oldest} versions behind"),
            _ => assert_eq!(oldest, 2, "the bound"),
        }
    }
}

#[test]
fn the_noise_scale_is_told_where_something_depends_on_it() {
    let place = Place::new();
    let told = |events: &[Event]| {
        let scale = |event: &Event| match event.kind {
            EventKind::Updated { noise_scale, learning_rate, .. } => {
                noise_scale.map(|scale| (scale, learning_rate))
            }
            _ => None,
        };
        events.iter().filter_map(scale).collect::<Vec<_>>()
    };
    let args = "--workers 3 --rounds 30";
    let (_, events) = train(&place, "progress", args);
    let told_of = told(&events);
    assert!(told_of.len() > 20, "{} rounds", told_of.len());
    assert!(told_of.iter().all(|&(scale, rate)| scale > 0.0 && rate > 0.0 && rate <= 0.02 + 1e-6));
    let (_, events) = train(&place, "samples", "--workers 3 --rounds 10 --objective samples");
    assert!(told(&events).is_empty(), "nobody asked");
}

#[test]
fn a_worker_of_which_nothing_is_used_is_named_and_can_be_given_less() {
    let place = Place::new();
    let args = "--workers 3 --batch 30 --nominal 15ms --stragglers slow:2:8 --policy filter \
                --rounds 140";
    let useless = |events: &[Event]| {
        events.iter().any(|event| {
            matches!(&event.kind, EventKind::Useless { worker, name, .. }
                if worker.0 == 2 && !name.is_empty())
        })
    };
    let (_, events) = train(&place, "useless", &format!("{args} --straggler abort"));
    assert!(useless(&events), "worker 2 takes eight times as long");
    let late = "--workers 3 --nominal 5ms --stragglers slow:2:30 --policy static:2 --straggler finish \
                --rounds 80";
    let (_, events) = train(&place, "late", late);
    assert!(useless(&events), "all that comes of worker 2 is late");
    let (_, events) =
        train(&place, "rebalanced", &format!("{args} --micro-batches 10 --rebalance"));
    let given = |event: &Event| match &event.kind {
        EventKind::RoundStarted { work, .. } => {
            work.iter().find(|work| work.worker.0 == 2).map(|work| work.portion.len())
        }
        _ => None,
    };
    let given: Vec<u32> = events.iter().filter_map(given).collect();
    let late = &given[given.len().saturating_sub(20)..];
    assert!(late.iter().all(|&samples| samples <= 10), "{late:?} of 30");
    place.run("train --rebalance --policy full").failed(2, &["rebalance needs", "auto or filter"]);
    let pointless = "train --objective progress --policy static:0.5";
    place.run(pointless).failed(2, &["objective progress needs", "static:0.5 does not"]);
    place.run("compare --policies full/progress").failed(2, &["objective"]);
}
