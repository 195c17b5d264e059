//! `paceline train`: server and workers on this machine.

use std::{ffi::OsString, net::TcpListener, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use paceline_report::Usage;

use crate::{
    cli::TrainArgs,
    host,
    launch::{Crew, WorkerKind},
    session::{Others, Session},
};

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline train                                     the CNN on the embedded images, 4 workers
  paceline train --data mnist/ --epochs 3            on MNIST's files in a folder
  paceline train --data cifar/ --model resnet        a residual network on CIFAR-10's files
  paceline train --policy full --stragglers slow:3:5 wait for a worker slowed 5 times
  paceline train --policy static:3 --stragglers slow:3:5   do not
  paceline train --stragglers preempt:2@50:3s,delay:0:20ms,crowd:0-1   a rough neighbourhood
  paceline train run.toml --seed 7 --json            settings from a file, summary as JSON
  paceline train --resume cnn-001 --epochs 10        go on with a run
  paceline train --command 'python train.py' --workers 4   workers that bring their model
  paceline train --resume offered-001 --command 'python train.py'   go on with their run

Exit codes: 0 done, 1 failed or diverged, 2 wrong usage, 3 quorum lost, 130 interrupted.";

pub(crate) fn run(args: &TrainArgs, program: &[OsString]) -> Result<ExitCode> {
    let TrainArgs { run, command } = args;
    if run.tied {
        host::end_with_parent()?;
    }
    let command = command.as_deref().map(split).transpose()?;
    let mut run = run.clone();
    if command.is_some() {
        run.flags = run.flags.with("model", "offered");
    }
    let others =
        Others { own_workers: true, command: command.is_some(), remote_shards: false, token: None };
    let session = Session::prepare(&run, others, PATIENCE)?;
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to listen on loopback")?;
    let address = listener.local_addr()?;
    session.run(listener, |config, dir, rounds| {
        let kind = match command {
            Some(words) => WorkerKind::Command { words, rounds },
            None => WorkerKind::Native,
        };
        Crew::start(program, config, address, dir, kind).map(Some)
    })
}

/// How long the workers' commands may take until one of them offers its model. The run ends earlier if all
/// of them do.
const PATIENCE: Duration = Duration::from_secs(600);

/// The words of a command, as a shell would split them.
fn split(command: &str) -> Result<Vec<OsString>> {
    let words = shell_words::split(command)
        .map_err(|error| Usage(format!("--command `{command}`: {error}")))?;
    match words.is_empty() {
        true => Err(Usage("--command is empty".to_owned()).into()),
        false => Ok(words.into_iter().map(OsString::from).collect()),
    }
}
