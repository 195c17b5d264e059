//! Bench `dataplane`: the data plane against the machine's limits and against peers.

mod blocks;
mod exchange;
mod fold;
mod hosts;
mod incast;
mod peers;
mod scaling;
mod threads;
mod weak;

use std::fmt::Write as _;

use anyhow::Result;

use crate::{paceline::Paceline, report::Report, stats::median};

pub(crate) fn run(report: &mut Report) -> Result<()> {
    let paceline = Paceline::build()?;
    type BenchPart = fn(&Paceline, &mut Report) -> Result<()>;
    let parts: [(&str, BenchPart); 8] = [
        ("fold", fold::run),
        ("exchange", exchange::run),
        ("hosts", hosts::run),
        ("blocks", blocks::run),
        ("weak", weak::run),
        ("accuracy", weak::accuracy),
        ("incast", incast::run),
        ("scaling", scaling::run),
    ];
    for (name, part) in parts {
        if report.wants(name) {
            part(&paceline, report)?;
        }
    }
    Ok(())
}

/// A system measured in turn with others: seconds per round.
struct Contestant<'a> {
    name: String,
    seconds: Box<dyn Fn() -> Result<f64> + 'a>,
}

impl<'a> Contestant<'a> {
    fn new(name: impl Into<String>, seconds: impl Fn() -> Result<f64> + 'a) -> Self {
        Contestant { name: name.into(), seconds: Box::new(seconds) }
    }
}

/// The contestants, with all their measurements.
struct Contest {
    names: Vec<String>,
    turns: Vec<Vec<f64>>,
}

impl Contest {
    fn hold(pairs: usize, contestants: &[Contestant<'_>]) -> Result<Self> {
        let turns = crate::stats::interleaved(pairs, contestants.len(), |who| {
            let Contestant { name, seconds } = &contestants[who];
            let seconds = seconds()?;
            eprintln!("   {name}: {:.1} ms", seconds * 1e3);
            Ok(seconds)
        })?;
        Ok(Contest { names: contestants.iter().map(|c| c.name.clone()).collect(), turns })
    }

    fn turns(&self, name: &str) -> Option<&[f64]> {
        let who = self.names.iter().position(|other| other == name)?;
        Some(&self.turns[who])
    }

    /// A table with one row per contestant: median, best and worst in milliseconds, and the ratio to
    /// the `last` one.
    fn table(&self, title: &str, last: &str) -> String {
        let mut text = format!(
            "## {title}\n\n| | ms, median | best | worst | over {last} |\n|---|---|---|---|---|\n"
        );
        let limit = self.turns(last).unwrap_or_default();
        for (name, turns) in self.names.iter().zip(&self.turns) {
            let end = |pick: fn(f64, f64) -> f64| {
                turns.iter().copied().reduce(pick).unwrap_or(f64::NAN) * 1e3
            };
            let over = crate::stats::ratio(limit, turns).mean;
            let _ = writeln!(
                text,
                "| {name} | {:.1} | {:.1} | {:.1} | {over:.3} |",
                median(turns) * 1e3,
                end(f64::min),
                end(f64::max)
            );
        }
        text
    }
}
