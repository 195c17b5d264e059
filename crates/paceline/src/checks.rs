//! Checks of the command line: its units, and the workers and shards that it names. What a run cannot do,
//! `paceline-server` knows.

use anyhow::{Result, bail, ensure};
use paceline_server::Rules;
use paceline_wire::frame::MAX_BLOCK;

use crate::config::RunConfig;

/// The longest block that a frame carries, in KiB.
const MAX_BLOCK_KIB: usize = MAX_BLOCK >> 10;

/// The most staging memory, in MiB; more is a slip of the pen.
const MAX_STAGING_MB: u64 = 1 << 24;

impl RunConfig {
    /// What can be wrong although every single setting is well-formed.
    pub(crate) fn check(&self) -> Result<()> {
        let (block_kib, staging_mb) = (self.cluster.block_kib, self.cluster.staging_mb);
        ensure!(
            (1..=MAX_BLOCK_KIB).contains(&block_kib),
            "block-kib must be from 1 to {MAX_BLOCK_KIB}, not {block_kib}",
        );
        ensure!(
            (1..=MAX_STAGING_MB).contains(&staging_mb),
            "staging-mb must be from 1 to {MAX_STAGING_MB}, not {staging_mb}",
        );
        ensure!(self.record.keep_checkpoints > 0, "keep-checkpoints must be at least 1");
        let rules = Rules {
            policy: self.round.policy,
            objective: self.objective(),
            round: &self.round_config(),
            placement: &self.placement(false),
            weak: self.weak_sync(),
            update: &self.update_config(),
            limits: &self.limits(),
            deterministic: self.round.deterministic,
            heartbeat: self.heartbeat(),
            liveness: self.round.liveness.0,
        };
        rules.check()?;
        self.check_offered()?;
        self.check_stragglers()
    }

    /// The server of a run whose workers bring their model has no model to evaluate, and cannot slow the
    /// workers from inside.
    fn check_offered(&self) -> Result<()> {
        if !self.is_offered() {
            return Ok(());
        }
        let stop = &self.stop;
        let unknown = [
            (stop.target_accuracy.is_some(), "target-accuracy"),
            (stop.target_loss.is_some(), "target-loss"),
            (self.record.eval_every.is_some(), "eval-every"),
            (self.task.costs.is_some(), "costs"),
            (self.faults.nominal.is_some(), "nominal"),
        ];
        if let Some((_, setting)) = unknown.into_iter().find(|(given, _)| *given) {
            bail!(
                "{setting} needs a model of this program: with --model offered workers bring theirs"
            );
        }
        ensure!(
            self.fault_plan()?.inside.only_kills(),
            "with --model offered workers can be slowed from outside only: hog, crowd, nice, stop, \
             preempt, kill, delay, loss and link",
        );
        Ok(())
    }

    /// Only workers and shards that there are can be slow.
    fn check_stragglers(&self) -> Result<()> {
        let (plan, workers, shards) =
            (self.fault_plan()?, self.cluster.workers, self.cluster.shards);
        let named = plan.workers();
        let strangers: Vec<String> =
            named.iter().filter(|&&w| w >= workers).map(ToString::to_string).collect();
        ensure!(
            strangers.is_empty(),
            "stragglers names worker {}, but there are {workers}, numbered from 0",
            strangers.join(", "),
        );
        let stranger = plan.shards.keys().find(|shard| **shard >= shards);
        ensure!(
            stranger.is_none(),
            "stragglers names shard {}, but there are {shards}, from 0",
            stranger.copied().unwrap_or_default(),
        );
        Ok(())
    }
}
