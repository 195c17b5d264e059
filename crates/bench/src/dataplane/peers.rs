//! Systems that reduce a tensor over processes: installed into a folder of their own, and measured.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{paceline::workspace, stats::median};

/// The most seconds that one measurement may take.
const PATIENCE: &str = "180";

/// Rounds before times count.
const WARM_UP: usize = 2;

/// A peer: a script in Python that all-reduces and says when, rank by rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    script: &'static str,
    /// The Python that it needs, its packages, and the module that tells whether they are there.
    python: &'static str,
    packages: &'static str,
    module: &'static str,
    /// What starts its ranks, and the distribution's packages that bring it; else it does so itself.
    launcher: Option<(&'static str, &'static str)>,
}

impl Peer {
    pub(super) const GLOO: Peer = Peer {
        name: "gloo",
        script: include_str!("gloo.py"),
        python: "python3",
        packages: "numpy torch",
        module: "torch.distributed",
        launcher: None,
    };

    pub(super) const ALL: [Peer; 3] = [
        Peer::GLOO,
        Peer {
            name: "openmpi",
            script: include_str!("openmpi.py"),
            python: "python3",
            packages: "numpy mpi4py",
            module: "mpi4py.MPI",
            launcher: Some(("mpirun", "openmpi-bin libopenmpi-dev")),
        },
        Peer {
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

    /// Installs it where it is not, and says why that cannot be.
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

    /// Seconds of one all-reduce, in the middle: from the moment that all have their tensor to the
    /// moment that all hold the sum.
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

    /// The same by ranks that are started one by one, and find each other at `meeting`.
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

/// Runs a tool; where it fails, what it said last.
fn run(tool: &str, words: &str) -> Result<(), String> {
    let mut command = Command::new(tool);
    command.args(words.split_whitespace()).stdin(Stdio::null());
    // pyenv keeps versions apart behind one name, and wants to be told which.
    if let Some(version) = tool.strip_prefix("python3.") {
        command.env("PYENV_VERSION", format!("3.{version}"));
    }
    let output = command.output().map_err(|error| format!("failed to run {tool}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let error = format!("`{tool} {words}` said: {}", said.lines().last().unwrap_or("nothing"));
    // Where the project lies is not the reason.
    let error = error.replace(&format!("{}/", root().display()), "");
    if output.status.success() { Ok(()) } else { Err(error) }
}

/// The project's root, as others spell it in what they say.
fn root() -> PathBuf {
    workspace().canonicalize().unwrap_or_else(|_| workspace())
}
