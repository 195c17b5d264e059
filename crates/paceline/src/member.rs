//! One worker process: started, disturbed, started again after a preemption, and ended.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::unix::process::ExitStatusExt,
    process::{Child, ExitStatus, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use paceline_faults::{Preemption, ProcessFaults, SlownessSpec, Stopper};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;

use crate::{console::say, host};

/// How long a worker has to end by itself after the run.
const PARTING: Duration = Duration::from_secs(3);

/// The same for a command of the user's, which may save its model.
const PARTING_OF_COMMANDS: Duration = Duration::from_secs(10);

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How a worker's process is started, each time.
pub(crate) struct Recipe {
    /// The command that starts this program.
    pub(crate) program: Vec<OsString>,
    /// What leads to the program, if it is not started from here.
    pub(crate) entrance: Vec<String>,
    pub(crate) args: Vec<OsString>,
    pub(crate) worker: u32,
    pub(crate) task: Task,
    pub(crate) log: File,
}

/// What a worker's process does.
pub(crate) enum Task {
    /// It runs a model of this program, and inflicts this slowness on itself.
    Native(SlownessSpec),
    /// It runs a command of the user's, and is killed from outside.
    Command {
        /// Variables in its environment.
        env: Vec<(String, String)>,
        /// The round in which it is killed for good, if it is.
        killed_at: Option<u64>,
        /// The number of the open round.
        rounds: watch::Receiver<u64>,
    },
}

/// Variables of launchers that a command of the user's must not take for its own.
const OTHER_LAUNCHERS: [&str; 3] = ["RANK", "LOCAL_RANK", "WORLD_SIZE"];

/// How many worker processes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Running {
    /// Processes that are not gone for good.
    pub(crate) alive: usize,
    /// Processes that ended with an error.
    pub(crate) failed: usize,
}

impl Recipe {
    /// A worker knows of its next preemption as of a kill; that it comes back is not its business.
    fn start(&self, next: Option<&Preemption>) -> Result<Child> {
        let entrance = self.entrance.iter().map(OsStr::new);
        let mut words = entrance.chain(self.program.iter().map(OsString::as_os_str));
        let mut command = host::command(words.next().context("a worker has no program")?);
        command.args(words).args(&self.args).stdin(Stdio::null()).stderr(self.log.try_clone()?);
        match &self.task {
            Task::Native(slowness) => {
                let slowness = slowness.clone();
                let slowness = match next {
                    Some(preemption) => slowness.killing(self.worker, preemption.round),
                    None => slowness,
                };
                command.args(["--stragglers", &slowness.to_string()]).stdout(Stdio::null());
            }
            Task::Command { env, .. } => {
                for name in OTHER_LAUNCHERS {
                    command.env_remove(name);
                }
                command.envs(env.iter().cloned()).stdout(self.log.try_clone()?);
            }
        }
        command.spawn().context("failed to start a worker")
    }
}

/// A worker of this machine, with a thread that sees to it. Dropping it ends the worker; to end
/// several at once, tell all of them first.
pub(crate) struct Member {
    run: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Starts the worker; `running` counts it until it is gone for good.
    pub(crate) fn start(
        recipe: Recipe,
        faults: ProcessFaults,
        running: Arc<watch::Sender<Running>>,
    ) -> Result<Self> {
        let ProcessFaults { stalls, mut preemptions, .. } = faults;
        preemptions.reverse();
        let child = recipe.start(preemptions.last())?;
        let (run, over) = mpsc::channel();
        let mut life =
            Life { recipe, stopper: Stopper::new(stalls), preemptions, child, over, ended: false };
        let thread = thread::Builder::new().name("member".to_owned()).spawn(move || {
            life.until_gone();
            life.part();
            let failed = life.report();
            running.send_modify(|running| {
                running.alive -= 1;
                running.failed += usize::from(failed);
            });
        })?;
        Ok(Member { run: Some(run), thread: Some(thread) })
    }

    /// The run is over: the worker is to end, within a few seconds.
    pub(crate) fn dismiss(&mut self) {
        self.run = None;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.dismiss();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A worker's life, or its lives, as the thread that sees to it leads them.
struct Life {
    recipe: Recipe,
    stopper: Stopper,
    /// Those to come, the next one last.
    preemptions: Vec<Preemption>,
    child: Child,
    /// Hangs up when the run is over.
    over: Receiver<()>,
    /// The worker was ended because the run was over.
    ended: bool,
}

impl Life {
    /// Until the worker is gone and does not come back, or the run is over.
    fn until_gone(&mut self) {
        loop {
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if self.comes_back(status) => continue,
                _ => return,
            }
            self.kill_if_due();
            let nap = self.stopper.apply(&self.child, LOOK);
            if self.is_over_after(nap) {
                return;
            }
        }
    }

    /// Kills a command of the user's in the round of its next preemption, or in its last. It may be stopped.
    fn kill_if_due(&mut self) {
        let Task::Command { killed_at, rounds, .. } = &self.recipe.task else { return };
        let next = self.preemptions.last().map(|preemption| preemption.round).or(*killed_at);
        if next.is_some_and(|round| *rounds.borrow() >= round) {
            let _ = self.child.kill();
        }
    }

    /// Whether a command of the user's ended with an error, which is said.
    fn report(&mut self) -> bool {
        let status = self.child.try_wait().ok().flatten();
        let Some(status) = status.filter(|status| !status.success()) else { return false };
        let is_command = matches!(self.recipe.task, Task::Command { .. });
        if is_command && !self.ended {
            let worker = self.recipe.worker;
            say(format_args!(
                "the command of w{worker} failed: {status}; see workers/w{worker}.log"
            ));
        }
        is_command
    }

    /// A worker that was killed with a preemption to come is started again after its time away.
    fn comes_back(&mut self, status: ExitStatus) -> bool {
        if status.signal() != Some(Signal::KILL.as_raw()) {
            return false;
        }
        let Some(Preemption { away, .. }) = self.preemptions.pop() else { return false };
        if self.is_over_after(away) {
            return false;
        }
        match self.recipe.start(self.preemptions.last()) {
            Ok(child) => {
                self.child = child;
                self.stopper.restarted();
                true
            }
            Err(error) => {
                say(format_args!("w{} does not come back: {error:#}", self.recipe.worker));
                false
            }
        }
    }

    fn is_over_after(&self, time: Duration) -> bool {
        self.over.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }

    /// Waits a moment for the worker to end, and then ends it.
    fn part(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::CONT);
        }
        let deadline = Instant::now()
            + match self.recipe.task {
                Task::Native(_) => PARTING,
                Task::Command { .. } => PARTING_OF_COMMANDS,
            };
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            self.ended = true;
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_faults::Stall;

    use super::*;

    /// A shell in the place of a worker. What it is told comes after the script, as its arguments.
    fn shell(script: &str, dir: &tempfile::TempDir) -> Recipe {
        Recipe {
            program: vec!["sh".into()],
            entrance: Vec::new(),
            args: ["-c", script].map(OsString::from).to_vec(),
            worker: 2,
            task: Task::Native("slow:2:5".parse().unwrap()),
            log: File::create(dir.path().join("log")).unwrap(),
        }
    }

    fn count() -> (Arc<watch::Sender<Running>>, watch::Receiver<Running>) {
        let (count, running) = watch::channel(Running { alive: 1, failed: 0 });
        (Arc::new(count), running)
    }

    #[test]
    fn a_preempted_worker_comes_back_as_often_as_it_is_preempted() {
        let dir = tempfile::tempdir().unwrap();
        // It dies while it is to be killed, and says what it was told.
        let script = "echo $1 >&2; case $1 in *kill*) kill -9 $$;; esac";
        let (alive, running) = count();
        let away = Duration::from_millis(1);
        let preemptions = [4, 9].map(|round| Preemption { round, away }).to_vec();
        let faults = ProcessFaults { preemptions, ..ProcessFaults::default() };
        let mut member = Member::start(shell(script, &dir), faults, alive).unwrap();
        member.thread.take().unwrap().join().unwrap();
        assert_eq!(running.borrow().alive, 0);
        let told = std::fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(told, "slow:2:5,kill:2@4\nslow:2:5,kill:2@9\nslow:2:5\n");
    }

    /// The state of a process as the kernel calls it: S sleeps, T is stopped.
    fn state(pid: &str) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    #[test]
    fn a_stopped_worker_goes_on_when_the_run_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let stall = Stall::new(Duration::from_secs(3600), Duration::from_millis(3_599_700));
        let stalls = stall.into_iter().collect();
        let faults = ProcessFaults { stalls, ..ProcessFaults::default() };
        let (alive, running) = count();
        let script = shell("echo $$ >&2; exec sleep 1", &dir);
        let member = Member::start(script, faults, alive).unwrap();
        let began = Instant::now();
        let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
        while state(log().trim()) != Some('T') {
            assert!(began.elapsed() < Duration::from_secs(20), "it is never stopped");
            thread::sleep(Duration::from_millis(5));
        }
        let over = Instant::now();
        drop(member);
        assert!(over.elapsed() < PARTING, "it had to be killed");
        assert_eq!(running.borrow().alive, 0);
    }
}
