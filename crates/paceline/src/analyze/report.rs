//! The HTML page of an analysis.

use paceline_analysis::{Analysis, CutoffPoint, Shift};
use paceline_report::{Axis, Heatmap, HeatmapCell, LineChart, Page, Section, Series, Table, short};
use paceline_trace::{Cell, Trace};

use crate::traces::WAITS_INCLUDED;

use super::words::{
    change, counted, headline, names, percent, shift, slow_workers, slowness, span, sure, times,
};

/// Most rows of a table.
const ROWS: usize = 20;

/// A page on analyses, trace by trace.
pub struct AnalysisReport {
    title: String,
    sections: Vec<Section>,
}

impl AnalysisReport {
    /// A page without traces.
    #[expect(clippy::new_without_default, reason = "a page is filled after it is made")]
    pub fn new() -> AnalysisReport {
        AnalysisReport { title: String::new(), sections: Vec::new() }
    }

    /// Adds the analysis of one trace.
    pub fn add(&mut self, trace: &Trace, analysis: &Analysis) {
        self.title = match self.title.is_empty() {
            true => format!("What stragglers cost: {}", analysis.name),
            false => "What stragglers cost".to_owned(),
        };
        let [cost, fixed, most] = headline(analysis);
        let summary = Section::new("").lead(&cost).lead(&fixed).lead(&most);
        let summary = match analysis.waits_included {
            true => summary.text(&format!("Warning: {WAITS_INCLUDED}.")),
            false => summary,
        };
        self.sections.extend([
            summary.table(&facts(analysis)),
            Section::new("Run-times")
                .heatmap(&heatmap(trace))
                .chart(&over_time(trace, analysis))
                .chart(&tail(analysis)),
            charts(analysis),
            workers(analysis),
            together(analysis),
        ]);
    }

    /// The page.
    pub fn page(self) -> Page {
        let notes = Section::new("How to read this")
            .note(
                "Rates are contributions per unit of time over the whole trace. The best fixed cutoff \
                 and the best cutoff of each round are found in hindsight: no policy knows them in \
                 advance, and no cutoff of whole workers can exceed the latter.",
            )
            .note(
                "A worker's slowness is its mean run-time in the logarithm against the round's median, \
                 less that of the typical worker; intervals are by batch means, which allow for \
                 autocorrelation. S_w is the time of full sync over the time it would have taken \
                 had this worker been as fast as the others.",
            )
            .note(
                "Groups are workers whose run-times correlate more than any two would by chance. \
                 Changes of level are found by the CUSUM test in binary segmentation with a \
                 long-run variance, at one false alarm in a hundred traces for steady noise.",
            );
        let page = self.sections.into_iter().fold(Page::new(self.title), Page::section);
        page.section(notes)
    }
}

fn facts(analysis: &Analysis) -> Table {
    let Analysis { spread, unit, .. } = analysis;
    let mut table = Table::new(["", ""]).ending_in_text();
    let tail = &spread.tail;
    let mut fact = |name: &str, value: String| table.row([name.to_owned(), value]);
    fact("run-time", {
        let note = if *unit == "relative" { " (relative units)" } else { "" };
        format!("median {}, mean {}{note}", span(spread.median, unit), span(spread.mean, unit))
    });
    fact("spread", {
        let (within, workers) = (percent(spread.within_rounds), percent(spread.between_workers));
        let time = percent(spread.over_time);
        format!("{within} within a round; workers differ by ± {workers}, over time ± {time}")
    });
    fact("tail, over the round's median", {
        let [p90, p99, p999, max] = [tail.p90, tail.p99, tail.p999, tail.max].map(times);
        format!("p90 {p90}, p99 {p99}, p99.9 {p999}, longest {max}")
    });
    if spread.absent > 0.0 {
        fact("absent", format!("{} of cells", percent(spread.absent)));
    }
    if let Some(censoring) = &analysis.censoring {
        fact("censored", {
            let share = percent(censoring.share);
            format!(
                "{share} of run-times are lower bounds; ranges go from `it ended there` to `it took \
                 as long as the longest`"
            )
        });
    }
    if let Some(partial) = &analysis.partial {
        let gains = [partial.fixed_gain, partial.oracle_gain, partial.balance_gain].map(times);
        let [fixed, oracle, balance] = gains;
        fact("deadlines that keep partial work", {
            let deadline = span(partial.deadline, unit);
            format!(
                "{fixed} at {deadline}, {oracle} at each round's best, {balance} if work were \
                 balanced ({} micro-batches)",
                partial.micro_batches
            )
        });
    }
    table
}

fn heatmap(trace: &Trace) -> Heatmap {
    let scale = 1.0 / trace.median().max(f64::MIN_POSITIVE);
    let size = (trace.workers().len(), trace.rounds());
    let mut heatmap =
        Heatmap::new("Every worker in every round", size, |worker, round| {
            match trace.cell(round, worker) {
                Cell::Absent => HeatmapCell::Absent,
                Cell::Observed(x) => HeatmapCell::Value(x * scale),
                Cell::Censored(x) => HeatmapCell::LowerBound(x * scale),
            }
        });
    heatmap.x = "round".into();
    heatmap.y = "worker".into();
    heatmap.values = "run-time over the median".into();
    heatmap
}

fn over_time(trace: &Trace, analysis: &Analysis) -> LineChart {
    let (mut row, mut typical, mut slowest) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..trace.rounds() {
        row.clear();
        row.extend(trace.row(round).filter_map(Cell::bound));
        if !row.is_empty() {
            let middle = row.len() / 2;
            typical.push((round as f64, *row.select_nth_unstable_by(middle, f64::total_cmp).1));
            slowest.push((round as f64, row.iter().copied().fold(0.0, f64::max)));
        }
    }
    let shifts = analysis.changes.workers.iter().take(3);
    LineChart {
        title: "The slowest of a round, which full sync waits for".into(),
        x: Axis::linear("round"),
        y: Axis::log(format!("run-time, {}", analysis.unit)),
        series: vec![Series::line("slowest", slowest), Series::line("median", typical)],
        marks: shifts.map(|s| (s.round as f64, mark(s))).collect(),
    }
}

fn mark(shift: &Shift) -> String {
    format!("{} {}", counted(shift.workers.len(), "worker"), times(shift.factor))
}

fn charts(analysis: &Analysis) -> Section {
    Section::new("What a cutoff would give")
        .chart(&rates(analysis))
        .chart(&order_statistics(analysis))
}

fn curve(analysis: &Analysis, height: impl Fn(&CutoffPoint) -> f64) -> Vec<(f64, f64)> {
    analysis.cutoffs.iter().map(|cutoff| (cutoff.count as f64, height(cutoff))).collect()
}

fn rates(analysis: &Analysis) -> LineChart {
    let fixed = &analysis.cost.fixed;
    LineChart {
        title: "Rate against the cutoff, full sync = 1".into(),
        x: Axis::linear("workers waited for"),
        y: Axis::linear("over full sync"),
        series: vec![
            Series::line("samples per time", curve(analysis, |c| c.against_full)),
            Series::dashed(
                format!("progress per time, noise {}", short(analysis.noise_scale)),
                curve(analysis, |c| c.progress_against_full),
            ),
            Series::level("best cutoff of each round (samples)", analysis.cost.oracle.gain),
        ],
        marks: vec![(fixed.count as f64, format!("best: {}", fixed.count))],
    }
}

fn order_statistics(analysis: &Analysis) -> LineChart {
    let band = analysis.cutoffs.iter().map(|c| (c.count as f64, c.wait_p10, c.wait_p90)).collect();
    LineChart {
        title: "Time until a count of workers has arrived".into(),
        x: Axis::linear("workers waited for"),
        y: Axis::log(format!("run-time, {}", analysis.unit)),
        series: vec![
            Series::band("eight rounds of ten", band),
            Series::line("mean", curve(analysis, |c| c.wait)),
        ],
        marks: Vec::new(),
    }
}

fn tail(analysis: &Analysis) -> LineChart {
    LineChart {
        title: "How often it takes longer".into(),
        x: Axis::log("run-time over the round's median"),
        y: Axis::log("share that is longer"),
        series: vec![
            Series::line("a worker", analysis.survival.run_times.points.clone()),
            Series::line("the slowest of a round", analysis.survival.slowest.points.clone()),
        ],
        marks: Vec::new(),
    }
}

fn workers(analysis: &Analysis) -> Section {
    let ranking = &analysis.ranking;
    let head = ["worker", "takes", "95 % interval", "slower with", "last in", "S_w", "surely slow"];
    let mut table = Table::new(head);
    for worker in ranking.workers.iter().take(ROWS) {
        let interval = worker.interval.map(|(low, high)| format!("{low:.2}–{high:.2}"));
        table.row([
            worker.worker.clone(),
            slowness(worker),
            interval.unwrap_or_else(|| "?".into()),
            worker.probability.map_or("?".into(), sure),
            percent(worker.last),
            times(worker.slowdown),
            if worker.slow { "yes".into() } else { "–".into() },
        ]);
    }
    let section = Section::new("Slowest workers")
        .text(&format!("In all: {}.", slow_workers(ranking, 8)))
        .table(&table);
    match ranking.workers.len() > ROWS {
        true => section.note(&format!("The {ROWS} slowest; --json has all.")),
        false => section,
    }
}

fn together(analysis: &Analysis) -> Section {
    let groups = &analysis.groups;
    let section = Section::new("Groups and changes");
    let section = match groups.groups.is_empty() {
        true => section.text("No workers move together."),
        false => {
            let mut table =
                Table::new(["group", "correlation", "full sync took", "workers"]).ending_in_text();
            for group in groups.groups.iter().take(ROWS) {
                table.row([
                    format!("{} workers", group.workers.len()),
                    format!("{:.2}", group.correlation),
                    times(group.slowdown),
                    names(&group.workers, 8),
                ]);
            }
            section.text("Workers whose run-times move together:").table(&table)
        }
    };
    let changes = &analysis.changes;
    let cluster = changes.typical.iter().map(|c| change(c, "the typical run-time"));
    let slowest = changes.slowest.iter().map(|c| change(c, "the slowest of a round"));
    let shifts = changes.workers.iter().map(|s| shift(s, 8));
    let all: Vec<String> = cluster.chain(slowest).chain(shifts).take(ROWS).collect();
    match all.is_empty() {
        true => section.text("No worker became slower or faster for good."),
        false => all.iter().fold(section, |section, line| section.text(line)),
    }
}
