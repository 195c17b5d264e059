//! The floor of `auto`: on long random clusters, and on clusters made to deceive it, it does not fall behind full
//! sync by more than the theorem in `paceline-policy/src/floor.rs` says, measured against the true run-times.

use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay};
use paceline_trace::{RandomClusters, Trace, generate};
use rayon::prelude::*;

/// The theorem's constants: the floor begins after so many full rounds' gain; C + 1; α; δ.
const FROM: f64 = 2000.0;
const CREDIT: f64 = 6.0;
const ALPHA: f64 = 0.02;
const DOUBT: f64 = 0.1;
const ROUNDS: usize = 3500;
/// Workers of random clusters, at most, so that the test takes a minute.
const WORKERS: usize = 8;
/// Full rounds that full sync's luck may add where rounds are not exchangeable.
const LUCK: f64 = 2.0;
const SEED: u64 = 60_060;
const CLUSTERS: u64 = 30;

/// Made to deceive: few workers, a fast minority that changes, rounds that slow down or speed up, two modes.
const DECEIVING: [&str; 8] = [
    "n=2,unit=0.25,spread=0.005,roving=0.03,roving-factor=0.25",
    "n=7,unit=1.3,spread=0.008,skew=-0.1,roving=0.023,roving-factor=0.29,common=0.19,common-memory=0.97,trend=2.5",
    "n=3,unit=0.3,spread=0.005,shift=0.21,shift-factor=0.25,at=271,every=325,trend=1.28",
    "n=8,unit=10,spread=0.005,roving=0.02,roving-factor=0.22,common=0.21,common-memory=0.5,trend=2.5",
    "n=3,unit=0.5,spread=0.01,uniform=0.72,common=0.14,common-memory=0.5,trend=1.9",
    "n=7,unit=6,spread=0.013,skew=-1,shift=0.54,shift-factor=1.8,at=4,every=1,clock=0.14",
    "n=10,unit=1,spread=0.02,roving=0.1,roving-factor=0.125",
    "n=2,unit=0.4,spread=0.02,nodes=2,to-slow=0.08,to-fast=0.03,node-factor=3",
];

/// Full rounds that `auto` was behind full sync at most, beyond what the theorem allows, and its gain per second
/// over that of full sync.
fn behind(trace: &Trace) -> (f64, f64) {
    let policy: PolicySpec = "auto".parse().expect("a policy");
    let outcome =
        Replay::default().run(&mut Recorded::new(trace, 0), trace.rounds(), policy.build());
    let whole = |round: usize| trace.row(round).filter_map(|cell| cell.bound()).fold(0.0, f64::max);
    let workers = trace.workers().len() as f64;
    let (mut before, mut most) = (0.0, f64::NEG_INFINITY);
    let (mut rounds, mut gained, mut seconds, mut full) = (0.0, 0.0, 0.0, 0.0);
    for (number, round) in outcome.rounds.iter().enumerate() {
        let share = round.accepted / workers;
        if before < FROM {
            before += share;
            continue;
        }
        (rounds, gained) = (rounds + 1.0, gained + share);
        (seconds, full) = (seconds + round.seconds, full + whole(number));
        most = f64::max(most, seconds * rounds / full - gained - CREDIT - ALPHA * rounds);
    }
    let all: f64 = (0..outcome.rounds.len()).map(whole).sum();
    (most, outcome.rate(0.0) / workers * all / outcome.rounds.len() as f64)
}

/// A cluster of the distribution, but long and small.
fn long(number: u64) -> Trace {
    let cluster = RandomClusters::new(SEED).cluster(number);
    let spec = cluster.spec().to_string();
    let parts = spec.split([':', ',']).map(|part| match part.split_once('=') {
        Some(("rounds", _)) => format!("rounds={ROUNDS}"),
        Some((key @ ("n" | "nodes"), n)) => {
            format!("{key}={}", n.parse::<usize>().expect("a number").min(WORKERS))
        }
        _ => part.to_owned(),
    });
    let parts: Vec<String> = parts.collect();
    let spec = format!("{}:{}", parts[0], parts[1..].join(","));
    generate(&spec.parse().expect("a cluster"), cluster.seed())
}

#[test]
fn on_random_clusters_the_floor_fails_no_more_often_than_the_theorem_says() {
    let clusters: Vec<u64> = (0..CLUSTERS).collect();
    let found: Vec<(f64, f64)> = clusters.par_iter().map(|&n| behind(&long(n))).collect();
    let failed = found.iter().filter(|(behind, _)| *behind > 0.0).count();
    println!("{failed} of {CLUSTERS} fall behind: {found:.3?}");
    assert!(failed as f64 <= DOUBT * CLUSTERS as f64, "{failed} of {CLUSTERS}: {found:?}");
}

#[test]
fn clusters_made_to_deceive_do_not_break_the_floor() {
    let run = |spec: &&str| {
        let spec = format!("mixed:rounds={ROUNDS},{spec}");
        behind(&generate(&spec.parse().expect("a cluster"), 7))
    };
    let found: Vec<(f64, f64)> = DECEIVING.par_iter().map(run).collect();
    println!("{found:.3?}");
    for ((behind, share), spec) in found.iter().zip(DECEIVING) {
        assert!(
            *behind <= LUCK && *share > 0.9,
            "{behind:.1} behind, {share:.3} of full sync on {spec}"
        );
    }
}
