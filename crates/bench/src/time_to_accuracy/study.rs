//! Runs `paceline compare` and reads its output.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{COMMON, CompareStudy};
use crate::paceline::{Paceline, workspace};

/// One line of `compare --json`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct CompareLine {
    pub(super) scenario: String,
    pub(super) policy: String,
    chosen: String,
    lr: f32,
    seeds: usize,
    reached: usize,
    seconds_to_target: Option<LineSpread>,
    seconds_by_seed: Vec<Option<f64>>,
    pub(super) speed_up: Option<LineSpread>,
    bound: Option<f64>,
    pub(super) of_bound: Option<f64>,
    pub(super) samples_per_s: f64,
    pub(super) samples_of_bound: Option<f64>,
    final_accuracy: LineSpread,
    accuracy_by_seed: Vec<f64>,
    accepted: f64,
    idle: Option<f64>,
    pub(super) cost_bias: Option<f64>,
    salvaged: u64,
    used: u64,
    dropped: u64,
    pub(super) ledger_balanced: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct LineSpread {
    pub(super) mean: f64,
    least: f64,
    most: f64,
}

impl CompareLine {
    /// Mean time to the target, if every seed reached it.
    pub(super) fn seconds(&self) -> Option<f64> {
        let all = self.reached == self.seeds;
        self.seconds_to_target.filter(|_| all).map(|seconds| seconds.mean)
    }

    /// Time to the target by seed; NaN if it was not reached.
    pub(super) fn times(&self) -> Vec<f64> {
        self.seconds_by_seed.iter().map(|seconds| seconds.unwrap_or(f64::NAN)).collect()
    }

    /// Final accuracies, in points, seed by seed.
    pub(super) fn accuracies(&self) -> Vec<f64> {
        self.accuracy_by_seed.iter().map(|accuracy| 100.0 * accuracy).collect()
    }

    /// Final accuracy, in points.
    pub(super) fn points(&self) -> f64 {
        100.0 * self.final_accuracy.mean
    }

    /// The scenario, for the name of a figure.
    pub(super) fn short(&self) -> String {
        match self.scenario.strip_prefix("trace:") {
            Some(_) => "trace".to_owned(),
            None => self.scenario.replace(':', "-"),
        }
    }
}

/// Results stay in the target folder, so that an interrupted bench resumes.
pub(super) fn compare(paceline: &Paceline, study: &CompareStudy) -> Result<Vec<CompareLine>> {
    let folder = study.name.trim_end_matches("-others");
    let out = workspace().join("target/time-to-accuracy").join(folder);
    let mut args = vec!["compare", "--json", "--policies", study.policies];
    let (seeds, tune_seeds) = (study.seeds.to_string(), study.tune_seeds.to_string());
    args.extend(["--seeds", &seeds, "--tune-seeds", &tune_seeds]);
    args.extend(COMMON.split_whitespace().chain(study.flags.split_whitespace()));
    for scenario in study.scenarios {
        if let Some(path) = scenario.strip_prefix("trace:")
            && !workspace().join(path).is_file()
        {
            eprintln!("{scenario} is not there: skipped");
            continue;
        }
        args.extend(["--scenario", scenario]);
    }
    let out = out.display().to_string();
    args.extend(["--out", &out]);
    let output = paceline
        .command(&args)
        .current_dir(workspace())
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "`compare` failed");
    let lines = String::from_utf8(output.stdout)?;
    let rows = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    rows.context("failed to read what compare printed")
}

pub(super) fn table(name: &str, rows: &[CompareLine]) -> String {
    let mut text = format!(
        "## {name}\n\nSeconds to the target, mean (best–worst) over seeds; a worker that nothing \
         disturbs takes a second for its round. *Bound*: samples a second of a clairvoyant over full \
         sync's. Accuracies are those at the stop.\n\n| scenario | policy | seconds | sooner than full | \
         of bound | samples/s | of bound | accuracy | cutoff | idle | salvaged | dropped | learning \
         rate |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for row in rows {
        let seconds = row
            .seconds_to_target
            .map_or("–".to_owned(), |s| format!("{:.1} ({:.1}–{:.1})", s.mean, s.least, s.most));
        let missed = match row.reached == row.seeds {
            true => String::new(),
            false => format!(", {} of {} seeds", row.reached, row.seeds),
        };
        let chosen = match row.chosen == row.policy {
            true => String::new(),
            false => format!(" ({})", row.chosen),
        };
        let or_dash = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
        let _ = writeln!(
            text,
            "| {} (bound {}) | {}{chosen} | {seconds}{missed} | {} | {} | {:.1} | {} | {:.2} % | {:.1} \
             | {} | {:.1} % | {} | {} |",
            row.short(),
            or_dash(row.bound),
            row.policy,
            or_dash(row.speed_up.map(|speed_up| speed_up.mean)),
            or_dash(row.of_bound),
            row.samples_per_s,
            or_dash(row.samples_of_bound),
            100.0 * row.final_accuracy.mean,
            row.accepted,
            or_dash(row.idle),
            100.0 * row.salvaged as f64 / row.used.max(1) as f64,
            row.dropped,
            row.lr
        );
    }
    text
}
