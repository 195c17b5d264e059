//! Worker processes on this machine: started, watched, and ended with the run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::sync::watch;

use crate::{config::RunConfig, host, run_dir::RunDir};

/// How long workers have to end by themselves after the run.
const PARTING: Duration = Duration::from_secs(3);

/// The worker processes of a run, and the busy loops beside some of them. Dropping it ends all.
pub(crate) struct Crew {
    members: Vec<Arc<Mutex<Child>>>,
    hogs: Vec<Child>,
    /// Where each worker's words go, and how much was there before this run.
    logs: Vec<(PathBuf, u64)>,
    running: watch::Receiver<usize>,
}

impl Crew {
    /// Starts `config.workers` workers for the server at `address`.
    pub(crate) fn start(config: &RunConfig, address: &str, dir: &RunDir) -> Result<Self> {
        let exe = std::env::current_exe().context("failed to find this program")?;
        let hogs = config.slowness()?.hogs();
        let (alive, running) = watch::channel(config.workers as usize);
        let alive = Arc::new(alive);
        let mut crew = Crew { members: Vec::new(), hogs: Vec::new(), logs: Vec::new(), running };
        for worker in 0..config.workers {
            let (log, path) = dir.worker_log(worker)?;
            let before = log.metadata().map_or(0, |log| log.len());
            let mut command = command(&exe);
            command
                .args(["worker", "--connect", address, "--index", &worker.to_string()])
                .args(["--data", &config.data.to_string(), "--stragglers", &config.stragglers])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            if let Some(nominal) = config.nominal {
                command.args(["--nominal", &nominal.to_string()]);
            }
            if hogs.contains(&worker) {
                let core = (worker as usize % host::cores()).to_string();
                command.args(["--pin", &core]);
                crew.hogs.push(hog(&exe, &core)?);
            }
            let child = command.spawn().context("failed to start a worker")?;
            crew.watch(child, Arc::clone(&alive));
            crew.logs.push((path, before));
        }
        Ok(crew)
    }

    fn watch(&mut self, child: Child, alive: Arc<watch::Sender<usize>>) {
        let child = Arc::new(Mutex::new(child));
        self.members.push(Arc::clone(&child));
        std::thread::spawn(move || {
            loop {
                let status = child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
                if !matches!(status, Ok(None)) {
                    return alive.send_modify(|alive| *alive -= 1);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }

    /// Resolves when no worker is left.
    pub(crate) fn all_gone(&self) -> impl Future<Output = ()> + use<> {
        let mut running = self.running.clone();
        async move {
            // An error means that every watcher has ended, and so every worker.
            let _ = running.wait_for(|alive| *alive == 0).await;
        }
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
        let deadline = Instant::now() + PARTING;
        while *self.running.borrow() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        for member in &self.members {
            let mut member = member.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(member.try_wait(), Ok(None)) {
                let _ = member.kill();
                let _ = member.wait();
            }
        }
    }
}

/// The last line of a log that holds anything and was not there `before`.
fn last_words(path: &Path, before: u64) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(text.get(before as usize..)?);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

/// A process group of its own: Ctrl-C is for this process, which then ends the others in order.
fn command(exe: &PathBuf) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(exe);
    command.process_group(0);
    command
}

fn hog(exe: &PathBuf, core: &str) -> Result<Child> {
    let mut command = command(exe);
    command.args(["hog", "--pin", core]).stdin(Stdio::piped());
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
