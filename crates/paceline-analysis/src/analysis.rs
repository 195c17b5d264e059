//! The complete analysis of a trace.

use std::fmt;

use paceline_trace::{Trace, Unit, hindsight};
use serde::Serialize;

use crate::{
    Censoring, Changes, CutoffPoint, PartialWork, Ranking, RunTimeSpread, Survival, Survivals,
    SyncCost, WorkerGroups, cutoff::cutoffs, residual::Residuals, survival::Ratios,
};

/// The analysis of a trace: one object of `paceline analyze --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// The trace's name.
    pub name: String,
    /// `seconds` or `relative`.
    pub unit: &'static str,
    /// The number of workers.
    pub workers: usize,
    /// The number of rounds.
    pub rounds: usize,
    /// Whether run-times include waits for other workers: stragglers then cost more than it seems.
    pub waits_included: bool,
    /// The cost of stragglers, and the best rates in hindsight.
    pub cost: SyncCost,
    /// The savings in hours, if the unit is seconds.
    pub saving: Option<Saving>,
    /// Rates of deadlines that keep partial work, if the trace has micro-batches.
    pub partial: Option<PartialWork>,
    /// Bounds due to censoring, if any.
    pub censoring: Option<Censoring>,
    /// The spread of run-times.
    pub spread: RunTimeSpread,
    /// Fixed counts; a selection for large clusters.
    pub cutoffs: Vec<CutoffPoint>,
    /// The gradient noise scale behind `progress_against_full`, in contributions.
    pub noise_scale: f64,
    /// Workers by slowness.
    pub ranking: Ranking,
    /// Workers that are slow together.
    pub groups: WorkerGroups,
    /// Lasting changes.
    pub changes: Changes,
    /// Tail curves.
    pub survival: Survivals,
}

/// Possible savings of a run of a given length under full sync, for the same number of contributions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Saving {
    /// Length of the run under full sync.
    pub run_hours: f64,
    /// Saving of the best fixed cutoff.
    pub fixed_hours: f64,
    /// Upper bound on the saving of any cutoff.
    pub oracle_hours: f64,
}

/// Options of an analysis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Time between a close and the next round, in the trace's unit.
    pub overhead: f64,
    /// Gradient noise scale in contributions: with this many, the noise of their mean is as large as the
    /// gradient. By default the number of workers.
    pub noise_scale: Option<f64>,
    /// Length of a run under full sync.
    pub run_hours: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { overhead: 0.0, noise_scale: None, run_hours: 100.0 }
    }
}

/// A stage of the analysis, for progress reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AnalysisStage {
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

impl fmt::Display for AnalysisStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnalysisStage::Hindsight => write!(f, "looking back at every cutoff"),
            AnalysisStage::Spread => write!(f, "measuring the spread"),
            AnalysisStage::Ranking => write!(f, "ranking workers"),
            AnalysisStage::Groups(done) => {
                write!(f, "comparing workers, {:.0} %", done * 100.0)
            }
            AnalysisStage::Changes(done) => write!(f, "looking for changes, {:.0} %", done * 100.0),
        }
    }
}

/// Analyses a trace; calls `progress` with each stage.
pub fn analyze(
    trace: &Trace,
    options: &Options,
    progress: &mut dyn FnMut(AnalysisStage),
) -> Analysis {
    let n = trace.workers().len();
    let Options { overhead, run_hours, .. } = *options;
    let noise_scale = options.noise_scale.unwrap_or(n as f64);

    progress(AnalysisStage::Hindsight);
    let seen = hindsight(trace, overhead, 1);
    let cost = SyncCost::from_hindsight(trace, &seen);
    let censoring = Censoring::from_trace(trace, &cost, overhead);
    let cutoffs = cutoffs(trace, &seen, overhead, noise_scale);
    progress(AnalysisStage::Ranking);
    let mut residuals = Residuals::from_trace(trace);
    let ranking = Ranking::from_trace(trace, &residuals);
    progress(AnalysisStage::Spread);
    let Ratios { run_times, slowest } = Ratios::from_trace(trace, &residuals);
    let survival = Survivals {
        run_times: Survival::from_sorted(&run_times),
        slowest: Survival::from_sorted(&slowest),
    };
    let levels: Vec<f64> = ranking.workers.iter().map(|worker| worker.factor.ln()).collect();
    let spread = RunTimeSpread::from_trace(trace, &residuals, &levels, &run_times, &slowest);
    let changes =
        Changes::find(trace, &mut residuals, &mut |done| progress(AnalysisStage::Changes(done)));
    let groups =
        WorkerGroups::find(trace, &residuals, &mut |done| progress(AnalysisStage::Groups(done)));
    Analysis {
        name: trace.name().to_owned(),
        unit: match trace.unit() {
            Unit::Seconds => "seconds",
            Unit::Relative => "relative",
        },
        workers: n,
        rounds: trace.rounds(),
        waits_included: trace.waits_included(),
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
