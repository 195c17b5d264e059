//! Runs whose gradients and parameters travel as halves.

mod common;

use common::{
    PARAMS, Quadratic, Server, attacked, config, endless, names, rogue::Rogue, start,
    wait_for_rounds,
};
use paceline_core::{Event, EventKind, ShardCounts, StopReason, Version};
use paceline_params::{Half, ParamHash, WireType};
use paceline_server::ServerConfig;
use paceline_wire::{
    Transport,
    frame::{BLOCK_HEAD_LEN, BlockHead, HEADER_LEN},
};
use paceline_worker::Compute;

const BF16: WireType = WireType::Half(Half::Bf16);
const F16: WireType = WireType::Half(Half::F16);

/// Pulls every parameter towards a place of its own, which no half is.
struct Spread(Vec<f32>);

impl Compute for Spread {
    fn load(&mut self, _: usize, params: &[f32]) {
        self.0 = params.to_vec();
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        let n = samples.len() as f32;
        for (i, (g, p)) in gradient.iter_mut().zip(&self.0).enumerate() {
            *g += n * (p - (i as f32 * 0.37).sin());
        }
        f64::from(n)
    }
}

fn exact(wire: WireType, shards: u32) -> ServerConfig {
    let mut config = config(3);
    config.deterministic = true;
    config.wire = wire;
    config.transport = Transport::Tcp;
    config.placement.shards = shards;
    config
}

/// The hash after every round, and what went over the data plane in each.
fn run(config: ServerConfig) -> Vec<(String, ShardCounts)> {
    let server = Server::start(config, start());
    let workers: Vec<_> =
        (0..3).map(|wish| server.worker_with(wish, "", || Box::new(Spread(Vec::new())))).collect();
    let (outcome, events) = server.join();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    assert_eq!(outcome.unwrap().reason, StopReason::Rounds);
    let round = |event: Event| match event.kind {
        EventKind::Updated { param_hash, shards, .. } => {
            let mut total = ShardCounts::default();
            shards.iter().for_each(|shard| total += shard.counts);
            Some((param_hash?, total))
        }
        _ => None,
    };
    events.into_iter().filter_map(round).collect()
}

fn hashes(rounds: &[(String, ShardCounts)]) -> Vec<&str> {
    rounds.iter().map(|(hash, _)| hash.as_str()).collect()
}

#[test]
fn exact_mode_gives_the_same_bits_on_any_number_of_shards_whatever_the_wire_type() {
    let mut seen: Vec<String> = Vec::new();
    for wire in WireType::ALL {
        let (two, three) = (run(exact(wire, 2)), run(exact(wire, 3)));
        assert_eq!(hashes(&two).len(), 40);
        assert_eq!(hashes(&two), hashes(&three), "{wire}");
        let last = two.into_iter().last().unwrap().0;
        assert!(last.parse::<ParamHash>().is_ok() && !seen.contains(&last), "{wire}: {last}");
        seen.push(last);
    }
}

#[test]
fn halves_take_half_the_bytes_of_every_round_in_as_many_frames() {
    let whole = run(exact(WireType::F32, 2));
    // For each of 3 workers: headers of 8 blocks each way; and the values of all.
    let heads = 3 * 8 * (HEADER_LEN + BLOCK_HEAD_LEN) as u64;
    let pulls = 3 * 2 * (HEADER_LEN as u64 + 3);
    let values = |wire: WireType| (3 * PARAMS * wire.size()) as u64;
    for wire in WireType::ALL {
        let rounds = run(exact(wire, 2));
        assert_eq!(rounds.len(), whole.len());
        for ((_, counts), (_, whole)) in rounds.iter().zip(&whole) {
            assert_eq!(counts.bytes_out, heads + values(wire), "{wire}");
            assert_eq!(counts.bytes_in, heads + pulls + values(wire), "{wire}");
            assert_eq!((counts.frames_in, counts.frames_out), (whole.frames_in, whole.frames_out));
        }
    }
    assert_eq!(2 * values(BF16), values(WireType::F32));
}

#[test]
fn training_goes_on_in_f32_below_the_precision_of_halves() {
    // Steps of a thousandth would be lost on a bf16 near 2, whose neighbours are 1/128 apart.
    let mut config = config(2);
    config.wire = BF16;
    config.transport = Transport::Tcp;
    config.update.learning_rate = 1e-3;
    config.limits.rounds = Some(60);
    let (say, measured) = std::sync::mpsc::channel();
    let evaluator = Box::new(move |params: &[f32]| {
        say.send(params[0]).unwrap();
        paceline_server::Evaluation { loss: 0.0, accuracy: 0.0 }
    });
    let mut start = start();
    start.params = vec![2.0; PARAMS].into();
    let server = Server::start_with(config, start, Some(evaluator));
    let workers = [server.worker(0), server.worker(1)];
    server.join().0.unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    let last = measured.iter().last().unwrap();
    let expected = 1.0 + 0.999f32.powi(60);
    assert!((last - expected).abs() < 1e-3, "{last} against {expected}");
}

/// A worker that was let in sends this to the first shard.
fn sends(server: &Server, wire: WireType, values: usize, error: &str) {
    let mut rogue = Rogue::join(server.address);
    let (base, _) = rogue.ready();
    let head = BlockHead { key: rogue.id(base).0, block: 0 };
    rogue.data[0].send(&head.encode(wire, values));
    rogue.data[0].send(&vec![0; values * wire.size()]);
    server.wait_for(|event| names(event, error));
    rogue.ends();
}

#[test]
fn bytes_of_another_type_or_length_cost_their_connection_and_no_other() {
    let mut config = endless();
    config.wire = BF16;
    config.transport = Transport::Tcp;
    attacked_halves(config, |server| {
        sends(server, WireType::F32, 128, "block 0 came as f32, this run's wire type is bf16");
        sends(server, F16, 128, "block 0 came as f16, this run's wire type is bf16");
        sends(server, BF16, 127, "block 0 has 127 values, expected 125");
        sends(server, BF16, 256, "block 0 has 256 values, expected 125");
        let mut rogue = Rogue::join(server.address);
        rogue.ready();
        rogue.data[1].send(&[3, 0, 0, 0, 19, 0, 0, 0]);
        let error = "19 bytes is not a head and whole bf16 values";
        server.wait_for(|event| names(event, error));
        rogue.ends();
    });
    attacked(endless(), |server| {
        sends(server, BF16, 128, "block 0 came as bf16, this run's wire type is f32");
    });
}

/// As [`attacked`], where the descent is too coarse to be checked.
fn attacked_halves(config: ServerConfig, attack: impl FnOnce(&Server)) {
    let mut server = Server::start(config, start());
    let honest = [server.worker(0), server.worker(1)];
    wait_for_rounds(&server, 1);
    attack(&server);
    wait_for_rounds(&server, 2);
    server.interrupt();
    let outcome = server.join().0.unwrap();
    for worker in honest {
        worker.join().unwrap().unwrap();
    }
    assert_eq!(outcome.reason, StopReason::Interrupted);
    assert!(outcome.ledger.balanced);
}

/// Pulls towards 1, but has one element of its gradient beyond `f16` from some round on.
struct Steep(Quadratic, u32);

impl Compute for Steep {
    fn load(&mut self, at: usize, params: &[f32]) {
        self.0.load(at, params);
        self.1 += 1;
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        let loss = self.0.gradient(samples, gradient);
        if self.1 > 3 {
            gradient[507] = 7e4;
        }
        loss
    }
}

#[test]
fn a_gradient_beyond_f16_is_refused_by_name_and_never_added() {
    let steep = |wire, reason: fn(&StopReason) -> bool| {
        let mut config = config(1);
        config.wire = wire;
        config.transport = Transport::Tcp;
        let server = Server::start(config, start());
        let worker = server.worker_with(0, "", || Box::new(Steep(Quadratic::new(), 0)));
        let (outcome, events) = server.join();
        let (outcome, worker) = (outcome.unwrap(), worker.join().unwrap());
        assert!(reason(&outcome.reason), "{wire}: {:?}", outcome.reason);
        (worker.map_err(|error| error.to_string()), outcome.version, events)
    };
    let (worker, version, events) =
        steep(F16, |reason| matches!(reason, StopReason::Diverged(Version(3))));
    let error = "gradient of b in c3 is not finite at element 7 as f16, which ends at 65504; use \
                 --wire bf16";
    assert_eq!(version, Version(3), "nothing of it is in the parameters");
    assert!(events.iter().any(|event| names(&event.kind, error)));
    let said = worker.unwrap_err();
    assert!(said.contains(error), "{said}");
    // In the other types it is a number like any other.
    for wire in [WireType::F32, BF16] {
        steep(wire, |reason| *reason == StopReason::Rounds).0.unwrap();
    }
}
