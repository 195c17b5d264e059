//! `paceline simulate --random` and `--hunt`: policies on clusters of a broad distribution.

mod args;
mod hunt;
mod parts;
mod row;
mod search;
mod text;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::Result;
use paceline_trace::RandomClusters;
use rayon::prelude::*;

pub(super) use args::ClusterArgs;
pub(super) use hunt::hunt;
pub(super) use parts::parts;
use row::{ClusterRow, ClusterStudy};

use super::{SimulateArgs, print};
use crate::{model, progress::Progress};

/// Replays `count` random clusters.
pub(super) fn random(args: &SimulateArgs, count: u64) -> Result<ExitCode> {
    let study = ClusterStudy::new(args, model::load(args.run_time_model.as_deref())?)?;
    let clusters = RandomClusters::new(args.traces.seed);
    let progress = Progress::new();
    let done = AtomicU64::new(0);
    let rows: Vec<ClusterRow> = (0..count)
        .into_par_iter()
        .map(|number| {
            let cluster = clusters.cluster(number);
            let row = study.row(number, &cluster.spec(), cluster.seed());
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress.say(format!("cluster {done} of {count}"));
            row
        })
        .collect();
    drop(progress);
    print(&rows, |rows| text::text(rows, args), args.json, false)?;
    Ok(ExitCode::SUCCESS)
}
