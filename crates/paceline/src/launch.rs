//! Worker processes on this machine, and what is around them: started with the run, ended with it.

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result};
use paceline_faults::WorkerNetwork;
use paceline_wire::Transport;
use tokio::sync::watch;

use crate::{
    config::RunConfig,
    host,
    member::{Member, Recipe, Running, Task},
    run_dir::RunDir,
};

/// The worker processes of a run, and what some of them have to bear. Dropping it ends all, the
/// workers first.
pub(crate) struct Crew {
    members: Vec<Member>,
    hogs: Vec<Child>,
    networks: Vec<WorkerNetwork>,
    /// Where each worker's words go, and how much was there before this run.
    logs: Vec<(PathBuf, u64)>,
    is_command: bool,
    running: watch::Receiver<Running>,
}

/// What the processes of workers run.
pub(crate) enum WorkerKind {
    /// This program.
    Native,
    /// A command of the user's, whose model is offered to the server.
    Command {
        /// The command and its arguments.
        words: Vec<OsString>,
        /// The number of the open round.
        rounds: watch::Receiver<u64>,
    },
}

impl Crew {
    /// Starts `config.cluster.workers` workers for the server at `address`; `program` is the command that
    /// starts this program.
    pub(crate) fn start(
        program: &[OsString],
        config: &RunConfig,
        address: SocketAddr,
        dir: &RunDir,
        kind: WorkerKind,
    ) -> Result<Self> {
        let (plan, cores) = (config.fault_plan()?, host::core_numbers()?);
        let workers = config.cluster.workers as usize;
        let (alive, running) = watch::channel(Running { alive: workers, failed: 0 });
        let alive = Arc::new(alive);
        let mut crew = Crew {
            members: Vec::new(),
            hogs: Vec::new(),
            networks: Vec::new(),
            logs: Vec::new(),
            is_command: matches!(kind, WorkerKind::Command { .. }),
            running,
        };
        for worker in 0..config.cluster.workers {
            let (log, path) = dir.worker_log(worker)?;
            crew.logs.push((path, log.metadata().map_or(0, |log| log.len())));
            let faults = plan.process(worker);
            let core = plan.core(worker, &cores)?;
            if let Some(core) = core.filter(|_| faults.hog) {
                crew.hogs.push(hog(program, core)?);
            }
            let network =
                WorkerNetwork::start(program, worker, &faults, address, config.task.seed)?;
            let (args, task) = match &kind {
                WorkerKind::Native => {
                    let args = args(config, worker, &network, core, faults.nice);
                    (args, Task::Native(plan.inside.clone()))
                }
                WorkerKind::Command { words, rounds } => {
                    let env = environment(worker, config.cluster.workers, &network);
                    let killed_at = plan.inside.killed_at(worker);
                    let rounds = rounds.clone();
                    (exec(words, core, faults.nice), Task::Command { env, killed_at, rounds })
                }
            };
            let (program, entrance) = (program.to_vec(), network.entrance());
            let recipe = Recipe { program, entrance, args, worker, task, log };
            crew.networks.push(network);
            crew.members.push(Member::start(recipe, faults, Arc::clone(&alive))?);
        }
        Ok(crew)
    }

    /// Resolves when no worker is left.
    pub(crate) fn all_gone(&self) -> impl Future<Output = ()> + use<> {
        let mut running = self.running.clone();
        async move {
            // An error means that every watcher has ended, and so every worker.
            let _ = running.wait_for(|running| running.alive == 0).await;
        }
    }

    /// Resolves when the commands of the user's have ended by themselves; at once for workers that are this
    /// program, which end with the run.
    pub(crate) async fn finished(&self) {
        if self.is_command {
            self.all_gone().await;
        }
    }

    /// Whether every command of the user's has failed.
    pub(crate) fn all_failed(&self) -> bool {
        self.is_command && self.running.borrow().failed == self.logs.len()
    }

    /// The last words of the workers that have any, the same words once.
    pub(crate) fn last_words(&self) -> Vec<String> {
        let words = self.logs.iter().filter_map(|(path, before)| last_words(path, *before));
        let mut words: Vec<String> = words.collect();
        words.dedup();
        words
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for hog in &mut self.hogs {
            let _ = hog.kill();
            let _ = hog.wait();
        }
        self.members.iter_mut().for_each(Member::dismiss);
        self.members.clear();
    }
}

/// The arguments that have this program become the command of the user's.
fn exec(words: &[OsString], core: Option<usize>, nice: Option<i32>) -> Vec<OsString> {
    let flags = [
        core.map(|core| ("--pin", core.to_string())),
        nice.map(|more| ("--nice", more.to_string())),
    ];
    let flags = flags.into_iter().flatten().flat_map(|(flag, value)| [flag.to_owned(), value]);
    let own = ["exec".to_owned()].into_iter().chain(flags).chain(["--".to_owned()]);
    own.map(OsString::from).chain(words.iter().cloned()).collect()
}

/// What a command of the user's finds in its environment.
fn environment(worker: u32, workers: u32, network: &WorkerNetwork) -> Vec<(String, String)> {
    let variables = [
        Some(("PACELINE_SERVER", network.address().to_string())),
        Some(("PACELINE_WORKER", worker.to_string())),
        Some(("PACELINE_WORKERS", workers.to_string())),
        network.is_worse().then(|| ("PACELINE_TRANSPORT", Transport::Tcp.to_string())),
    ];
    variables.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What a worker is told, besides how slow it is.
fn args(
    config: &RunConfig,
    worker: u32,
    network: &WorkerNetwork,
    core: Option<usize>,
    nice: Option<i32>,
) -> Vec<OsString> {
    let transport = if network.is_worse() { Transport::Tcp } else { Transport::Auto };
    let flags = [
        Some(("--connect", network.address().to_string())),
        Some(("--index", worker.to_string())),
        Some(("--data", config.task.data.to_string())),
        Some(("--transport", transport.to_string())),
        config.faults.nominal.map(|nominal| ("--nominal", nominal.to_string())),
        core.map(|core| ("--pin", core.to_string())),
        nice.map(|more| ("--nice", more.to_string())),
    ];
    let flags = flags.into_iter().flatten().flat_map(|(flag, value)| [flag.to_owned(), value]);
    ["worker", "--tied"].map(str::to_owned).into_iter().chain(flags).map(OsString::from).collect()
}

/// The last line of a log that holds anything and was not there `before`.
fn last_words(path: &Path, before: u64) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(text.get(before as usize..)?);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

fn hog(program: &[OsString], core: usize) -> Result<Child> {
    let mut command = host::command(&program[0]);
    command.args(&program[1..]).args(["hog", "--pin", &core.to_string()]).stdin(Stdio::piped());
    command.spawn().context("failed to start a busy loop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_those_of_this_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w0.log");
        fs::write(&path, "of yesterday\n").unwrap();
        let before = fs::metadata(&path).unwrap().len();
        assert_eq!(last_words(&path, before), None);
        fs::write(&path, "of yesterday\nfirst\nlast\n\n").unwrap();
        assert_eq!(last_words(&path, before).unwrap(), "last");
    }
}
