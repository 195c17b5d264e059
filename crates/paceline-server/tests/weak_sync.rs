//! Slow shards: rounds go on without them, within a bound.

mod common;

use std::time::{Duration, Instant};

use common::{Server, config, start, wait_for_rounds};
use paceline_core::{Event, EventKind};
use paceline_faults::FaultPlan;
use paceline_server::{Evaluation, Outcome, ServerConfig};

/// Puts four shards, whose updates are padded to 4 ms, through `faults`.
fn slow(config: &mut ServerConfig, faults: &str) {
    let plan: FaultPlan = faults.parse().unwrap();
    let nominal = Some(Duration::from_millis(4));
    let faults = |shard| Some((shard, plan.shard(shard, nominal)?));
    config.shard_faults = (0..4).filter_map(faults).collect();
}

/// Four shards of two blocks each, of which one takes 100 ms for an update and the others 4.
fn weak(pull: &str, max_stale: u64, rounds: u64) -> ServerConfig {
    let mut config = config(2);
    config.placement.shards = 4;
    config.weak.pull = pull.parse().unwrap();
    config.weak.max_stale = max_stale;
    slow(&mut config, "shard:1:25");
    config.limits.rounds = Some(rounds);
    config
}

/// What came of it; the rounds that shard 1 had a part in; and how often it was waited for.
fn run(config: ServerConfig, late: bool) -> (Outcome, Vec<u64>, usize) {
    // The greatest distance of any parameter to where all are pulled.
    let distance = |params: &[f32]| params.iter().map(|x| (x - 1.0).abs()).fold(0.0, f32::max);
    let judge = Box::new(move |params: &[f32]| Evaluation {
        loss: f64::from(distance(params)),
        accuracy: 0.0,
    });
    let server = Server::start_with(config, start(), Some(judge));
    let mut workers = vec![server.worker(0), server.worker(1)];
    if late {
        wait_for_rounds(&server, 10);
        workers.push(server.worker(2));
    }
    let (outcome, events) = server.join();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    let part = |event: &Event| match &event.kind {
        EventKind::Updated { version, shards, .. } => {
            (shards[1].wait > Duration::ZERO).then_some(version.0)
        }
        _ => None,
    };
    let awaited = |event: &&Event| matches!(event.kind, EventKind::ShardAwaited { .. });
    let waited = events.iter().filter(awaited).count();
    (outcome.unwrap(), events.iter().filter_map(part).collect(), waited)
}

#[test]
fn rounds_do_not_wait_for_a_shard_that_is_slower_than_asked_for() {
    let (outcome, parts, waited) = run(weak("0.75", 1_000, 60), true);
    assert!(outcome.ledger.balanced);
    assert_eq!((outcome.version.0, waited), (60, 0));
    let stale: Vec<u64> = outcome.shards.iter().map(|shard| shard.counts.blocks_stale).collect();
    // Of the others one may come last now and then.
    assert!(stale[1] >= 2 * 2 * 40 && stale[0] < stale[1] / 4, "{stale:?}");
    // All rounds with it would take six seconds.
    assert!(parts.len() < 20, "{parts:?}");
    // What it did for updates that did not wait for it is counted, too.
    let slow = outcome.shards[1];
    let fold = slow.counts.fold;
    assert!(slow.wait >= Duration::from_millis(100) && !fold.is_zero(), "{slow:?}");
    let distance = outcome.evaluation.expect("it is measured at the end").loss;
    assert!(distance < 0.9, "every block has come nearer: {distance}");
}

#[test]
fn a_shard_is_waited_for_once_it_has_missed_as_many_updates_as_it_may() {
    let (outcome, _, waited) = run(weak("0.75", 3, 24), false);
    assert!(outcome.ledger.balanced);
    // It answers in 100 ms, in which there could be more than three rounds.
    assert!((3..=8).contains(&waited), "{waited}");
}

#[test]
fn the_learned_rule_finds_out_whom_not_to_wait_for() {
    let (outcome, parts, _) = run(weak("auto", 1_000, 80), false);
    assert!(outcome.ledger.balanced);
    let later = parts.iter().filter(|&&version| version > 40).count();
    assert!(later < 15, "{parts:?}");
}

#[test]
fn all_shards_are_waited_for_unless_something_else_is_asked() {
    let (outcome, _, waited) = run(weak("all", 0, 5), false);
    assert!(outcome.ledger.balanced);
    assert_eq!(waited, 0);
    assert!(outcome.shards.iter().all(|shard| shard.counts.blocks_missed == 0));
}

/// Four shards, of which one has a link that takes 50 ms for its part of the parameters.
fn narrow(rule: &str, max_stale: u64, rounds: u64) -> ServerConfig {
    let mut config = weak(rule, max_stale, rounds);
    config.weak.push = config.weak.pull;
    slow(&mut config, "shard-link:1:160kbit");
    config
}

#[test]
fn rounds_do_not_wait_for_a_link_that_is_slower_than_asked_for() {
    let began = Instant::now();
    let (outcome, _, waited) = run(narrow("0.75", 1_000, 60), false);
    assert!(outcome.ledger.balanced);
    assert_eq!((outcome.version.0, waited), (60, 0));
    let stale: Vec<u64> = outcome.shards.iter().map(|shard| shard.counts.blocks_stale).collect();
    assert!(stale[1] >= 2 * 2 * 40 && stale[0] < stale[1] / 4, "{stale:?}");
    let missed: Vec<u64> = outcome.shards.iter().map(|shard| shard.counts.blocks_missed).collect();
    assert!(missed[1] >= 2 * 2 * 40 && missed[0] < missed[1] / 4, "{missed:?}");
    // With all of every round through that link it would be twelve seconds.
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn what_a_narrow_link_carries_is_waited_for_at_the_bound() {
    let (outcome, _, waited) = run(narrow("0.75", 3, 24), false);
    assert!(outcome.ledger.balanced);
    assert!((3..=24).contains(&waited), "{waited}");
    let parts: Vec<Duration> = outcome.shards.iter().map(|shard| shard.parts).collect();
    // Its part takes 50 ms, each time that it is waited for.
    assert!(parts[1] >= Duration::from_millis(150) && parts[0] < parts[1] / 2, "{parts:?}");
    let distance = outcome.evaluation.expect("it is measured at the end").loss;
    assert!(distance < 0.95, "its blocks were updated, too: {distance}");
}

#[test]
fn the_learned_rules_find_out_which_link_not_to_wait_for() {
    let began = Instant::now();
    let (outcome, _, _) = run(narrow("auto", 1_000, 60), false);
    assert!(outcome.ledger.balanced);
    let stale: Vec<u64> = outcome.shards.iter().map(|shard| shard.counts.blocks_stale).collect();
    assert!(stale[1] >= 2 * 2 * 20 && stale[0] < stale[1] / 2, "{stale:?}");
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
}

#[test]
fn shared_memory_does_not_bypass_a_slow_link() {
    let shared = |faults: &str| -> Vec<bool> {
        let mut config = weak("all", 0, 3);
        slow(&mut config, faults);
        let (outcome, _, _) = run(config, false);
        outcome.shards.iter().map(|shard| shard.counts.bytes_shared > 0).collect()
    };
    assert_eq!(shared("shard:1:2"), [true; 4]);
    assert_eq!(shared("shard-link:1:10mbit"), [false; 4]);
}

#[test]
fn a_shard_that_stands_still_is_left_behind_and_comes_back() {
    let mut config = weak("auto", 1_000, 150);
    slow(&mut config, "shard-stop:1:600ms:400ms");
    let (outcome, parts, _) = run(config, false);
    assert!(outcome.ledger.balanced);
    // It is missing for spells, and there in between.
    let gaps = parts.windows(2).filter(|pair| pair[1] > pair[0] + 5).count();
    assert!(parts.len() > 20 && gaps > 0, "{parts:?}");
}

#[test]
fn a_shard_in_a_process_of_its_own_is_not_given_faults_here() {
    let mut config = weak("all", 0, 1);
    assert!(config.check().is_ok());
    config.placement.remote = true;
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("a shard in a process of its own"), "{error}");
}

#[test]
fn what_is_under_way_at_a_close_holds_up_nothing_later() {
    for (pull, push) in [("auto", "all"), ("all", "auto"), ("auto", "auto"), ("0.5", "0.5")] {
        let mut config = config(3);
        config.placement.shards = 4;
        (config.weak.pull, config.weak.push) = (pull.parse().unwrap(), push.parse().unwrap());
        config.weak.max_stale = 8;
        // Somebody is always on the way when a round closes.
        config.policy = "static:2".parse().unwrap();
        config.limits.rounds = Some(400);
        let server = Server::start(config, start());
        let workers = [0, 1, 2].map(|worker| server.worker(worker));
        let (outcome, events) = server.join();
        let outcome = outcome.unwrap();
        assert_eq!((outcome.version.0, outcome.ledger.balanced), (400, true), "{pull} {push}");
        for worker in workers {
            worker.join().unwrap().unwrap();
        }
        let mut last = [0; 3];
        for event in &events {
            if let EventKind::Arrived { round, worker, .. } = &event.kind {
                last[worker.0 as usize] = round.0;
            }
        }
        assert!(last.iter().all(|&round| round > 200), "{pull} {push}: last heard {last:?}");
    }
}
