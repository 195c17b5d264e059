//! What goes over the data plane, counted round by round.

mod common;

use std::time::Duration;

use common::{PARAMS, Server, config, start};
use paceline_core::{Event, EventKind, ShardWork};
use paceline_params::Clip;
use paceline_server::{Outcome, ServerConfig};
use paceline_wire::frame::{BLOCK_HEAD_LEN, HEADER_LEN};

const WORKERS: u64 = 3;

/// A run of three workers over two shards of four blocks each: what became of it, and what every
/// shard did in every round.
fn run(config: ServerConfig) -> (Outcome, Vec<Vec<ShardWork>>) {
    let server = Server::start(config, start());
    let workers: Vec<_> = (0..WORKERS as u32).map(|wish| server.worker(wish)).collect();
    let (outcome, events) = server.join();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    let shards = |event: Event| match event.kind {
        EventKind::Updated { shards, .. } => Some(shards),
        _ => None,
    };
    (outcome.unwrap(), events.into_iter().filter_map(shards).collect())
}

#[test]
fn every_frame_of_a_round_is_counted_once() {
    let (outcome, rounds) = run(config(WORKERS as usize));
    assert_eq!(rounds.len(), 40);
    let blocks = WORKERS * (HEADER_LEN + BLOCK_HEAD_LEN) as u64;
    for (round, shards) in (0..).zip(&rounds) {
        let [first, second] = shards[..] else { panic!("{shards:?}") };
        let both = |of: fn(&ShardWork) -> u64| of(&first) + of(&second);
        // A pull and four blocks from each worker, four blocks to each.
        for shard in [first, second] {
            let counts = shard.counts;
            assert_eq!((counts.frames_in, counts.frames_out), (5 * WORKERS, 4 * WORKERS));
            assert_eq!((counts.blocks_fresh, counts.blocks_stale), (4 * WORKERS, 0));
            assert!((1..=40).contains(&counts.queue), "{}", counts.queue);
            assert!(counts.fold > Duration::ZERO);
            assert!(shard.wait > Duration::ZERO && shard.wait < common::LIMIT, "{:?}", shard.wait);
        }
        let values = WORKERS * 4 * PARAMS as u64;
        assert_eq!(both(|shard| shard.counts.bytes_out), values + 8 * blocks, "round {round}");
        let pulls = both(|shard| shard.counts.bytes_in) - values - 8 * blocks;
        // A header, the kind of message and a small number, for each worker and shard.
        assert_eq!(pulls, WORKERS * 2 * (HEADER_LEN as u64 + 2), "round {round}");
    }
    for (shard, total) in outcome.shards.iter().enumerate() {
        let mut sum = ShardWork::default();
        rounds.iter().for_each(|shards| sum += shards[shard]);
        assert_eq!(sum, *total);
    }
}

#[test]
fn counts_come_with_the_update_however_it_is_made() {
    let mut config = config(WORKERS as usize);
    config.update.clip = "norm:2".parse::<Clip>().unwrap();
    config.deterministic = true;
    let (outcome, rounds) = run(config);
    let frames = |shards: &Vec<ShardWork>| shards.iter().map(|shard| shard.counts.frames_in).sum();
    let frames: Vec<u64> = rounds.iter().map(frames).collect();
    assert_eq!(frames, [10 * WORKERS; 40]);
    assert!(outcome.shards.iter().all(|shard| shard.counts.fold > Duration::ZERO));
}
