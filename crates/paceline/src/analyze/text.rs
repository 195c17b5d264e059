//! The text of an analysis for a terminal: three summary lines, then details that fit on a screen.

use std::fmt::Write;

use paceline_analysis::{Analysis, CutoffPoint};
use paceline_report::short;

use super::words::{
    change, headline, names, percent, shift, slow_workers, slowness, span, sure, times,
};

/// Most rows of a table.
const ROWS: usize = 5;

/// An analysis as text for a terminal.
pub fn text(analysis: &Analysis) -> String {
    let parts = [
        run_times(analysis),
        cutoffs(analysis),
        workers(analysis),
        groups(analysis),
        changes(analysis),
    ];
    format!("{}\n\n{}", headline(analysis).join("\n"), parts.join("\n"))
}

fn run_times(analysis: &Analysis) -> String {
    let Analysis { spread, unit, .. } = analysis;
    let (tail, slowest) = (&spread.tail, &spread.slowest);
    let mut text = format!(
        "run-times   median {}, mean {}{}\n",
        span(spread.median, unit),
        span(spread.mean, unit),
        if *unit == "relative" { " (relative units: savings are ratios)" } else { "" }
    );
    let _ = writeln!(
        text,
        "spread      {} within a round; workers differ by ± {}, the cluster over time by ± {}",
        percent(spread.within_rounds),
        percent(spread.between_workers),
        percent(spread.over_time)
    );
    let _ = writeln!(
        text,
        "tail        p90 {}, p99 {}, p99.9 {}, longest {} the round's median",
        times(tail.p90),
        times(tail.p99),
        times(tail.p999),
        times(tail.max)
    );
    let _ = writeln!(
        text,
        "slowest     half of all rounds wait for {} the median, one in ten for {}",
        times(slowest.p50),
        times(slowest.p90)
    );
    if spread.absent > 0.0 {
        let _ = writeln!(text, "absent      {} of cells", percent(spread.absent));
    }
    if let Some(censoring) = &analysis.censoring {
        let _ = writeln!(
            text,
            "censored    {} of run-times are lower bounds: ranges go from `ended there` to `took as \
             long as the longest`",
            percent(censoring.share)
        );
    }
    if let Some(partial) = &analysis.partial {
        let _ = writeln!(
            text,
            "deadlines   {} micro-batches: keeping partial work at {} gives {}, at each round's best \
             {}, perfect balance {}",
            partial.micro_batches,
            span(partial.deadline, unit),
            times(partial.fixed_gain),
            times(partial.oracle_gain),
            times(partial.balance_gain)
        );
    }
    text
}

fn cutoffs(analysis: &Analysis) -> String {
    let noise = match analysis.noise_scale == analysis.workers as f64 {
        true => "n".to_owned(),
        false => short(analysis.noise_scale),
    };
    let rows = chosen(analysis).into_iter().map(|cutoff| {
        let best = cutoff.count == analysis.cost.fixed.count;
        vec![
            format!("{}{}", cutoff.count, if best { " *" } else { "  " }),
            span(cutoff.wait, analysis.unit),
            times(cutoff.against_full),
            times(cutoff.progress_against_full),
        ]
    });
    let progress = format!("progress/s (noise {noise})");
    table(["wait for  ", "takes", "samples/s", &progress], rows.collect())
}

/// A few cutoffs that show the curve: shares of the workers, the last ones, the best.
fn chosen(analysis: &Analysis) -> Vec<&CutoffPoint> {
    let n = analysis.workers as f64;
    let mut counts: Vec<usize> = [0.5, 0.75, 0.9, 0.97]
        .iter()
        .map(|share| (share * n).round().max(1.0) as usize)
        .chain([analysis.workers.saturating_sub(1).max(1), analysis.workers])
        .chain([analysis.cost.fixed.count])
        .collect();
    counts.sort_unstable();
    counts.dedup();
    let nearest =
        |count: usize| analysis.cutoffs.iter().min_by_key(|cutoff| cutoff.count.abs_diff(count));
    let mut chosen: Vec<&CutoffPoint> = counts.into_iter().filter_map(nearest).collect();
    chosen.dedup_by_key(|cutoff| cutoff.count);
    chosen
}

fn workers(analysis: &Analysis) -> String {
    let ranking = &analysis.ranking;
    let rows = ranking.workers.iter().take(ROWS).map(|worker| {
        let (low, high) = worker.interval.unwrap_or((f64::NAN, f64::NAN));
        let known = worker.interval.is_some();
        vec![
            clipped(&worker.worker),
            slowness(worker),
            if known { format!("{low:.2}–{high:.2}") } else { "?".to_owned() },
            worker.probability.map_or("?".to_owned(), sure),
            percent(worker.last),
            times(worker.slowdown),
        ]
    });
    let head = ["slowest workers", "takes", "95 %", "slower?", "last", "S_w"];
    table(head, rows.collect()) + &slow_workers(ranking, 4) + "\n"
}

fn groups(analysis: &Analysis) -> String {
    let groups = &analysis.groups.groups;
    if groups.is_empty() {
        return "groups      none: no workers move together\n".to_owned();
    }
    let mut text = format!("groups      {} that move together\n", groups.len());
    for group in groups.iter().take(ROWS) {
        let _ = writeln!(
            text,
            "  {} workers ({}): correlation {:.2}, because of them full sync took {} as long",
            group.workers.len(),
            names(&group.workers, 4),
            group.correlation,
            times(group.slowdown)
        );
    }
    text + &more(groups.len(), ROWS)
}

fn changes(analysis: &Analysis) -> String {
    let changes = &analysis.changes;
    let cluster = changes.typical.iter().map(|c| change(c, "the typical run-time"));
    let slowest = changes.slowest.iter().map(|c| change(c, "the slowest of a round"));
    let workers = changes.workers.iter().map(|s| shift(s, 4));
    let all: Vec<String> = cluster.chain(slowest).chain(workers).collect();
    if all.is_empty() {
        return "changes     none: no worker became slower or faster for good\n".to_owned();
    }
    let shown: String = all.iter().take(ROWS).map(|line| format!("  {line}\n")).collect();
    format!("changes     {}\n{shown}{}", all.len(), more(all.len(), ROWS))
}

fn more(all: usize, shown: usize) -> String {
    match all > shown {
        true => format!("  … and {} more (--json has all)\n", all - shown),
        false => String::new(),
    }
}

/// A name cut to the width of a column.
fn clipped(name: &str) -> String {
    match name.char_indices().nth(20) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// A table of columns under their heads, the first aligned left.
fn table<const N: usize>(head: [&str; N], rows: Vec<Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let all: Vec<&Vec<String>> = [&head].into_iter().chain(&rows).collect();
    let width =
        |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in all {
        let _ = write!(text, "{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}
