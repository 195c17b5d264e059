//! The results of a bench: on the terminal, in `docs/bench`, and as JSON.

use std::{fmt::Write as _, fs};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{machine, paceline::workspace};

/// One measured figure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    name: String,
    value: Option<f64>,
    goal: String,
    holds: Option<bool>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    /// Why the measurement has no verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip)]
    note: String,
}

/// The figures of one bench, in order of measurement.
pub(crate) struct Report {
    bench: String,
    quick: bool,
    only: Option<String>,
    figures: Vec<Figure>,
    /// Markdown that follows the figures.
    sections: Vec<String>,
}

impl Report {
    pub(crate) fn new(bench: &str, quick: bool, only: Option<String>) -> Self {
        Report { bench: bench.to_owned(), quick, only, figures: Vec::new(), sections: Vec::new() }
    }

    pub(crate) fn quick(&self) -> bool {
        self.quick
    }

    /// Whether a part of the bench was requested; prints that it begins. `slow` requests `slow-cnn` as well.
    pub(crate) fn wants(&self, part: &str) -> bool {
        let is_in = |only: &str| {
            part.strip_prefix(only).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let wanted = self.only.as_deref().is_none_or(is_in);
        if wanted {
            eprintln!("== {part}");
        }
        wanted
    }

    /// A figure that must be at least `goal`.
    pub(crate) fn at_least(&mut self, name: &str, value: f64, goal: f64, note: impl Into<String>) {
        self.add(name, value, format!(">= {goal}"), value >= goal, note.into());
    }

    /// A figure that must be at most `goal`.
    pub(crate) fn at_most(&mut self, name: &str, value: f64, goal: f64, note: impl Into<String>) {
        self.add(name, value, format!("<= {goal}"), value <= goal, note.into());
    }

    /// A condition that must hold: 1 if it does.
    pub(crate) fn must(&mut self, name: &str, holds: bool, note: impl Into<String>) {
        self.add(name, f64::from(u8::from(holds)), "yes".to_owned(), holds, note.into());
    }

    /// A figure without a goal.
    pub(crate) fn tell(&mut self, name: &str, value: f64, note: impl Into<String>) {
        let note = note.into();
        eprintln!("{name}: {value:.4} {note}");
        self.figures.push(Figure {
            name: name.to_owned(),
            value: Some(value),
            goal: "stated".to_owned(),
            holds: None,
            skipped: None,
            reason: Some("to be stated; no goal is set for it".to_owned()),
            note,
        });
    }

    /// A table or text after the figures.
    pub(crate) fn section(&mut self, markdown: String) {
        eprintln!("{markdown}");
        self.sections.push(markdown);
    }

    /// A figure that this run could not measure.
    pub(crate) fn skip(&mut self, name: &str, goal: &str, why: &str) {
        eprintln!("{name}: skipped, {why}");
        self.figures.push(Figure {
            name: name.to_owned(),
            value: None,
            goal: goal.to_owned(),
            holds: None,
            skipped: Some(why.to_owned()),
            reason: None,
            note: String::new(),
        });
    }

    fn add(&mut self, name: &str, value: f64, goal: String, holds: bool, note: String) {
        let verdict = if holds { "holds" } else { "DOES NOT HOLD" };
        eprintln!("{name}: {value:.4} (goal {goal}: {verdict}) {note}");
        self.figures.push(Figure {
            name: name.to_owned(),
            value: Some(value),
            goal,
            holds: Some(holds),
            skipped: None,
            reason: None,
            note,
        });
    }

    /// Writes `docs/bench/NAME.md` and the JSON line. A quick run does not change the file, and a run of
    /// some parts keeps the others.
    pub(crate) fn finish(self, json: bool) -> Result<()> {
        self.write(self.only.is_some())?;
        if json {
            let line = serde_json::json!({ "bench": self.bench, "figures": self.figures });
            println!("{line}");
        }
        Ok(())
    }

    /// Puts the figures so far into `docs/bench/NAME.md`, so that a long bench that is interrupted keeps
    /// them.
    pub(crate) fn save(&self) -> Result<()> {
        self.write(true)
    }

    fn write(&self, keeps_others: bool) -> Result<()> {
        if self.quick {
            return Ok(());
        }
        let dir = workspace().join("docs/bench");
        let path = dir.join(format!("{}.md", self.bench));
        fs::create_dir_all(dir)?;
        let old = keeps_others.then(|| fs::read_to_string(&path).ok()).flatten();
        let text = old.and_then(|old| merged(&old, &self.markdown()));
        fs::write(&path, text.unwrap_or_else(|| self.markdown()))
            .with_context(|| format!("failed to write {}", path.display()))
    }

    fn markdown(&self) -> String {
        let mut text = format!(
            "# Bench `{0}`\n\n`cargo run --release -p bench -- {0}`, on {1}. Each figure names the commit \
             that it was measured at.\n\n| figure | value | goal | holds | commit | |\n{RULE}",
            self.bench,
            machine::describe(),
        );
        let commit = machine::commit();
        for figure in &self.figures {
            let value = figure.value.map_or("–".to_owned(), digits);
            let holds = match figure.holds {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "–",
            };
            let note = figure.skipped.as_deref().unwrap_or(&figure.note);
            let Figure { name, goal, .. } = figure;
            let _ = writeln!(text, "| {name} | {value} | {goal} | {holds} | {commit} | {note} |");
        }
        for section in &self.sections {
            let _ = write!(text, "\n{section}");
        }
        text
    }
}

/// Four decimals, or a power of ten where these would show nothing.
fn digits(value: f64) -> String {
    match value != 0.0 && value.abs() < 1e-3 {
        true => format!("{value:.1e}"),
        false => format!("{value:.4}"),
    }
}

const RULE: &str = "|---|---|---|---|---|---|\n";

/// The old text with figures and sections replaced by the new ones; additional ones are appended.
fn merged(old: &str, new: &str) -> Option<String> {
    let (_, rest) = old.split_once(RULE)?;
    let (head, measured) = new.split_once(RULE)?;
    let (old_rows, old_sections) = pieces(rest);
    let (new_rows, new_sections) = pieces(measured);
    let name = |row: &str| row.split('|').nth(1).unwrap_or_default().to_owned();
    let title = |section: &str| section.lines().next().unwrap_or_default().to_owned();
    let rows = replaced(old_rows, new_rows, name);
    let sections = replaced(old_sections, new_sections, title);
    let sections: String = sections.iter().map(|section| format!("\n{section}")).collect();
    Some(format!("{head}{RULE}{}\n{sections}", rows.join("\n")))
}

/// The rows of the table of figures, and the sections after it.
fn pieces(text: &str) -> (Vec<String>, Vec<String>) {
    let (table, rest) = text.split_once("\n\n").unwrap_or((text.trim_end(), ""));
    let mut sections: Vec<String> = Vec::new();
    for line in rest.lines() {
        match sections.last_mut() {
            Some(section) if !line.starts_with("## ") => {
                section.push_str(line);
                section.push('\n');
            }
            _ => sections.push(format!("{line}\n")),
        }
    }
    let trimmed = |section: String| format!("{}\n", section.trim_end());
    (table.lines().map(str::to_owned).collect(), sections.into_iter().map(trimmed).collect())
}

fn replaced(old: Vec<String>, new: Vec<String>, key: impl Fn(&str) -> String) -> Vec<String> {
    let mut all = old;
    for new in new {
        match all.iter_mut().find(|old| key(old) == key(&new)) {
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_run_again_replaces_what_there_is_of_it() {
        let mut old = Report::new("test", false, None);
        old.tell("a", 1.0, "first");
        old.tell("b", 1.0, "");
        old.section("## A\n\n| x |\n|---|\n| 1 |\n".to_owned());
        old.section("## B\n\ntext\n".to_owned());
        let mut new = Report::new("test", false, Some("a".to_owned()));
        new.tell("a", 2.0, "second");
        new.tell("c", 3.0, "");
        new.section("## A\n\n| x |\n|---|\n| 2 |\n".to_owned());
        let mut both = Report::new("test", false, None);
        both.tell("a", 2.0, "second");
        both.tell("b", 1.0, "");
        both.tell("c", 3.0, "");
        both.section("## A\n\n| x |\n|---|\n| 2 |\n".to_owned());
        both.section("## B\n\ntext\n".to_owned());
        assert_eq!(merged(&old.markdown(), &new.markdown()).unwrap(), both.markdown());
        assert_eq!(merged("something else", &new.markdown()), None);
    }

    #[test]
    fn a_figure_without_a_verdict_says_why() {
        let mut report = Report::new("test", true, None);
        report.at_least("kept", 2.0, 1.0, "");
        report.tell("stated", 1.0, "");
        report.skip("skipped", ">= 1", "takes too long");
        for figure in &report.figures {
            let json = serde_json::to_value(figure).unwrap();
            let why = json.get("skipped").or(json.get("reason"));
            assert_eq!(json["holds"].is_null(), why.is_some(), "{json}");
        }
    }
}
