//! Python processes: four workers under torchrun, and what they measured.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, de::DeserializeOwned};

use crate::paceline::workspace;

use super::system::{System, Workload};

/// Workers of every run.
pub(super) const WORKERS: usize = 4;

/// Longest run, in seconds.
const PATIENCE: &str = "900";

/// Steps before measurements count.
const WARM_UP: usize = 5;

/// An interpreter that has torch.
pub(super) struct Python {
    interpreter: OsString,
}

/// Results of one worker of a run.
#[derive(Debug, Deserialize)]
pub(super) struct WorkerResult {
    /// Seconds from the import of torch to the end of the first step.
    pub(super) import_to_first_step: f64,
    /// Seconds from the start of the first step to the end of each.
    times: Vec<f64>,
    /// Samples in the update of each step, of all workers.
    samples: Vec<f64>,
    pub(super) memory: Memory,
    pub(super) server_memory: Option<Memory>,
    /// Seconds and test loss, of the first worker.
    pub(super) losses: Vec<(f64, f64)>,
}

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Memory {
    /// Resident, with shared pages divided among the processes that share them.
    pub(super) pss: u64,
}

impl Python {
    /// The interpreter that `PACELINE_PYTHON` names, or `python3`; it must have torch.
    pub(super) fn find() -> Result<Self> {
        let interpreter = std::env::var_os("PACELINE_PYTHON").unwrap_or_else(|| "python3".into());
        let python = Python { interpreter };
        if let Err(why) = python.has(&System::DDP) {
            bail!(
                "{why}; set PACELINE_PYTHON to an interpreter with torch and paceline, and with torchft and \
                 hivemind to measure these too"
            );
        }
        Ok(python)
    }

    /// Whether a system can be run; the reason if it cannot.
    pub(super) fn has(&self, system: &System) -> Result<(), String> {
        let module = system.module;
        let output =
            Command::new(&self.interpreter).args(["-c", &format!("import {module}")]).output();
        let interpreter = Path::new(&self.interpreter).display();
        let output = output.map_err(|error| format!("failed to run {interpreter}: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("`import {module}` said: {}", said.lines().last().unwrap_or("nothing")))
    }

    /// The systems among these that can be run; the others are reported.
    pub(super) fn available(&self, systems: &[System]) -> Vec<System> {
        let has = |system: &System| {
            let missing = self.has(system).err();
            if let Some(why) = &missing {
                eprintln!("   {} is left out: {why}", system.name);
            }
            missing.is_none()
        };
        systems.iter().copied().filter(has).collect()
    }

    /// Versions of Python and torch.
    pub(super) fn versions(&self) -> String {
        let code = "import sys, torch; print('Python %d.%d' % sys.version_info[:2], 'and torch', \
                    torch.__version__.split('+')[0])";
        let output = Command::new(&self.interpreter).args(["-c", code]).output();
        output.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    }

    /// What the recorder adds to a step of a training loop, in microseconds.
    pub(super) fn recorder_us(&self) -> Result<f64> {
        let code = "from paceline.recorder import cost; print(cost())";
        let output = Command::new(&self.interpreter).args(["-c", code]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = || {
            let why = String::from_utf8_lossy(&output.stderr);
            format!("the recorder's cost is unknown: {}", why.lines().last().unwrap_or("no output"))
        };
        said.trim().parse().with_context(failed)
    }

    /// Trains and measures; results of all workers.
    pub(super) fn train(
        &self,
        system: &System,
        workload: &Workload,
        args: &str,
    ) -> Result<Vec<WorkerResult>> {
        let Workload { name, batch } = workload;
        let folder = tempfile::tempdir()?;
        let all = format!("{} --workload {name} --batch {batch} {args}", system.args);
        self.torchrun("worker.py", &all, folder.path())
    }

    /// Runs a script of this bench in every worker, with a folder for results, and reads these.
    pub(super) fn torchrun<T: DeserializeOwned>(
        &self,
        script: &str,
        args: &str,
        folder: &Path,
    ) -> Result<Vec<T>> {
        let root = workspace();
        let log = folder.join("log");
        let file = fs::File::create(&log)?;
        let mut command = Command::new("timeout");
        command.args([PATIENCE.as_ref(), self.interpreter.as_os_str()]);
        command.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]);
        command.arg(WORKERS.to_string()).arg(root.join("crates/bench/pytorch").join(script));
        command.arg("--out").arg(folder).arg("--data").arg(data());
        command.args(args.split_whitespace());
        command.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1");
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let status = command.status().context("failed to start torchrun")?;
        if !status.success() {
            let said = fs::read_to_string(&log)?;
            let lines: Vec<&str> = said.lines().collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            bail!("`{script} {args}` failed with {status}:\n{last}");
        }
        (0..WORKERS).map(|rank| result(&folder.join(format!("worker-{rank}.json")))).collect()
    }
}

/// The folder of real data sets.
pub(super) fn data() -> PathBuf {
    workspace().join("../shared/datasets")
}

fn result<T: DeserializeOwned>(path: &PathBuf) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("no {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("failed to read {}", path.display()))
}

/// Seconds per step, after a warm-up, as the mean over workers. A step is a whole batch of every worker: an
/// update of fewer samples is that much less of a step.
pub(super) fn step_seconds(workers: &[WorkerResult], workload: &Workload) -> Result<f64> {
    let whole = (workload.batch * WORKERS) as f64;
    let mut total = 0.0;
    for worker in workers {
        let WorkerResult { times, samples, .. } = worker;
        ensure!(times.len() > 2 * WARM_UP, "a worker took {} steps only", times.len());
        let steps = samples[WARM_UP..].iter().sum::<f64>() / whole;
        total += (times[times.len() - 1] - times[WARM_UP - 1]) / steps;
    }
    Ok(total / workers.len() as f64)
}
