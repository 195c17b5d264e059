//! Everything at once.

use std::fmt;

use paceline_trace::{Trace, Unit, hindsight};
use serde::Serialize;

use crate::{
    Censoring, Changes, Cost, Cutoff, Groups, PartialWork, Ranking, Spread, Survival, Survivals,
    cutoff::cutoffs, residual::Residuals, survival::Ratios,
};

/// What a trace says. One object of `paceline analyze --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// The trace's name.
    pub name: String,
    /// `seconds` or `relative`.
    pub unit: &'static str,
    /// How many workers.
    pub workers: usize,
    /// How many rounds.
    pub rounds: usize,
    /// What stragglers cost and what could be had, in hindsight.
    pub cost: Cost,
    /// What that is in hours, where the unit is time.
    pub saving: Option<Saving>,
    /// What deadlines that keep partial work would give, where the trace has micro-batches.
    pub partial: Option<PartialWork>,
    /// What is not known, and what follows.
    pub censoring: Option<Censoring>,
    /// How run-times lie.
    pub spread: Spread,
    /// Waiting for fixed counts; of large clusters not all of them.
    pub cutoffs: Vec<Cutoff>,
    /// The gradient noise that `progress_against_full` is for, in contributions.
    pub noise_scale: f64,
    /// Who is slow.
    pub ranking: Ranking,
    /// Who is slow together.
    pub groups: Groups,
    /// Since when.
    pub changes: Changes,
    /// The tail.
    pub survival: Survivals,
}

/// What could be saved of a run that takes so long under full sync, for the same number of
/// contributions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Saving {
    /// How long the run takes under full sync.
    pub run_hours: f64,
    /// What the best fixed cutoff saves of it.
    pub fixed_hours: f64,
    /// What no cutoff can exceed.
    pub oracle_hours: f64,
}

/// What an analysis may be told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Time between a close and the next round, in the trace's unit.
    pub overhead: f64,
    /// Gradient noise scale in contributions: so many make the noise of their mean as large as the
    /// gradient. As many as there are workers where nothing is said.
    pub noise_scale: Option<f64>,
    /// How long a run takes under full sync.
    pub run_hours: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { overhead: 0.0, noise_scale: None, run_hours: 100.0 }
    }
}

/// What is being worked out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    /// Full sync, fixed counts, oracle.
    Hindsight,
    /// Spread and tail.
    Spread,
    /// Slowness of workers.
    Ranking,
    /// Groups, of which this share is done.
    Groups(f64),
    /// Changes, of which this share is done.
    Changes(f64),
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Hindsight => write!(f, "looking back at every cutoff"),
            Stage::Spread => write!(f, "measuring the spread"),
            Stage::Ranking => write!(f, "ranking workers"),
            Stage::Groups(done) => write!(f, "comparing workers, {:.0} %", done * 100.0),
            Stage::Changes(done) => write!(f, "looking for changes, {:.0} %", done * 100.0),
        }
    }
}

/// Analyses a trace; `progress` is told what is going on.
pub fn analyze(trace: &Trace, options: &Options, progress: &mut dyn FnMut(Stage)) -> Analysis {
    let n = trace.workers().len();
    let Options { overhead, run_hours, .. } = *options;
    let noise_scale = options.noise_scale.unwrap_or(n as f64);

    progress(Stage::Hindsight);
    let seen = hindsight(trace, overhead, 1);
    let cost = Cost::from_hindsight(trace, &seen);
    let censoring = Censoring::from_trace(trace, &cost, overhead);
    let cutoffs = cutoffs(trace, &seen, overhead, noise_scale);
    progress(Stage::Ranking);
    let mut residuals = Residuals::from_trace(trace);
    let ranking = Ranking::from_trace(trace, &residuals);
    progress(Stage::Spread);
    let Ratios { run_times, slowest } = Ratios::from_trace(trace, &residuals);
    let survival = Survivals {
        run_times: Survival::from_sorted(&run_times),
        slowest: Survival::from_sorted(&slowest),
    };
    let levels: Vec<f64> = ranking.workers.iter().map(|worker| worker.factor.ln()).collect();
    let spread = Spread::from_trace(trace, &residuals, &levels, &run_times, &slowest);
    let changes = Changes::find(trace, &mut residuals, &mut |done| progress(Stage::Changes(done)));
    let groups = Groups::find(trace, &residuals, &mut |done| progress(Stage::Groups(done)));
    Analysis {
        name: trace.name().to_owned(),
        unit: match trace.unit() {
            Unit::Seconds => "seconds",
            Unit::Relative => "relative",
        },
        workers: n,
        rounds: trace.rounds(),
        saving: (trace.unit() == Unit::Seconds).then(|| Saving {
            run_hours,
            fixed_hours: run_hours * (1.0 - 1.0 / cost.fixed.gain),
            oracle_hours: run_hours * (1.0 - 1.0 / cost.oracle.gain),
        }),
        cost,
        partial: PartialWork::from_trace(trace, overhead),
        censoring,
        spread,
        cutoffs,
        noise_scale,
        ranking,
        groups,
        changes,
        survival,
    }
}
