//! The HTML page of a comparison.

use paceline_report::{Axis, LineChart, Page, Section, Series, Table};

use crate::{
    study::{ComparisonCase, SweptCount},
    summary::{ComparisonRow, SeedRange},
    target::Target,
    trial::TrialOutcome,
};

/// Most policies per chart, one per colour of the palette.
const LINES: usize = 8;

pub(crate) fn page(
    cases: &[ComparisonCase],
    rows: &[ComparisonRow],
    target: Target,
    notes: &[String],
) -> Page {
    let mut page = Page::new("Paceline: time to accuracy, policy by policy");
    let mut scenarios: Vec<&str> = rows.iter().map(|row| row.scenario.as_str()).collect();
    scenarios.dedup();
    for scenario in scenarios {
        let rows: Vec<&ComparisonRow> =
            rows.iter().filter(|row| row.scenario == scenario).collect();
        let cases: Vec<&ComparisonCase> =
            cases.iter().filter(|case| case.scenario == scenario).collect();
        let bound = rows[0].bound.map_or(String::new(), |bound| {
            format!(" A clairvoyant gets {bound:.2}× full sync's samples per second.")
        });
        let shown = match cases.len() > LINES {
            true => format!(" Charts show the first {LINES} policies."),
            false => String::new(),
        };
        let lead = format!("Target: {target}.{bound}{shown}");
        let mut section = Section::new(scenario).lead(&lead).table(&table(&rows));
        for note in notes.iter().filter(|note| note.starts_with(&format!("{scenario}: "))) {
            section = section.text(note);
        }
        let section = section
            .chart(&over_time("Test accuracy (seed 1)", "share", &cases, |o| &o.accuracies))
            .chart(&over_time("Contributions per round (seed 1)", "workers", &cases, |o| {
                &o.cutoffs
            }))
            .chart(&against_cutoff(&rows))
            .chart(&over_time("Gradient noise scale (seed 1)", "samples", &cases, |o| &o.noise));
        page = page.section(section);
    }
    page
}

fn table(rows: &[&ComparisonRow]) -> Table {
    let mut table = Table::new([
        "policy",
        "seconds to target",
        "best",
        "worst",
        "seeds at target",
        "speed-up over full",
        "of clairvoyant",
        "accuracy at the stop",
        "over full",
        "cutoff",
        "idle",
        "used",
        "salvaged",
        "dropped",
        "requeued",
        "learning rate",
        "cost of samples in updates",
    ]);
    for row in rows {
        let seconds = |figure: fn(&SeedRange) -> f64| {
            row.seconds_to_target.as_ref().map_or("–".to_owned(), |s| format!("{:.1}", figure(s)))
        };
        let name = match row.chosen == row.policy {
            true => row.policy.clone(),
            false => format!("{} ({})", row.policy, row.chosen),
        };
        table.row(vec![
            name,
            seconds(|s| s.mean),
            seconds(|s| s.least),
            seconds(|s| s.most),
            match row.diverged {
                0 => format!("{} of {}", row.reached, row.seeds),
                diverged => format!("{} of {}, {diverged} diverged", row.reached, row.seeds),
            },
            row.speed_up.map_or("–".to_owned(), |speed_up| format!("{:.2}×", speed_up.mean)),
            row.of_bound.map_or("–".to_owned(), |of| format!("{of:.2}")),
            format!("{:.2} %", 100.0 * row.final_accuracy.mean),
            row.accuracy_over_full.map_or("–".to_owned(), |over| format!("{over:+.2}")),
            format!("{:.1}", row.accepted),
            row.idle.map_or("–".to_owned(), |idle| format!("{:.0} %", 100.0 * idle)),
            row.samples.used.to_string(),
            row.samples.salvaged.to_string(),
            row.samples.dropped.to_string(),
            row.samples.requeued.to_string(),
            row.lr.to_string(),
            row.cost_bias.map_or("–".to_owned(), |bias| format!("{:+.1} %", 100.0 * bias)),
        ]);
    }
    table
}

fn over_time(
    title: &str,
    unit: &str,
    cases: &[&ComparisonCase],
    curve: fn(&TrialOutcome) -> &Vec<(f64, f64)>,
) -> LineChart {
    let series = cases.iter().take(LINES).filter_map(|case| {
        let points = curve(case.outcomes.first()?).clone();
        (!points.is_empty()).then(|| Series::line(case.contender.to_string(), points))
    });
    LineChart {
        title: title.to_owned(),
        x: Axis::linear("seconds"),
        y: Axis::linear(unit),
        series: series.collect(),
        ..LineChart::default()
    }
}

/// Progress (targets reached per 1,000 seconds) against the cutoff: one point per policy that reached
/// the target with every seed, and a line through the fixed counts that a sweep tried.
fn against_cutoff(rows: &[&ComparisonRow]) -> LineChart {
    let swept = rows.iter().find_map(|row| {
        let point = |tried: &SweptCount| Some((tried.accepted, 1e3 / tried.seconds_to_target?));
        let mut points: Vec<(f64, f64)> = row.tried.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then(|| Series::line(format!("tried for {}", row.policy), points))
    });
    // A line of one point is a dot.
    let left = LINES - usize::from(swept.is_some());
    let series = rows.iter().take(left).filter(|row| row.reached == row.seeds);
    let series = series.filter_map(|row| {
        let point = (row.accepted, 1e3 / row.seconds_to_target?.mean);
        Some(Series::line(row.policy.clone(), vec![point, point]))
    });
    LineChart {
        title: "Progress against cutoff, one point per policy".to_owned(),
        x: Axis::linear("contributions per round"),
        y: Axis::linear("targets per 1,000 s"),
        series: swept.into_iter().chain(series).collect(),
        ..LineChart::default()
    }
}
