//! Other systems that reduce a tensor over processes, installed into their own folders and measured.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{paceline::workspace, stats::median};

/// Longest measurement, in seconds.
const PATIENCE: &str = "180";

/// Warm-up rounds.
const WARM_UP: usize = 2;

/// A peer: a Python script that all-reduces and prints times, rank by rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct AllReducePeer {
    pub(super) name: &'static str,
    script: &'static str,
    /// The Python version that it needs, its packages, and the module that shows whether they are
    /// installed.
    python: &'static str,
    packages: &'static str,
    module: &'static str,
    /// The launcher of its ranks, with its distribution packages; `None` if the script needs none.
    launcher: Option<(&'static str, &'static str)>,
}

impl AllReducePeer {
    pub(super) const GLOO: AllReducePeer = AllReducePeer {
        name: "gloo",
        script: include_str!("gloo.py"),
        python: "python3",
        packages: "numpy torch",
        module: "torch.distributed",
        launcher: None,
    };

    pub(super) const ALL: [AllReducePeer; 3] = [
        AllReducePeer::GLOO,
        AllReducePeer {
            name: "openmpi",
            script: include_str!("openmpi.py"),
            python: "python3",
            packages: "numpy mpi4py",
            module: "mpi4py.MPI",
            launcher: Some(("mpirun", "openmpi-bin libopenmpi-dev")),
        },
        AllReducePeer {
            name: "pypccl",
            script: include_str!("pypccl.py"),
            python: "python3.12",
            packages: "numpy pypccl",
            module: "pccl",
            launcher: None,
        },
    ];

    fn home(&self) -> PathBuf {
        root().join("target/peers").join(self.name)
    }

    fn interpreter(&self) -> PathBuf {
        self.home().join("bin/python")
    }

    /// Installs it if necessary; returns the reason if it cannot be installed.
    pub(super) fn install(&self, quick: bool) -> Result<(), String> {
        if self.import().is_ok() {
            return Ok(());
        }
        if quick {
            return Err(format!("{} is not installed; a full run installs it", self.name));
        }
        eprintln!("   installing {}", self.name);
        if let Some((launcher, packages)) = self.launcher
            && run(launcher, "--version").is_err()
        {
            run("apt-get", &format!("install -y -q --no-install-recommends {packages}"))?;
        }
        let home = self.home().display().to_string();
        run(self.python, &format!("-m venv {home}"))?;
        run(&format!("{home}/bin/pip"), &format!("install -q {}", self.packages))?;
        self.import()
    }

    fn import(&self) -> Result<(), String> {
        run(&self.interpreter().display().to_string(), &format!("-c __import__('{}')", self.module))
    }

    /// Median seconds of one all-reduce: from all ranks having their tensor to all holding the sum.
    pub(super) fn seconds(&self, ranks: usize, elements: usize, repeats: usize) -> Result<f64> {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE);
        if let Some((launcher, _)) = self.launcher {
            command.args([launcher, "--allow-run-as-root", "--oversubscribe", "-n"]);
            command.arg(ranks.to_string());
        }
        command.arg(self.interpreter()).arg(self.all_reduce()?);
        if self.launcher.is_none() {
            command.arg(ranks.to_string());
        }
        command.args([elements, repeats].map(|number| number.to_string()));
        self.measure(vec![command], ranks, repeats)
    }

    /// The same for ranks that are started one by one, with their rendezvous at `meeting`.
    pub(super) fn seconds_apart(
        &self,
        (elements, repeats): (usize, usize),
        ranks: usize,
        meeting: &str,
        on: impl Fn(usize, &Command) -> Command,
    ) -> Result<f64> {
        let script = self.all_reduce()?;
        let start = |rank: usize| {
            let mut command = Command::new("timeout");
            command.arg(PATIENCE).arg(self.interpreter()).arg(&script);
            command.args([ranks, elements, repeats, rank].map(|number| number.to_string()));
            on(rank, command.arg(meeting))
        };
        self.measure((0..ranks).map(start).collect(), ranks, repeats)
    }

    fn all_reduce(&self) -> Result<PathBuf> {
        let script = self.home().join("all_reduce.py");
        fs::write(&script, self.script)?;
        Ok(script)
    }

    fn measure(&self, commands: Vec<Command>, ranks: usize, repeats: usize) -> Result<f64> {
        let mut all = Vec::new();
        for mut command in commands {
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            all.push(command.spawn()?);
        }
        let mut times: Vec<Vec<[f64; 2]>> = Vec::new();
        for child in all {
            let Output { status, stdout, stderr } = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&stderr);
            ensure!(status.success(), "{} with {ranks} ranks failed: {said}", self.name);
            for line in String::from_utf8_lossy(&stdout).lines() {
                let times_of_rank = serde_json::from_str(line)
                    .with_context(|| format!("failed to read what {} printed", self.name))?;
                times.push(times_of_rank);
            }
        }
        ensure!(
            times.len() == ranks && times.iter().all(|rank| rank.len() == repeats),
            "{} ranks of {} answered, {ranks} were started",
            times.len(),
            self.name
        );
        let last = |i: usize, end: usize| times.iter().map(|rank| rank[i][end]).fold(0.0, f64::max);
        let seconds: Vec<f64> = (WARM_UP..repeats).map(|i| last(i, 1) - last(i, 0)).collect();
        Ok(median(&seconds))
    }
}

/// Runs a tool; an error has its last output line.
fn run(tool: &str, words: &str) -> Result<(), String> {
    let mut command = Command::new(tool);
    command.args(words.split_whitespace()).stdin(Stdio::null());
    // pyenv has several versions behind one name and needs to be told which.
    if let Some(version) = tool.strip_prefix("python3.") {
        command.env("PYENV_VERSION", format!("3.{version}"));
    }
    let output = command.output().map_err(|error| format!("failed to run {tool}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let error = format!("`{tool} {words}` said: {}", said.lines().last().unwrap_or("nothing"));
    // The project's path is not part of the reason.
    let error = error.replace(&format!("{}/", root().display()), "");
    if output.status.success() { Ok(()) } else { Err(error) }
}

/// The project's root, as other tools print it.
fn root() -> PathBuf {
    workspace().canonicalize().unwrap_or_else(|_| workspace())
}
