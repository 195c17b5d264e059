//! The generator `mixed`: every component at once, each of them off by default but the noise.

use super::{
    SyntheticSpec,
    catalogue::{Key, real, whole},
    cluster::ClusterModel,
    drift::DriftModel,
    minority::Minority,
    noise::{Noise, ProductNoise},
    regimes::RegimeModel,
    shifts::ShiftModel,
    stalls::StallModel,
};

/// Its parameters. Factors multiply run-times; shares are of the workers.
pub(super) const KEYS: &[Key] = &[
    whole("n", 16.0, 1.0, 1e6),
    whole("rounds", 300.0, 1.0, 1e9),
    real("unit", 1.0, 1e-6, 1e6),
    real("spread", 0.1, 0.0, 3.0),
    real("skew", 0.0, -1.0, 1.0),
    real("uniform", 0.0, 0.0, 0.99),
    real("exponential", 0.0, 0.0, 1e3),
    real("pareto", 0.0, 0.0, 1e3),
    real("tail", 2.0, 0.5, 1e3),
    real("level", 0.0, 0.0, 3.0),
    real("fast", 0.0, 0.0, 1.0),
    factor("fast-factor", 0.25),
    real("slow", 0.0, 0.0, 1.0),
    factor("slow-factor", 3.0),
    real("roving", 0.0, 0.0, 1.0),
    factor("roving-factor", 0.25),
    whole("nodes", 1.0, 1.0, 1e6),
    real("to-slow", 0.0, 0.0, 0.5),
    real("to-fast", 0.08, 1e-4, 0.49),
    factor("node-factor", 1.8),
    real("p", 0.0, 0.0, 1.0),
    real("scale", 2.0, 0.0, 1e3),
    real("shape", 1.2, 0.5, 1e3),
    real("common", 0.0, 0.0, 3.0),
    memory("common-memory", 0.95),
    real("own", 0.0, 0.0, 3.0),
    memory("own-memory", 0.9),
    real("shift", 0.0, 0.0, 1.0),
    factor("shift-factor", 3.0),
    whole("at", 100.0, 0.0, 1e9),
    whole("every", 0.0, 0.0, 1e9),
    factor("trend", 1.0),
    real("clock", 0.0, 0.0, 1e3),
];

const fn factor(name: &'static str, default: f64) -> Key {
    real(name, default, 1e-3, 1e3)
}

const fn memory(name: &'static str, default: f64) -> Key {
    real(name, default, 0.0, 0.999_999)
}

/// The cluster of these parameters.
pub(super) fn model(spec: &SyntheticSpec) -> ClusterModel {
    let minority =
        |share: &str, factor: &str| Minority { share: spec.at(share), factor: spec.at(factor) };
    let drift = |sd: &str, memory: &str| {
        let (stationary_sd, coefficient) = (spec.at(sd), spec.at(memory));
        (stationary_sd > 0.0).then_some(DriftModel { coefficient, stationary_sd })
    };
    let shifted = minority("shift", "shift-factor");
    let noise = ProductNoise {
        spread: spec.at("spread"),
        skew: spec.at("skew"),
        uniform: spec.at("uniform"),
        exponential: spec.at("exponential"),
        pareto: spec.at("pareto"),
        tail: spec.at("tail"),
    };
    ClusterModel {
        workers: spec.workers(),
        nodes: spec.count("nodes"),
        level_sd: spec.at("level"),
        own: drift("own", "own-memory"),
        common: drift("common", "common-memory"),
        regimes: (spec.at("to-slow") > 0.0).then(|| RegimeModel {
            to_slow: spec.at("to-slow"),
            to_fast: spec.at("to-fast"),
            factor: spec.at("node-factor"),
            ..RegimeModel::PRESET
        }),
        noise: Noise::Product(noise),
        stalls: StallModel { p: spec.at("p"), scale: spec.at("scale"), shape: spec.at("shape") },
        incident: None,
        fast: minority("fast", "fast-factor"),
        slow: minority("slow", "slow-factor"),
        roving: minority("roving", "roving-factor"),
        shifts: (shifted.share > 0.0).then(|| ShiftModel {
            at: spec.count("at") as u64,
            every: spec.count("every") as u64,
            shifted,
        }),
        trend: spec.at("trend").ln() / spec.rounds().saturating_sub(1).max(1) as f64,
        clock: spec.at("clock"),
        unit: spec.at("unit"),
    }
}
