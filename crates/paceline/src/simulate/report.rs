//! The HTML page of a study: a table, and the cutoff over time for each policy.

use paceline_report::{Axis, LineChart, Page, Section, Series, Table};

use super::{
    study::ReplayRow,
    text::{FigureRange, by_policy},
};

/// Most points of a line; more are averaged over neighbouring rounds.
const POINTS: usize = 600;

/// A page on replays, with one section per trace.
pub struct SimulationReport {
    page: Page,
}

impl SimulationReport {
    /// A page without traces.
    #[expect(clippy::new_without_default, reason = "a page is filled after it is made")]
    pub fn new() -> SimulationReport {
        SimulationReport { page: Page::new("Paceline: policies on these run-times") }
    }

    /// Adds the replays of one trace.
    pub fn add(&mut self, rows: &[ReplayRow]) {
        let Some(first) = rows.first() else { return };
        let lead = format!(
            "{} workers, {} rounds, stragglers {}. Best fixed count in hindsight: {} ({:.3}× full \
             sync); oracle {:.3}×.",
            first.workers,
            first.rounds,
            first.straggler,
            first.best_static_count,
            first.best_static_rate / first.full_rate,
            first.oracle_rate / first.full_rate,
        );
        let section = Section::new(&first.trace)
            .lead(&lead)
            .table(&table(rows))
            .chart(&over_time("Cutoff over time (seed 0)", "contributions", rows, |r| r.accepted))
            .chart(&over_time("Length of rounds (seed 0)", "seconds", rows, |r| r.seconds));
        let page = std::mem::replace(&mut self.page, Page::new(""));
        self.page = page.section(section);
    }

    /// The page.
    pub fn page(self) -> Page {
        self.page
    }
}

fn table(rows: &[ReplayRow]) -> Table {
    let mut table = Table::new([
        "policy",
        "of full sync",
        "worst",
        "best",
        "of oracle",
        "of best static",
        "accepted",
        "variation",
    ]);
    for (name, rows) in by_policy(rows) {
        let full = FigureRange::from_rows(&rows, |row| row.of_full);
        let mean = |figure: fn(&ReplayRow) -> f64| FigureRange::from_rows(&rows, figure).mean;
        table.row(vec![
            name.to_owned(),
            format!("{:.3}×", full.mean),
            format!("{:.3}", full.least),
            format!("{:.3}", full.most),
            format!("{:.3}", mean(|row| row.of_oracle)),
            format!("{:.3}", mean(|row| row.of_best_static)),
            format!("{:.1} %", 100.0 * mean(|row| row.accepted_share)),
            format!("{:.3}", mean(|row| row.variation)),
        ]);
    }
    table
}

fn over_time(
    title: &str,
    unit: &str,
    rows: &[ReplayRow],
    figure: fn(&paceline_sim::RoundOutcome) -> f64,
) -> LineChart {
    let series = rows.iter().filter(|row| row.seed == 0).map(|row| {
        let values: Vec<f64> = row.outcome.rounds.iter().map(figure).collect();
        let stride = values.len().div_ceil(POINTS).max(1);
        let points = values.chunks(stride).enumerate().map(|(i, chunk)| {
            ((i * stride) as f64, chunk.iter().sum::<f64>() / chunk.len() as f64)
        });
        Series::line(row.policy.clone(), points.collect())
    });
    LineChart {
        title: title.to_owned(),
        x: Axis::linear("round"),
        y: Axis::linear(unit),
        series: series.collect(),
        ..LineChart::default()
    }
}
