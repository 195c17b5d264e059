//! `paceline simulate --hunt`: the clusters on which a policy gets the least of a reference's rate.

use std::{
    fmt::Write,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::Result;
use paceline_report::Usage;
use paceline_trace::RandomClusters;
use serde::Serialize;

use super::{
    row::{ClusterRow, ClusterStudy},
    search::{Find, Search},
    text::replay_command,
};
use crate::{
    interrupt::interrupt_flag,
    model,
    progress::Progress,
    simulate::{SimulateArgs, print},
};

/// A find: a line of `--json`. Its replay is the one with the largest share.
#[derive(Serialize)]
struct FindRow<'a> {
    share: f64,
    /// One per draw of run-times, the largest first.
    shares: Vec<f64>,
    /// Replays the cluster.
    command: String,
    #[serde(flatten)]
    replay: &'a ClusterRow,
}

/// Searches with at most this many evaluations.
pub(in crate::simulate) fn hunt(args: &SimulateArgs, evaluations: u64) -> Result<ExitCode> {
    let [policy] = args.policy[..] else {
        return Err(Usage("--hunt searches for one --policy at a time".to_owned()).into());
    };
    let study = ClusterStudy::new(args, model::load(args.run_time_model.as_deref())?)?;
    let reference = args.clusters.against;
    let interrupted =
        interrupt_flag("stopping with the finds so far; Ctrl-C again to stop at once")?;
    let is_interrupted = || interrupted.load(Ordering::Relaxed);
    let progress = Progress::new();
    let begun = AtomicU64::new(0);
    let mut search = Search::new(RandomClusters::new(args.traces.seed), evaluations);
    while !search.is_over() && !is_interrupted() {
        let worst = search.finds().first().map_or(String::new(), |find| {
            format!(", {policy} at {:.3} of {reference} at worst", find.share())
        });
        search.generation(|candidate, seed| {
            if is_interrupted() {
                return None;
            }
            let number = begun.fetch_add(1, Ordering::Relaxed) + 1;
            progress.say(format!("evaluation {number} of {evaluations}{worst}"));
            let row = study.row(candidate.number, &candidate.cluster.spec(), seed);
            Some((row.policies[0].of(reference), row))
        });
    }
    drop(progress);
    let finds: Vec<FindRow> = search
        .finds()
        .iter()
        .filter(|find| find.share() < 1.0 - 1e-6)
        .map(|find| FindRow::new(find, &policy.to_string(), args))
        .collect();
    let heading = format!(
        "{policy} against {reference}: {} evaluations of {} clusters, seed {}",
        search.used(),
        search.tried(),
        args.traces.seed
    );
    print(&finds, |finds| text(&heading, finds), args.json, false)?;
    Ok(if is_interrupted() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

impl<'a> FindRow<'a> {
    fn new(find: &'a Find<ClusterRow>, policy: &str, args: &SimulateArgs) -> FindRow<'a> {
        let (share, replay) = &find.replays[0];
        FindRow {
            share: *share,
            shares: find.replays.iter().map(|(share, _)| *share).collect(),
            command: replay_command(replay, policy, args),
            replay,
        }
    }
}

fn text(heading: &str, finds: &[FindRow]) -> String {
    if finds.is_empty() {
        return format!("{heading}\n\nNo cluster was found on which it is behind on every draw.\n");
    }
    let mut text =
        format!("{heading}\n\nshare on each draw, and a command that replays the first:\n");
    for find in finds {
        find.shares.iter().for_each(|share| write!(text, "{share:5.3}  ").expect("text grows"));
        let _ = writeln!(text, "{}", find.command);
    }
    text
}
