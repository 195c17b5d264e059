//! Systems measured in turn, and their table.

use std::fmt::Write as _;

use anyhow::Result;

use crate::stats::{interleaved, median, ratio};

/// A system measured in turn with others: seconds per round.
pub(crate) struct Contestant<'a> {
    name: String,
    seconds: Box<dyn Fn() -> Result<f64> + 'a>,
}

impl<'a> Contestant<'a> {
    pub(crate) fn new(name: impl Into<String>, seconds: impl Fn() -> Result<f64> + 'a) -> Self {
        Contestant { name: name.into(), seconds: Box::new(seconds) }
    }
}

/// The contestants, with all their measurements.
pub(crate) struct Contest {
    names: Vec<String>,
    turns: Vec<Vec<f64>>,
}

impl Contest {
    pub(crate) fn hold(pairs: usize, contestants: &[Contestant<'_>]) -> Result<Self> {
        let turns = interleaved(pairs, contestants.len(), |who| {
            let Contestant { name, seconds } = &contestants[who];
            let seconds = seconds()?;
            eprintln!("   {name}: {:.1} ms", seconds * 1e3);
            Ok(seconds)
        })?;
        Ok(Contest { names: contestants.iter().map(|c| c.name.clone()).collect(), turns })
    }

    pub(crate) fn turns(&self, name: &str) -> Option<&[f64]> {
        let who = self.names.iter().position(|other| other == name)?;
        Some(&self.turns[who])
    }

    /// A table with one row per contestant: median, best and worst in milliseconds, and the ratio to
    /// the `last` one.
    pub(crate) fn table(&self, title: &str, last: &str) -> String {
        let mut text = format!(
            "## {title}\n\n| | ms, median | best | worst | over {last} |\n|---|---|---|---|---|\n"
        );
        let limit = self.turns(last).unwrap_or_default();
        for (name, turns) in self.names.iter().zip(&self.turns) {
            let end = |pick: fn(f64, f64) -> f64| {
                turns.iter().copied().reduce(pick).unwrap_or(f64::NAN) * 1e3
            };
            let over = ratio(limit, turns).mean;
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
