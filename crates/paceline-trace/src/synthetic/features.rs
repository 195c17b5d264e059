//! The features of random clusters: how often each occurs, and the ranges of its parameters.

/// A part of a cluster that is there or not, with the parameters that it brings.
#[derive(Debug)]
pub(super) struct Feature {
    /// The probability that a cluster has it.
    pub(super) chance: f64,
    /// Its parameters.
    pub(super) draws: &'static [Draw],
}

/// The distribution of a parameter of `mixed`.
#[derive(Debug)]
pub(super) struct Draw {
    pub(super) key: &'static str,
    from: f64,
    to: f64,
    scale: Scale,
}

/// In which scale a parameter is uniform over its range.
#[derive(Debug)]
enum Scale {
    Linear,
    Log,
    /// Logarithmic, rounded to a whole number.
    Whole,
    /// Logarithmic, rounded to a whole number that is at most the number of workers.
    Nodes,
    /// Logarithmic in the distance from 1.
    Memory,
    /// Linear in shares of the rounds, rounded to a whole round; 0 below 0.
    Rounds,
}

impl Draw {
    /// The value at a position from 0 to 1 in its range, to three significant digits, in a cluster of
    /// this size.
    pub(super) fn value(&self, position: f64, workers: f64, rounds: f64) -> f64 {
        let linear = |from: f64, to: f64| from + (to - from) * position;
        let log = |from: f64, to: f64| linear(from.ln(), to.ln()).exp();
        match self.scale {
            Scale::Linear => rounded(linear(self.from, self.to)),
            Scale::Log => rounded(log(self.from, self.to)),
            Scale::Whole => log(self.from, self.to).round(),
            Scale::Nodes => log(self.from, self.to).round().min(workers),
            Scale::Memory => rounded(1.0 - log(1.0 - self.from, 1.0 - self.to)),
            Scale::Rounds => (rounds * linear(self.from, self.to)).round().max(0.0),
        }
    }
}

/// `x` to three significant digits.
fn rounded(x: f64) -> f64 {
    format!("{x:.2e}").parse().expect("a number prints as a number")
}

const fn feature(chance: f64, draws: &'static [Draw]) -> Feature {
    Feature { chance, draws }
}

const fn linear(key: &'static str, from: f64, to: f64) -> Draw {
    Draw { key, from, to, scale: Scale::Linear }
}

const fn log(key: &'static str, from: f64, to: f64) -> Draw {
    Draw { key, from, to, scale: Scale::Log }
}

const fn whole(key: &'static str, from: f64, to: f64) -> Draw {
    Draw { key, from, to, scale: Scale::Whole }
}

const fn memory(key: &'static str) -> Draw {
    Draw { key, from: 0.5, to: 0.995, scale: Scale::Memory }
}

const fn of_rounds(key: &'static str, from: f64, to: f64) -> Draw {
    Draw { key, from, to, scale: Scale::Rounds }
}

/// All features, the size of the cluster first.
pub(super) static FEATURES: [Feature; 17] = [
    feature(1.0, &[whole("n", 2.0, 300.0), whole("rounds", 40.0, 1000.0), log("unit", 0.2, 100.0)]),
    feature(1.0, &[log("spread", 0.005, 0.3)]),
    feature(0.5, &[linear("skew", -1.0, 0.6)]),
    feature(0.15, &[linear("uniform", 0.05, 0.8)]),
    feature(0.15, &[log("exponential", 0.02, 1.0)]),
    feature(0.12, &[log("pareto", 0.01, 0.3), log("tail", 1.5, 4.0)]),
    feature(0.35, &[log("level", 0.02, 0.4)]),
    feature(0.12, &[log("fast", 0.02, 0.5), log("fast-factor", 0.15, 0.9)]),
    feature(0.3, &[log("slow", 0.02, 0.5), log("slow-factor", 1.1, 4.0)]),
    feature(0.15, &[log("roving", 0.02, 0.5), log("roving-factor", 0.125, 3.0)]),
    feature(
        0.48,
        &[
            Draw { key: "nodes", from: 1.0, to: 16.0, scale: Scale::Nodes },
            log("to-slow", 0.002, 0.1),
            log("to-fast", 0.02, 0.4),
            log("node-factor", 1.3, 5.0),
        ],
    ),
    feature(0.3, &[log("p", 2e-4, 0.05), log("scale", 0.3, 5.0), log("shape", 1.2, 3.0)]),
    feature(0.25, &[log("common", 0.03, 0.4), memory("common-memory")]),
    feature(0.25, &[log("own", 0.02, 0.3), memory("own-memory")]),
    feature(
        0.3,
        &[
            log("shift", 0.05, 1.0),
            log("shift-factor", 0.25, 4.0),
            of_rounds("at", 0.1, 0.9),
            // In half of the clusters the first shift lasts for good.
            of_rounds("every", -0.4, 0.4),
        ],
    ),
    feature(0.15, &[log("trend", 0.4, 2.5)]),
    feature(0.15, &[log("clock", 0.01, 0.5)]),
];
