//! The summary of a run, as text and as JSON.

use std::{fmt, time::Duration};

use paceline_core::{LedgerReport, SampleCounts, ShardCounts, ShardWork};
use paceline_server::Outcome;
use serde::{Deserialize, Serialize};

use crate::config::RunConfig;

/// Ranges of unused samples that the terminal names; `summary.json` has all of them.
const NAMED_RANGES: usize = 4;

/// The content of `summary.json` and of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Summary {
    pub(crate) name: String,
    pub(crate) reason: String,
    pub(crate) success: bool,
    model: String,
    policy: String,
    workers: u32,
    shards: u32,
    wire: String,
    /// Rounds that this process closed.
    pub(crate) rounds: u64,
    /// Rounds in all, including those before a resume.
    version: u64,
    /// From the first round's start to the last update.
    pub(crate) seconds: f64,
    loss: Option<f64>,
    pub(crate) test_accuracy: Option<f64>,
    test_loss: Option<f64>,
    pub(crate) rounds_per_s: f64,
    samples_per_s: f64,
    samples: SampleCounts,
    /// Relative excess of the cost of samples in updates over that of samples handed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_bias: Option<f64>,
    ledger: LedgerReport,
    param_hash: Option<String>,
    data_plane: DataPlaneSummary,
}

/// Traffic between workers and shards, and the shards' time for it.
#[derive(Debug, Clone, Serialize)]
struct DataPlaneSummary {
    /// Sums over all shards.
    #[serde(flatten)]
    total: ShardCounts,
    shards: Vec<ShardWork>,
}

impl DataPlaneSummary {
    fn new(shards: &[ShardWork]) -> Self {
        let mut total = ShardCounts::default();
        shards.iter().for_each(|shard| total += shard.counts);
        DataPlaneSummary { total, shards: shards.to_vec() }
    }
}

impl fmt::Display for DataPlaneSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = &self.total;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "{:.1} MiB in, {:.1} MiB out ({} and {} frames), {:.1} MiB by shared memory",
            mib(total.bytes_in),
            mib(total.bytes_out),
            total.frames_in,
            total.frames_out,
            mib(total.bytes_shared),
        )?;
        let longest = |of: fn(&ShardWork) -> Duration| {
            self.shards.iter().map(of).max().unwrap_or_default().as_secs_f64()
        };
        write!(
            f,
            "  shards    {} blocks pulled fresh, {} left stale, {} without gradients; folded {:.2} s, at \
             most {} waiting; slowest: gradients {:.2} s on their way, updates {:.2} s",
            total.blocks_fresh,
            total.blocks_stale,
            total.blocks_missed,
            total.fold.as_secs_f64(),
            total.queue,
            longest(|shard| shard.parts),
            longest(|shard| shard.wait)
        )
    }
}

/// The part of a summary that a resumed run needs.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Earlier {
    pub(crate) version: u64,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) test_loss: Option<f64>,
}

impl Summary {
    pub(crate) fn new(config: &RunConfig, outcome: &Outcome, cost_bias: Option<f64>) -> Self {
        let per_second = |count: u64| match outcome.seconds > 0.0 {
            true => count as f64 / outcome.seconds,
            false => 0.0,
        };
        Summary {
            name: config.record.name.clone().unwrap_or_default(),
            reason: outcome.reason.to_string(),
            success: outcome.reason.is_success(),
            model: config.task.model.to_string(),
            policy: config.round.policy.to_string(),
            workers: config.cluster.workers,
            shards: config.cluster.shards,
            wire: config.cluster.wire.to_string(),
            rounds: outcome.rounds,
            version: outcome.version.0,
            seconds: outcome.seconds,
            loss: outcome.loss,
            test_accuracy: outcome.evaluation.map(|evaluation| evaluation.accuracy),
            test_loss: outcome.evaluation.map(|evaluation| evaluation.loss),
            rounds_per_s: per_second(outcome.rounds),
            samples_per_s: per_second(outcome.samples_here),
            samples: outcome.samples,
            cost_bias,
            ledger: outcome.ledger.clone(),
            param_hash: outcome.param_hash.map(|hash| hash.to_string()),
            data_plane: DataPlaneSummary::new(&outcome.shards),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: Option<f64>, scale: f64, unit: &str| {
            value.map_or("–".to_owned(), |value| format!("{:.*}{unit}", 3, value * scale))
        };
        writeln!(f, "{}: {}", self.name, self.reason)?;
        writeln!(
            f,
            "  rounds    {} in {:.1} s ({:.1}/s, {:.0} samples/s)",
            self.rounds, self.seconds, self.rounds_per_s, self.samples_per_s
        )?;
        let accuracy =
            self.test_accuracy.map_or("–".to_owned(), |a| format!("{:.2} %", a * 100.0));
        writeln!(
            f,
            "  loss      {} training, {} test; test accuracy {accuracy}",
            show(self.loss, 1.0, ""),
            show(self.test_loss, 1.0, "")
        )?;
        let SampleCounts { used, dropped, requeued, salvaged } = self.samples;
        writeln!(
            f,
            "  samples   {used} used ({salvaged} salvaged), {dropped} dropped, {requeued} requeued"
        )?;
        if let Some(bias) = self.cost_bias {
            writeln!(f, "  bias      samples in updates cost {:+.1} %", 100.0 * bias)?;
        }
        let open = self.ledger.unused.iter().map(|range| u64::from(range.len())).sum::<u64>();
        let balance = if self.ledger.balanced { "balances" } else { "DOES NOT BALANCE" };
        write!(f, "  ledger    {} epochs complete", self.ledger.epochs)?;
        if open > 0 {
            let ranges = self.ledger.unused.iter().take(NAMED_RANGES).map(ToString::to_string);
            let ranges = ranges.collect::<Vec<_>>().join(", ");
            let more = if self.ledger.unused.len() > NAMED_RANGES { ", …" } else { "" };
            write!(f, ", {open} samples of begun epochs not used yet ({ranges}{more})")?;
        }
        writeln!(f, "; {balance}")?;
        writeln!(f, "  data      {}", self.data_plane)?;
        write!(f, "  params    {}", self.param_hash.as_deref().unwrap_or("–"))
    }
}
