//! Settings that do not go together.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use paceline_core::{Enough, Late, MAX_WORKERS, Straggler};
use paceline_params::Clip;
use paceline_policy::{Objective, PolicySpec};
use paceline_wire::frame::MAX_BLOCK;

use crate::config::RunConfig;

/// The most shards: each has a thread, and a connection from every worker.
const MAX_SHARDS: u32 = 1024;

/// The longest block that a frame carries, in KiB.
const MAX_BLOCK_KIB: usize = MAX_BLOCK >> 10;

/// The most staging memory, in MiB; more is a slip of the pen.
const MAX_STAGING_MB: u64 = 1 << 24;

impl RunConfig {
    /// What can be wrong although every single setting is well-formed.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            (1..=MAX_WORKERS).contains(&self.workers),
            "workers must be from 1 to {MAX_WORKERS}, not {}",
            self.workers
        );
        ensure!(
            (1..=MAX_SHARDS).contains(&self.shards),
            "shards must be from 1 to {MAX_SHARDS}, not {}",
            self.shards
        );
        ensure!(self.batch > 0, "batch must be at least 1");
        ensure!(
            (1..=self.batch).contains(&self.micro_batches),
            "micro-batches must be from 1 to the batch ({}), not {}",
            self.batch,
            self.micro_batches
        );
        ensure!(
            (1..=self.workers).contains(&self.quorum),
            "quorum must be from 1 to the number of workers ({}), not {}",
            self.workers,
            self.quorum
        );
        ensure!(self.lr > 0.0 && self.lr.is_finite(), "lr must be a positive number");
        ensure!(
            (1..=MAX_BLOCK_KIB).contains(&self.block_kib),
            "block-kib must be from 1 to {MAX_BLOCK_KIB}, not {}",
            self.block_kib
        );
        ensure!(
            (1..=MAX_STAGING_MB).contains(&self.staging_mb),
            "staging-mb must be from 1 to {MAX_STAGING_MB}, not {}",
            self.staging_mb
        );
        ensure!(self.keep_checkpoints > 0, "keep-checkpoints must be at least 1");
        if let Some(target) = self.target_accuracy {
            ensure!((0.0..=1.0).contains(&target), "target-accuracy must be from 0 to 1");
        }
        if let Some(target) = self.target_loss {
            ensure!(target > 0.0 && target.is_finite(), "target-loss must be a positive number");
        }
        if let Some(weight) = self.reference_weight {
            ensure!(weight > 0.0 && weight.is_finite(), "reference-weight must be positive");
        }
        ensure!(self.liveness.0 >= Duration::from_millis(100), "liveness is too short");
        if self.deterministic && self.policy != PolicySpec::Full {
            bail!("deterministic needs --policy full: which workers are in time is not determined");
        }
        if self.straggler == Some(Straggler::Salvage) && self.micro_batches < 2 {
            bail!("straggler salvage needs at least two micro-batches: of one there is no part");
        }
        self.costs()?;
        self.check_shards()?;
        if self.late == Late::Fold && self.straggler() != Straggler::Finish {
            bail!("late fold needs --straggler finish: others give up what they are at");
        }
        if self.objective() == Objective::Progress && !self.policy.weighs() {
            bail!(
                "objective progress needs a policy that weighs when to cut (auto, filter, empirical, \
                 elfving, bdsgd): {} does not",
                self.policy
            );
        }
        if self.rebalance && !self.policy.foresees() {
            bail!("rebalance needs a policy that knows how long each worker takes: auto or filter");
        }
        let named = self.scenario()?.workers();
        let strangers: Vec<String> =
            named.iter().filter(|&&w| w >= self.workers).map(ToString::to_string).collect();
        ensure!(
            strangers.is_empty(),
            "stragglers names worker {}, but there are {}, numbered from 0",
            strangers.join(", "),
            self.workers
        );
        Ok(())
    }

    /// Where shards may be left behind, nothing may need all of them at once.
    fn check_shards(&self) -> Result<()> {
        let slow = self.scenario()?.shards;
        if let Some((shard, _)) = slow.iter().find(|(shard, _)| **shard >= self.shards) {
            bail!("stragglers names shard {shard}, but there are {}, from 0", self.shards);
        }
        let all = match (self.pull, self.push) {
            (Enough::All, Enough::All) => return Ok(()),
            (_, Enough::All) => "--pull all",
            (Enough::All, _) => "--push all",
            _ => "--pull all and --push all",
        };
        ensure!(self.max_stale > 0, "max-stale must be at least 1 where shards may be left behind");
        ensure!(!self.deterministic, "deterministic needs {all}");
        ensure!(self.clip == Clip::None, "clip needs {all}: the norm is of all shards' sums");
        ensure!(self.late == Late::Drop, "late fold needs {all}");
        let lag = self.policy.build().admissible_lag();
        ensure!(lag == 0, "async and stale need {all}: their gradients are of many versions");
        let finishes = self.push != Enough::All && self.straggler() == Straggler::Finish;
        ensure!(!finishes, "straggler finish needs --push all: what is late is dropped as a whole");
        Ok(())
    }
}
