//! `paceline train`: server and workers on this machine.

use std::{ffi::OsString, net::TcpListener, process::ExitCode};

use anyhow::{Context, Result};

use crate::{
    cli::TrainArgs,
    host,
    launch::Crew,
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

Exit codes: 0 done, 1 failed or diverged, 2 wrong usage, 3 quorum lost, 130 interrupted.";

pub(crate) fn run(args: &TrainArgs, program: &[OsString]) -> Result<ExitCode> {
    if args.tied {
        host::end_with_parent()?;
    }
    let others = Others { own_workers: true, remote_shards: false, token: None };
    let session = Session::prepare(args, others)?;
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to listen on loopback")?;
    let address = listener.local_addr()?;
    session.run(listener, |config, dir| Crew::start(program, config, address, dir).map(Some))
}
