//! What goes over the data plane, counted round by round.

mod common;

use std::time::Duration;

use common::{PARAMS, Server, config, start};
use paceline_core::{Event, EventKind, ShardWork};
use paceline_params::Clip;
use paceline_server::{Outcome, ServerConfig};
use paceline_wire::{
    Transport,
    frame::{BLOCK_HEAD_LEN, HEADER_LEN},
};

const WORKERS: u64 = 3;

fn by(transport: Transport) -> ServerConfig {
    ServerConfig { transport, ..config(WORKERS as usize) }
}

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
    let (outcome, rounds) = run(by(Transport::Tcp));
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
        // A header, the kind of message, a small number and a flag, for each worker and shard.
        assert_eq!(pulls, WORKERS * 2 * (HEADER_LEN as u64 + 3), "round {round}");
        assert_eq!(both(|shard| shard.counts.bytes_shared), 0);
    }
    for (shard, total) in outcome.shards.iter().enumerate() {
        let mut sum = ShardWork::default();
        rounds.iter().for_each(|shards| sum += shards[shard]);
        assert_eq!(sum, *total);
    }
}

#[test]
fn what_goes_by_shared_memory_is_counted_apart_whatever_the_wire_type() {
    let mut config = by(Transport::Auto);
    config.wire = "bf16".parse().unwrap();
    let (outcome, rounds) = run(config);
    assert_eq!(rounds.len(), 40);
    for (round, shards) in (0..).zip(&rounds) {
        // A gradient from each worker and parameters to each, as f32; by TCP only word of them.
        let shared = |shard: &ShardWork| shard.counts.bytes_shared;
        let shared: u64 = shards.iter().map(shared).sum();
        assert_eq!(shared, 2 * WORKERS * 4 * PARAMS as u64, "round {round}");
        for ShardWork { counts, .. } in shards {
            // Each says once that it shares memory; then a pull and a push, and one answer.
            let came = if round == 0 { 3 } else { 2 };
            assert_eq!((counts.frames_in, counts.frames_out), (came * WORKERS, WORKERS));
            assert!(counts.bytes_in.max(counts.bytes_out) < 16 * came * WORKERS, "{counts:?}");
            assert_eq!(counts.blocks_fresh, 4 * WORKERS);
            assert!(counts.fold > Duration::ZERO);
        }
    }
    assert!(outcome.ledger.balanced);
}

#[test]
fn counts_come_with_the_update_however_it_is_made() {
    let mut config = by(Transport::Tcp);
    config.update.clip = "norm:2".parse::<Clip>().unwrap();
    config.deterministic = true;
    let (outcome, rounds) = run(config);
    let frames = |shards: &Vec<ShardWork>| shards.iter().map(|shard| shard.counts.frames_in).sum();
    let frames: Vec<u64> = rounds.iter().map(frames).collect();
    assert_eq!(frames, [10 * WORKERS; 40]);
    assert!(outcome.shards.iter().all(|shard| shard.counts.fold > Duration::ZERO));
}
