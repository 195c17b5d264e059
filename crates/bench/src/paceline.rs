//! The program that is measured: built first, then run as users run it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use paceline_core::{Event, EventKind};
use serde_json::Value;

/// The project's root.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The release binary and a folder for its runs, removed at the end.
pub(crate) struct Paceline {
    exe: PathBuf,
    runs: tempfile::TempDir,
}

/// A run that has ended.
pub(crate) struct FinishedRun {
    pub(crate) code: Option<i32>,
    pub(crate) summary: Value,
    pub(crate) events: Vec<Event>,
    pub(crate) stderr: String,
}

impl Paceline {
    /// Builds the program that the bench is about.
    pub(crate) fn build() -> Result<Self> {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--release", "--quiet", "-p", "paceline"])
            .current_dir(workspace())
            .status()
            .context("failed to start cargo")?;
        ensure!(status.success(), "failed to build paceline");
        // Beside the bench's own binary, whatever the target folder is called.
        let exe = std::env::current_exe()?.with_file_name("paceline");
        ensure!(exe.is_file(), "there is no {}", exe.display());
        Ok(Paceline { exe, runs: tempfile::tempdir()? })
    }

    /// The program, to be given arguments.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command.args(args).env("PACELINE_RUN_DIR", self.runs.path());
        command.stdin(Stdio::null());
        command
    }

    /// Whether `train` has a flag.
    pub(crate) fn knows(&self, flag: &str) -> Result<bool> {
        let help = self.command(&["train", "--help"]).output()?.stdout;
        Ok(String::from_utf8_lossy(&help).split_whitespace().any(|word| word == flag))
    }

    /// Removes a run's folder, which may hold checkpoints of a large model.
    pub(crate) fn discard(&self, name: &str) -> Result<()> {
        fs::remove_dir_all(self.runs.path().join(name))
            .with_context(|| format!("failed to remove the run {name}"))
    }

    pub(crate) fn events(&self, name: &str) -> Result<Vec<Event>> {
        let path = self.runs.path().join(name).join("events.jsonl");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        // The last line of a run in progress may be incomplete.
        Ok(text.lines().map_while(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Trains under `name`, and reads the run's folder; a failed run is an outcome too.
    pub(crate) fn try_train(&self, name: &str, args: &str) -> Result<FinishedRun> {
        self.run("--name", name, args)
    }

    /// Resumes an earlier run.
    pub(crate) fn resume(&self, name: &str, args: &str) -> Result<FinishedRun> {
        self.run("--resume", name, args)
    }

    fn run(&self, how: &str, name: &str, args: &str) -> Result<FinishedRun> {
        let mut all = vec!["train", "--json", how, name];
        all.extend(args.split_whitespace());
        let Output { status, stdout, stderr } = self.command(&all).output()?;
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        let summary = serde_json::from_slice(&stdout)
            .with_context(|| format!("no summary of `train {how} {name} {args}`: {stderr}"))?;
        Ok(FinishedRun { code: status.code(), summary, events: self.events(name)?, stderr })
    }

    /// Trains; the run must succeed.
    pub(crate) fn train(&self, name: &str, args: &str) -> Result<FinishedRun> {
        let run = self.try_train(name, args)?;
        ensure!(run.code == Some(0), "`train {args}` failed: {}", run.stderr);
        Ok(run)
    }
}

impl FinishedRun {
    /// A number in the summary, by the path to it.
    pub(crate) fn number(&self, path: &str) -> f64 {
        self.summary.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }

    pub(crate) fn is(&self, path: &str) -> bool {
        self.summary.pointer(path).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(crate) fn text(&self, path: &str) -> &str {
        self.summary.pointer(path).and_then(Value::as_str).unwrap_or("")
    }

    /// Time from each round's start to its update, without the first `skip` rounds.
    pub(crate) fn round_times(&self, skip: usize) -> Vec<Duration> {
        round_times(&self.events, skip)
    }
}

/// Time from each round's start to its update, without the first `skip` rounds.
pub(crate) fn round_times(events: &[Event], skip: usize) -> Vec<Duration> {
    let mut started = None;
    let mut times = Vec::new();
    for event in events {
        match event.kind {
            EventKind::RoundStarted { .. } => started = Some(event.at),
            EventKind::Updated { .. } => {
                times.extend(started.take().map(|at| event.at.since(at)));
            }
            _ => {}
        }
    }
    times.split_off(skip.min(times.len()))
}
