//! The generators, with their parameters.

use std::ops::RangeInclusive;

use super::{
    SyntheticSpec,
    cluster::ClusterModel,
    drift::DriftModel,
    incident::{Incident, workers_of},
    mixed,
    noise::Noise,
    regimes::RegimeModel,
    stalls::StallModel,
};

/// A kind of synthetic cluster: a preset with the parameters that figures are quoted for, or a
/// general form.
#[derive(Debug)]
pub struct Generator {
    /// Its name, as users write it.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// Its parameters.
    pub keys: &'static [Key],
    pub(super) model: fn(&SyntheticSpec) -> ClusterModel,
}

/// A parameter of a generator.
#[derive(Debug)]
pub struct Key {
    /// What users call it.
    pub name: &'static str,
    /// Its default value.
    pub default: f64,
    /// The values it may have.
    pub range: RangeInclusive<f64>,
    /// Whether it is a whole number.
    pub whole: bool,
}

pub(super) const fn whole(name: &'static str, default: f64, least: f64, most: f64) -> Key {
    Key { name, default, range: least..=most, whole: true }
}

pub(super) const fn real(name: &'static str, default: f64, least: f64, most: f64) -> Key {
    Key { name, default, range: least..=most, whole: false }
}

const fn n(default: f64) -> Key {
    whole("n", default, 1.0, 1e6)
}

const fn nodes(default: f64) -> Key {
    whole("nodes", default, 1.0, 1e6)
}

const fn rounds(default: f64) -> Key {
    whole("rounds", default, 1.0, 1e9)
}

const fn p(default: f64) -> Key {
    real("p", default, 0.0, 1.0)
}

const fn at(default: f64) -> Key {
    whole("at", default, 0.0, 1e9)
}

const fn share(default: f64) -> Key {
    real("share", default, 0.0, 1.0)
}

const fn factor(default: f64) -> Key {
    real("factor", default, 1e-6, 1e6)
}

const fn sigma(default: f64) -> Key {
    real("sigma", default, 0.0, 10.0)
}

const fn shape(default: f64) -> Key {
    real("shape", default, 0.1, 1e6)
}

const fn offset(default: f64) -> Key {
    real("offset", default, 0.0, 1e9)
}

const fn scale(default: f64) -> Key {
    real("scale", default, 1e-9, 1e9)
}

/// All generators: the presets, then the general forms.
pub static GENERATORS: [Generator; 16] = [
    Generator {
        name: "nodes158",
        about: "158 workers on 4 nodes that are fast or slow for a while",
        keys: &[n(158.0), nodes(4.0), rounds(600.0), p(0.0)],
        model: node_regimes,
    },
    Generator {
        name: "nodes158-stalls",
        about: "nodes158, where a worker stalls once in a hundred rounds",
        keys: &[n(158.0), nodes(4.0), rounds(600.0), p(0.01)],
        model: node_regimes,
    },
    Generator {
        name: "nodes16-stalls",
        about: "16 workers on 4 nodes, with stalls once in fifty rounds",
        keys: &[n(16.0), nodes(4.0), rounds(1000.0), p(0.02)],
        model: node_regimes,
    },
    Generator {
        name: "xc40",
        about: "2,175 workers in 32 groups, with rare stalls",
        keys: &[n(2175.0), nodes(32.0), rounds(400.0), p(0.002)],
        model: node_regimes,
    },
    Generator {
        name: "shift48",
        about: "48 workers on 6 nodes; half-way a third of them becomes three times as slow",
        keys: &[
            n(48.0),
            nodes(6.0),
            rounds(600.0),
            p(0.0),
            at(300.0),
            share(1.0 / 3.0),
            factor(3.0),
        ],
        model: |spec| ClusterModel { incident: Some(shift(spec)), ..node_regimes(spec) },
    },
    Generator {
        name: "iid-lognormal",
        about: "independent log-normal run-times",
        keys: &[n(158.0), rounds(600.0), p(0.0), sigma(0.2)],
        model: log_normal,
    },
    Generator {
        name: "iid-exp",
        about: "independent run-times, a constant plus an exponential",
        keys: &[n(158.0), rounds(600.0), p(0.0), offset(1.0), scale(0.3)],
        model: |spec| {
            let noise = Noise::Exponential { offset: spec.at("offset"), scale: spec.at("scale") };
            iid(spec, noise)
        },
    },
    Generator {
        name: "iid-pareto",
        about: "independent run-times, a constant plus a Pareto",
        keys: &[n(158.0), rounds(600.0), p(0.0), offset(0.8), scale(0.2), shape(2.0)],
        model: pareto,
    },
    Generator {
        name: "normal",
        about: "independent normal run-times, drawn again where not positive",
        keys: &[
            n(16.0),
            rounds(1000.0),
            p(0.0),
            real("mean", 1.0, 1e-9, 1e9),
            real("sd", 0.1, 0.0, 1e9),
        ],
        model: |spec| iid(spec, Noise::Normal { mean: spec.at("mean"), sd: spec.at("sd") }),
    },
    Generator {
        name: "lognormal",
        about: "independent log-normal run-times",
        keys: &[n(16.0), rounds(1000.0), p(0.0), sigma(0.2)],
        model: log_normal,
    },
    Generator {
        name: "pareto",
        about: "independent Pareto run-times",
        keys: &[n(16.0), rounds(1000.0), p(0.0), offset(0.0), scale(1.0), shape(2.0)],
        model: pareto,
    },
    Generator {
        name: "ar",
        about: "every worker drifts on its own: AR(1) in the logarithm",
        keys: &[
            n(16.0),
            rounds(1000.0),
            p(0.0),
            real("coefficient", 0.95, 0.0, 0.999_999),
            real("sd", 0.1, 0.0, 10.0),
        ],
        model: |spec| {
            let own =
                DriftModel { coefficient: spec.at("coefficient"), stationary_sd: spec.at("sd") };
            ClusterModel { own: Some(own), ..iid(spec, Noise::LogNormal { sigma: 0.0 }) }
        },
    },
    Generator {
        name: "stalls",
        about: "alike workers that stall now and then",
        keys: &[n(16.0), rounds(1000.0), p(0.01), sigma(0.05), scale(2.0), shape(1.2)],
        model: |spec| {
            let stalls =
                StallModel { p: spec.at("p"), scale: spec.at("scale"), shape: spec.at("shape") };
            ClusterModel { stalls, ..log_normal(spec) }
        },
    },
    Generator {
        name: "phase",
        about: "alike workers, some of which become slower at one moment",
        keys: &[
            n(16.0),
            rounds(600.0),
            p(0.0),
            sigma(0.05),
            at(300.0),
            share(1.0 / 3.0),
            factor(3.0),
        ],
        model: |spec| ClusterModel { incident: Some(shift(spec)), ..log_normal(spec) },
    },
    Generator {
        name: "failure",
        about: "alike workers, one node of which fails for some rounds or (for=0) for good",
        keys: &[
            n(16.0),
            nodes(4.0),
            rounds(600.0),
            p(0.0),
            sigma(0.05),
            whole("node", 0.0, 0.0, 1e6),
            at(300.0),
            whole("for", 0.0, 0.0, 1e9),
        ],
        model: |spec| ClusterModel { incident: Some(failure(spec)), ..log_normal(spec) },
    },
    Generator {
        name: "mixed",
        about: "any mixture: skewed noise, minorities, nodes, stalls, drifts, shifts, a coarse clock",
        keys: mixed::KEYS,
        model: mixed::model,
    },
];

/// log x_i(t) = b_i + a_i(t) + g(t) + s_k(t) · ln 1.8 · u_i(t) + e_i(t), and stalls.
fn node_regimes(spec: &SyntheticSpec) -> ClusterModel {
    ClusterModel {
        nodes: spec.count("nodes"),
        level_sd: 0.05,
        own: Some(DriftModel { coefficient: 0.8, stationary_sd: 0.08 }),
        common: Some(DriftModel::of_innovations(0.95, 0.03)),
        regimes: Some(RegimeModel::PRESET),
        ..iid(spec, Noise::LogNormal { sigma: 0.03 })
    }
}

fn iid(spec: &SyntheticSpec, noise: Noise) -> ClusterModel {
    ClusterModel::of_noise(spec.workers(), noise, spec.at("p"))
}

fn log_normal(spec: &SyntheticSpec) -> ClusterModel {
    iid(spec, Noise::LogNormal { sigma: spec.at("sigma") })
}

fn pareto(spec: &SyntheticSpec) -> ClusterModel {
    let (offset, scale, shape) = (spec.at("offset"), spec.at("scale"), spec.at("shape"));
    iid(spec, Noise::Pareto { offset, scale, shape })
}

fn shift(spec: &SyntheticSpec) -> Incident {
    let slower = (spec.at("share") * spec.workers() as f64).round() as usize;
    Incident::Shift {
        at: spec.count("at") as u64,
        workers: 0..slower.min(spec.workers()),
        factor: spec.at("factor"),
    }
}

fn failure(spec: &SyntheticSpec) -> Incident {
    let (at, rounds) = (spec.count("at") as u64, spec.count("for") as u64);
    let end = if rounds == 0 { u64::MAX } else { at + rounds };
    let workers = workers_of(spec.count("node"), spec.count("nodes"), spec.workers());
    Incident::Failure { rounds: at..end, workers }
}
