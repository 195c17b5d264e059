//! Runs `paceline simulate --json` and summarises its lines.

use std::{
    fs,
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::paceline::Paceline;

/// One line of `simulate --json`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SimulateLine {
    pub(crate) trace: String,
    pub(crate) policy: String,
    pub(crate) of_oracle: f64,
    pub(crate) of_best_static: f64,
    pub(crate) of_full: f64,
    pub(crate) variation: f64,
    pub(crate) decide_us_p99: f64,
    pub(crate) decide_cpu_us_per_round: f64,
}

/// Mean, worst and best over the rows given, usually of several seeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplayRange {
    pub(crate) mean: f64,
    pub(crate) worst: f64,
    pub(crate) best: f64,
}

impl ReplayRange {
    pub(crate) fn from_rows<'a>(
        rows: impl IntoIterator<Item = &'a SimulateLine>,
        figure: impl Fn(&SimulateLine) -> f64,
    ) -> ReplayRange {
        let values: Vec<f64> = rows.into_iter().map(figure).collect();
        ReplayRange {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            worst: values.iter().copied().fold(f64::INFINITY, f64::min),
            best: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Runs a replay, which must succeed.
pub(crate) fn simulate(paceline: &Paceline, args: &[String]) -> Result<Vec<SimulateLine>> {
    Ok(measured(paceline, args)?.rows)
}

/// A replay with its time and memory.
pub(crate) struct Measured {
    pub(crate) rows: Vec<SimulateLine>,
    pub(crate) seconds: f64,
    /// Peak memory, in bytes.
    pub(crate) memory: u64,
}

/// Runs a replay and measures its wall-clock time and its peak memory by the kernel's count.
pub(crate) fn measured(paceline: &Paceline, args: &[String]) -> Result<Measured> {
    let mut all = vec!["simulate", "--json"];
    all.extend(args.iter().map(String::as_str));
    let since = Instant::now();
    let mut child = paceline
        .command(&all)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("failed to start paceline")?;
    let status = format!("/proc/{}/status", child.id());
    let mut stdout = child.stdout.take().context("no output of paceline")?;
    let reader = thread::spawn(move || std::io::read_to_string(&mut stdout));
    let mut memory = 0;
    let code = loop {
        memory = memory.max(peak(&status));
        match child.try_wait()? {
            Some(code) => break code,
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    let seconds = since.elapsed().as_secs_f64();
    let text = reader.join().expect("reading does not panic")?;
    ensure!(code.success(), "`simulate {}` failed", args.join(" "));
    let rows = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(Measured { rows, seconds, memory })
}

fn peak(status: &str) -> u64 {
    let text = fs::read_to_string(status).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Fits a model of run-times to the traces in `args`; returns the time taken.
pub(crate) fn fit(paceline: &Paceline, args: &str, into: &Path) -> Result<Duration> {
    let mut all = words("model fit --json");
    all.extend(words(args));
    all.extend(["-o".to_owned(), into.display().to_string()]);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let since = Instant::now();
    let output = paceline.command(&all).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`model fit {args}` failed: {said}");
    Ok(since.elapsed())
}

/// Splits words into arguments.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
