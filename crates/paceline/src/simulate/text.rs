//! The text of a study: a table of policies, in the order given.

use std::fmt::Write;

use paceline_report::short;

use super::study::ReplayRow;

/// Mean, worst and best of one figure over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FigureRange {
    pub(super) mean: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl FigureRange {
    pub(super) fn from_rows(
        rows: &[&ReplayRow],
        figure: impl Fn(&ReplayRow) -> f64,
    ) -> FigureRange {
        let values = || rows.iter().map(|row| figure(row));
        FigureRange {
            mean: values().sum::<f64>() / rows.len().max(1) as f64,
            least: values().fold(f64::INFINITY, f64::min),
            most: values().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// The rows of each policy, in the order given.
pub(super) fn by_policy(rows: &[ReplayRow]) -> Vec<(&str, Vec<&ReplayRow>)> {
    let mut policies: Vec<(&str, Vec<&ReplayRow>)> = Vec::new();
    for row in rows {
        match policies.iter_mut().find(|(name, _)| *name == row.policy) {
            Some((_, rows)) => rows.push(row),
            None => policies.push((&row.policy, vec![row])),
        }
    }
    policies
}

/// The replays of one trace as text, with the share of its run-times that are lower bounds.
pub fn text(rows: &[ReplayRow], censored: f64) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut text = format!(
        "{}: {} workers, {} rounds, stragglers {}{}\n",
        first.trace,
        first.workers,
        first.rounds,
        first.straggler,
        match first.overhead > 0.0 {
            true => format!(", {} s between rounds", short(first.overhead)),
            false => String::new(),
        }
    );
    let _ = writeln!(
        text,
        "full sync {}/s; best fixed count in hindsight {} ({:.3}×); oracle {:.3}×",
        short(first.full_rate),
        first.best_static_count,
        first.best_static_rate / first.full_rate,
        first.oracle_rate / first.full_rate,
    );
    text += &lower_bounds(censored);
    let policies = by_policy(rows);
    let width = policies.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "\n{:width$}  {:>9} {:>15}  {:>9} {:>11} {:>8} {:>9} {:>10}",
        "policy",
        "of full",
        "(worst, best)",
        "of oracle",
        "best static",
        "accepted",
        "variation",
        "decide p99"
    );
    for (name, rows) in policies {
        let full = FigureRange::from_rows(&rows, |row| row.of_full);
        let mean = |figure: fn(&ReplayRow) -> f64| FigureRange::from_rows(&rows, figure).mean;
        let _ = writeln!(
            text,
            "{name:width$}  {:>8.3}× {:>15}  {:>9.3} {:>11.3} {:>7.1} % {:>9.3} {:>7.0} µs",
            full.mean,
            format!("({:.3}, {:.3})", full.least, full.most),
            mean(|row| row.of_oracle),
            mean(|row| row.of_best_static),
            100.0 * mean(|row| row.accepted_share),
            mean(|row| row.variation),
            mean(|row| row.decide_us_p99),
        );
    }
    text
}

/// A line about the share of run-times that are lower bounds, if there are any.
pub(super) fn lower_bounds(censored: f64) -> String {
    match censored > 0.0 {
        true => format!(
            "{:.1} % of the run-times are lower bounds and were replayed as such: rates are optimistic\n",
            100.0 * censored
        ),
        false => String::new(),
    }
}
