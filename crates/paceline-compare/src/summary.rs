//! The results of a comparison: one row per policy and scenario.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{
    study::{ComparisonCase, SweptCount},
    target::Target,
    trial::TrialOutcome,
};

/// Mean, best and worst over seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct SeedRange {
    pub(crate) mean: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl SeedRange {
    pub(crate) fn from_values(values: impl IntoIterator<Item = f64>) -> Option<SeedRange> {
        let values: Vec<f64> = values.into_iter().collect();
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        Some(SeedRange { mean: values.iter().sum::<f64>() / values.len() as f64, least, most })
    }
}

/// One line of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ComparisonRow {
    pub(crate) scenario: String,
    pub(crate) policy: String,
    /// The sweep's choice; the policy itself if it is no sweep.
    pub(crate) chosen: String,
    /// The counts that a sweep tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tried: Vec<SweptCount>,
    pub(crate) lr: f32,
    pub(crate) seeds: usize,
    /// Seeds that reached the target.
    pub(crate) reached: usize,
    /// Seeds that diverged.
    pub(crate) diverged: usize,
    /// Seconds to the target, over the seeds that reached it.
    pub(crate) seconds_to_target: Option<SeedRange>,
    /// Seconds to the target by seed; `None` if it was not reached.
    pub(crate) seconds_by_seed: Vec<Option<f64>>,
    /// Full sync's time over this policy's: ratio of the mean times, and the extremes over seeds.
    pub(crate) speed_up: Option<SeedRange>,
    /// A clairvoyant's samples per second over full sync's.
    pub(crate) bound: Option<f64>,
    /// The speed-up's share of the bound.
    pub(crate) of_bound: Option<f64>,
    /// Samples used per second.
    pub(crate) samples_per_s: f64,
    /// The throughput's share of the bound.
    pub(crate) samples_of_bound: Option<f64>,
    pub(crate) final_accuracy: SeedRange,
    /// Final accuracy by seed.
    pub(crate) accuracy_by_seed: Vec<f64>,
    /// Mean difference to full sync's final accuracy, in percentage points.
    pub(crate) accuracy_over_full: Option<f64>,
    /// Mean contributions per round.
    pub(crate) accepted: f64,
    pub(crate) idle: Option<f64>,
    /// Relative excess of the cost of samples in updates over that of samples handed out.
    pub(crate) cost_bias: Option<f64>,
    #[serde(flatten)]
    pub(crate) samples: SampleSums,
    pub(crate) ledger_balanced: bool,
}

/// Samples by what became of them, summed over seeds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SampleSums {
    pub(crate) used: u64,
    pub(crate) salvaged: u64,
    pub(crate) dropped: u64,
    pub(crate) requeued: u64,
}

/// The rows of all cases, in order.
pub(crate) fn rows(cases: &[ComparisonCase]) -> Vec<ComparisonRow> {
    let full = |scenario: &str| {
        let full = |case: &&ComparisonCase| {
            case.scenario == scenario && case.contender.to_string() == "full"
        };
        cases.iter().find(full)
    };
    cases.iter().map(|case| row(case, full(&case.scenario))).collect()
}

fn row(case: &ComparisonCase, full: Option<&ComparisonCase>) -> ComparisonRow {
    let outcomes = &case.outcomes;
    let pairs = || full.into_iter().flat_map(|full| full.outcomes.iter().zip(outcomes));
    // A speed-up over some seeds only would favour policies that fail on the hard seeds.
    let speed_ups: Option<Vec<f64>> =
        pairs().map(|(full, mine)| Some(full.reached? / mine.reached?)).collect();
    // A ratio of mean times: in a mean of ratios, slow seeds would hardly count.
    let sum =
        |outcomes: &[TrialOutcome]| -> Option<f64> { outcomes.iter().map(|o| o.reached).sum() };
    let by_means = full.and_then(|full| Some(sum(&full.outcomes)? / sum(outcomes)?));
    let speed_up = speed_ups.and_then(SeedRange::from_values).zip(by_means);
    let speed_up = speed_up.map(|(spread, mean)| SeedRange { mean, ..spread });
    let per_second = |outcomes: &[TrialOutcome]| {
        let used: u64 = outcomes.iter().map(|outcome| outcome.samples.used).sum();
        used as f64 / outcomes.iter().map(|outcome| outcome.seconds).sum::<f64>().max(1e-9)
    };
    let samples_per_s = per_second(outcomes);
    let samples_up = full.map(|full| samples_per_s / per_second(&full.outcomes));
    let over =
        SeedRange::from_values(pairs().map(|(full, mine)| 100.0 * (mine.accuracy - full.accuracy)));
    let mean = |figure: &dyn Fn(&TrialOutcome) -> f64| {
        outcomes.iter().map(figure).sum::<f64>() / outcomes.len().max(1) as f64
    };
    let idle: Option<Vec<f64>> = outcomes.iter().map(|outcome| outcome.idle).collect();
    let bias: Option<Vec<f64>> = outcomes.iter().map(|outcome| outcome.cost_bias).collect();
    let none = SeedRange { mean: 0.0, least: 0.0, most: 0.0 };
    ComparisonRow {
        scenario: case.scenario.clone(),
        policy: case.contender.to_string(),
        chosen: case.chosen.to_string(),
        tried: case.tried.clone(),
        lr: case.lr,
        seeds: outcomes.len(),
        reached: outcomes.iter().filter(|outcome| outcome.reached.is_some()).count(),
        seconds_to_target: SeedRange::from_values(
            outcomes.iter().filter_map(|outcome| outcome.reached),
        ),
        seconds_by_seed: outcomes.iter().map(|outcome| outcome.reached).collect(),
        bound: case.bound,
        of_bound: speed_up.zip(case.bound).map(|(speed_up, bound)| speed_up.mean / bound),
        samples_per_s,
        samples_of_bound: samples_up.zip(case.bound).map(|(up, bound)| up / bound),
        diverged: outcomes.iter().filter(|outcome| outcome.diverged).count(),
        speed_up,
        final_accuracy: SeedRange::from_values(outcomes.iter().map(|o| o.accuracy)).unwrap_or(none),
        accuracy_by_seed: outcomes.iter().map(|outcome| outcome.accuracy).collect(),
        accuracy_over_full: over.map(|over| over.mean),
        accepted: mean(&|outcome| outcome.accepted),
        cost_bias: bias.and_then(SeedRange::from_values).map(|bias| bias.mean),
        idle: idle.and_then(SeedRange::from_values).map(|idle| idle.mean),
        samples: SampleSums {
            used: outcomes.iter().map(|outcome| outcome.samples.used).sum(),
            salvaged: outcomes.iter().map(|outcome| outcome.samples.salvaged).sum(),
            dropped: outcomes.iter().map(|outcome| outcome.samples.dropped).sum(),
            requeued: outcomes.iter().map(|outcome| outcome.samples.requeued).sum(),
        },
        ledger_balanced: outcomes.iter().all(|outcome| outcome.balanced),
    }
}

/// A table per scenario, as text.
pub(crate) fn text(rows: &[ComparisonRow], target: Target) -> String {
    let mut text = String::new();
    let mut scenario = "";
    for row in rows {
        if row.scenario != scenario {
            scenario = &row.scenario;
            let _ = writeln!(
                text,
                "{}{scenario}: seconds to {target}, mean (best–worst){}\n{:24} {:>22} {:>9} {:>9} \
                 {:>8} {:>7} {:>6}",
                if text.is_empty() { "" } else { "\n" },
                row.bound.map_or(String::new(), |bound| format!(
                    "; a clairvoyant gets {bound:.2}× the samples of full sync"
                )),
                "",
                "seconds",
                "of full",
                "of bound",
                "accuracy",
                "cutoff",
                "idle"
            );
        }
        let _ = writeln!(text, "{}", line(row));
    }
    text
}

fn line(row: &ComparisonRow) -> String {
    let seconds = row.seconds_to_target.map_or("not reached".to_owned(), |s| {
        format!("{:.1} ({:.1}–{:.1})", s.mean, s.least, s.most)
    });
    let or_dash = |value: Option<f64>, unit: &str| {
        value.map_or("–".to_owned(), |value| format!("{value:.2}{unit}"))
    };
    let mut line = format!(
        "{:24} {seconds:>22} {:>9} {:>9} {:>7.2}% {:>7.1} {:>6}",
        row.policy,
        or_dash(row.speed_up.map(|speed_up| speed_up.mean), "×"),
        or_dash(row.of_bound, ""),
        100.0 * row.final_accuracy.mean,
        row.accepted,
        row.idle.map_or("–".to_owned(), |idle| format!("{:.0}%", 100.0 * idle)),
    );
    if row.diverged > 0 {
        let _ = write!(line, "  {} of {} seeds diverged", row.diverged, row.seeds);
    }
    if row.reached < row.seeds {
        let _ = write!(line, "  {} of {} seeds reached it", row.reached, row.seeds);
    }
    if row.chosen != row.policy {
        let _ = write!(line, "  chose {}", row.chosen);
    }
    if let Some(bias) = row.cost_bias {
        let _ = write!(line, "  samples in updates cost {:+.1} %", 100.0 * bias);
    }
    if !row.ledger_balanced {
        line += "  THE LEDGER DOES NOT BALANCE";
    }
    line
}

/// The numbers that a sweep over backup workers recommends, with the reason.
pub(crate) fn choice(rows: &[ComparisonRow], machines: u32) -> Option<String> {
    let seconds = |row: &ComparisonRow| row.seconds_to_target.map(|seconds| seconds.mean);
    let all = rows.iter().filter(|row| row.reached == row.seeds);
    let best = all.min_by(|a, b| {
        let (a, b) = (seconds(a).unwrap_or(f64::MAX), seconds(b).unwrap_or(f64::MAX));
        a.total_cmp(&b)
    });
    let Some(best) = best else {
        let scenario = &rows.first()?.scenario;
        return Some(format!(
            "{scenario}: no count reached the target with every seed, so none can be recommended"
        ));
    };
    let none = rows.iter().find(|row| row.policy.starts_with(&format!("static:{machines}/")))?;
    let count: u32 = best.policy.strip_prefix("static:")?.split('/').next()?.parse().ok()?;
    let backups = machines - count;
    let fewer = format!("static:{}/abort", count.saturating_sub(1));
    let fewer = rows.iter().find(|row| row.policy == fewer);
    let more = match fewer {
        None => "more backups were not tried",
        // Among equally fast counts the largest was chosen.
        Some(row) if seconds(row) == seconds(best) => {
            "more backups are as fast, but use fewer samples"
        }
        Some(_) => "more backups lose more in samples than they gain in time",
    };
    let Some(without) = seconds(none).filter(|_| none.reached == none.seeds) else {
        return Some(format!(
            "{}: of {machines} machines N = {count} should count and b = {backups} be backups: \
             {:.1} s to the target, which waiting for all does not reach with every seed; {more}",
            none.scenario,
            seconds(best)?
        ));
    };
    let best = seconds(best)?;
    Some(match backups {
        0 => {
            let why = match fewer {
                None => "backups were not tried",
                Some(row) if seconds(row) == Some(best) => {
                    "backups are as fast, but use fewer samples"
                }
                Some(_) => "waiting for the last machine costs less than its samples gain",
            };
            format!("{}: all {machines} machines should count, no backups: {why}", none.scenario)
        }
        _ => format!(
            "{}: of {machines} machines N = {count} should count and b = {backups} be backups: \
             {best:.1} s to the target instead of {without:.1} s with none ({:.2}×); {more}",
            none.scenario,
            without / best
        ),
    })
}
