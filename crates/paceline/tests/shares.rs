//! The shares of the oracle's rate that policies reach on presets and on random clusters, to ±0.002. A change that
//! moves one must say so: it changes the figure here.

use std::fmt::Write as _;

use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay};
use paceline_trace::{RandomClusters, Trace, generate, hindsight};
use rayon::prelude::*;

const TOLERANCE: f64 = 0.002;
/// A seed of its own, so that tuning on other clusters cannot fit it.
const SEED: u64 = 50_050;
const CLUSTERS: u64 = 50;
/// Rounds of each cluster, so that the test takes a minute.
const ROUNDS: usize = 100;

const POLICIES: [&str; 8] =
    ["auto", "blend", "filter", "bdsgd", "empirical", "elfving", "bandit", "full"];

/// A set of clusters, and the geometric means of the policies' shares in the order of [`POLICIES`].
const EXPECTED: [(&str, [f64; POLICIES.len()]); 7] = [
    ("random", [0.9502, 0.9535, 0.9380, 0.9307, 0.9307, 0.8433, 0.9068, 0.6778]),
    ("nodes158-stalls", [0.9850, 0.9850, 0.9825, 0.9847, 0.9530, 0.9272, 0.9440, 0.0995]),
    ("nodes16-stalls", [0.9574, 0.9630, 0.9633, 0.9614, 0.9243, 0.8284, 0.9283, 0.4297]),
    ("shift48", [0.9638, 0.9671, 0.9671, 0.9672, 0.9425, 0.8289, 0.9285, 0.7694]),
    ("iid-lognormal", [0.9674, 0.9676, 0.9807, 0.9792, 0.9615, 0.9775, 0.9280, 0.8318]),
    ("iid-exp", [0.9793, 0.9796, 0.9787, 0.9726, 0.9783, 0.9312, 0.9429, 0.6707]),
    ("iid-pareto", [0.9805, 0.9793, 0.9807, 0.9603, 0.9804, 0.8713, 0.9346, 0.2635]),
];

/// The worst clusters that `paceline simulate --hunt 2000` with seeds 1, 2 and 4242 found for an earlier `auto`: its
/// share of full sync was 0.731, 0.745, 0.794, 0.856 and 0.865. With each, the share of today's.
const HUNTED: [(&str, u64, f64); 5] = [
    (
        "mixed:n=7,rounds=61,unit=1.3,spread=0.00801,skew=-0.106,level=0.02,roving=0.0229,\
         roving-factor=0.289,common=0.193,common-memory=0.971,trend=2.5",
        2_823_402_958,
        0.9457,
    ),
    (
        "mixed:n=3,rounds=1000,unit=0.312,spread=0.005,shift=0.212,shift-factor=0.25,at=271,every=325,\
         trend=1.28",
        630_995_102,
        1.0182,
    ),
    (
        "mixed:n=8,rounds=340,unit=10.9,spread=0.005,roving=0.02,roving-factor=0.221,common=0.212,\
         common-memory=0.5,trend=2.5",
        3_640_170_615,
        0.9394,
    ),
    (
        "mixed:n=3,rounds=233,unit=0.463,spread=0.00955,uniform=0.716,common=0.136,common-memory=0.5,\
         trend=1.91",
        1_746_330_065,
        0.9611,
    ),
    (
        "mixed:n=7,rounds=40,unit=6.16,spread=0.0128,skew=-1,shift=0.536,shift-factor=1.8,at=4,every=1,\
         clock=0.14",
        349_453_376,
        0.9853,
    ),
];

fn traces(name: &str) -> Vec<Trace> {
    if name != "random" {
        return vec![generate(&format!("{name}:rounds={ROUNDS}").parse().expect("a preset"), 1)];
    }
    let clusters = RandomClusters::new(SEED);
    let trace = |number| {
        let cluster = clusters.cluster(number);
        let trace = generate(&cluster.spec(), cluster.seed());
        trace.slice(0..trace.rounds().min(ROUNDS))
    };
    (0..CLUSTERS).map(trace).collect()
}

fn share(trace: &Trace, policy: &str) -> f64 {
    let seen = hindsight(trace, 0.0, 1);
    let policy: PolicySpec = policy.parse().expect("a policy");
    let rate = match policy {
        PolicySpec::Full => seen.full_rate,
        _ => {
            let mut world = Recorded::new(trace, 0);
            Replay::default().run(&mut world, trace.rounds(), policy.build()).rate(0.0)
        }
    };
    rate / seen.oracle_rate
}

/// The geometric mean over traces.
fn mean(traces: &[Trace], policy: &str) -> f64 {
    let sum: f64 = traces.par_iter().map(|trace| share(trace, policy).ln()).sum();
    (sum / traces.len() as f64).exp()
}

#[test]
fn shares_of_the_oracle_stay_where_they_are() {
    let (mut found, mut moved) = (String::new(), String::new());
    for (name, expected) in EXPECTED {
        let traces = traces(name);
        let means = POLICIES.map(|policy| mean(&traces, policy));
        let shown: Vec<String> = means.iter().map(|share| format!("{share:.4}")).collect();
        writeln!(found, "    (\"{name}\", [{}]),", shown.join(", ")).expect("text grows");
        for ((policy, now), before) in POLICIES.iter().zip(means).zip(expected) {
            if (now - before).abs() > TOLERANCE {
                writeln!(moved, "{policy} on {name}: {now:.4}, {before:.4} before")
                    .expect("text grows");
            }
        }
    }
    assert!(
        moved.is_empty(),
        "{moved}If the change is meant to do this, the table is now:\n{found}"
    );
}

#[test]
fn clusters_that_a_hunt_found_are_no_worse() {
    let mut moved = String::new();
    for (spec, seed, expected) in HUNTED {
        let trace = generate(&spec.parse().expect("a cluster"), seed);
        let found = share(&trace, "auto") / share(&trace, "full");
        if (found - expected).abs() > TOLERANCE {
            writeln!(moved, "{found:.4} of full sync, {expected} before, on {spec}")
                .expect("text grows");
        }
    }
    assert!(moved.is_empty(), "{moved}");
}
