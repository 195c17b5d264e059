//! Rules for settings: their ranges, and the combinations that work. [`crate::serve`] refuses to run with
//! others.

use std::time::Duration;

use paceline_core::{Enough, Late, MAX_WORKERS, RoundConfig};
use paceline_params::{Clip, UpdateConfig};
use paceline_policy::{Objective, PolicySpec};
use paceline_wire::frame::MAX_BLOCK;
use thiserror::Error;

use crate::config::{Limits, Placement, ServerConfig, WeakSync};

/// The most shards of a run. Each has a thread, and a connection from every worker.
pub const MAX_SHARDS: u32 = 1024;

/// The shortest time after which a silent worker may count as dead.
const SHORTEST_LIVENESS: Duration = Duration::from_millis(100);

/// The longest block that a frame carries, in elements.
const MAX_BLOCK_ELEMS: usize = MAX_BLOCK / size_of::<f32>();

/// Errors in the settings of a run. Settings have the names that users know.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ConfigError {
    /// A number that is too small or too large.
    #[error("{setting} must be from {least} to {most}, not {found}")]
    OutOfRange {
        /// The setting.
        setting: &'static str,
        /// The smallest value that is allowed.
        least: u64,
        /// The largest value that is allowed.
        most: String,
        /// The value.
        found: u64,
    },
    /// A count of zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A number that must be positive and finite.
    #[error("{0} must be a positive number")]
    NotPositive(&'static str),
    /// A target accuracy outside 0 to 1.
    #[error("target-accuracy must be from 0 to 1")]
    NoShare,
    /// The timeout leaves workers too little time for heartbeats.
    #[error("liveness is too short: {liveness:?} with a heartbeat every {heartbeat:?}")]
    ShortLiveness {
        /// Silence after which a worker is dead.
        liveness: Duration,
        /// Time between heartbeats.
        heartbeat: Duration,
    },
    /// A setting that works only with certain values of another.
    #[error("{setting} needs {needs}: {why}")]
    Needs {
        /// The setting, and its value if that matters.
        setting: String,
        /// The other setting that it needs.
        needs: &'static str,
        /// The reason.
        why: String,
    },
}

/// The settings of a run that are checked together, before the run starts.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// When a round stops waiting.
    pub policy: PolicySpec,
    /// What the policy maximises.
    pub objective: Objective,
    /// Quorum, stragglers, batches.
    pub round: &'a RoundConfig,
    /// Shards and blocks.
    pub placement: &'a Placement,
    /// How far rounds and workers wait for slow shards.
    pub weak: WeakSync,
    /// How an update is made.
    pub update: &'a UpdateConfig,
    /// When the run is over.
    pub limits: &'a Limits,
    /// Whether sums are made in worker order.
    pub deterministic: bool,
    /// Time between a worker's heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a worker is dead.
    pub liveness: Duration,
}

impl Rules<'_> {
    /// Checks every range and every combination.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_ranges()?;
        self.check_updates()?;
        self.check_policy()?;
        self.check_stragglers()?;
        self.check_weak()
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let RoundConfig { expected, quorum, batch, micro_batches, .. } = *self.round;
        range("workers", expected as u64, u64::from(MAX_WORKERS))?;
        range("shards", u64::from(self.placement.shards), u64::from(MAX_SHARDS))?;
        range("block size", self.placement.block_elems as u64, MAX_BLOCK_ELEMS as u64)?;
        at_least_one("batch", u64::from(batch))?;
        let of_batch = format!("the batch ({batch})");
        range_to("micro-batches", u64::from(micro_batches), u64::from(batch), of_batch)?;
        let of_workers = format!("the number of workers ({expected})");
        range_to("quorum", quorum as u64, expected as u64, of_workers)?;
        let (heartbeat, liveness) = (self.heartbeat, self.liveness);
        match liveness < SHORTEST_LIVENESS || heartbeat.is_zero() || heartbeat >= liveness {
            true => Err(ConfigError::ShortLiveness { liveness, heartbeat }),
            false => Ok(()),
        }
    }

    fn check_updates(&self) -> Result<(), ConfigError> {
        let rates = [
            ("lr", f64::from(self.update.learning_rate)),
            ("reference-weight", self.update.reference_weight),
            ("target-loss", self.limits.loss.unwrap_or(1.0)),
        ];
        for (setting, value) in rates {
            if !(value > 0.0 && value.is_finite()) {
                return Err(ConfigError::NotPositive(setting));
            }
        }
        match self.limits.accuracy.is_none_or(|target| (0.0..=1.0).contains(&target)) {
            true => Ok(()),
            false => Err(ConfigError::NoShare),
        }
    }

    fn check_policy(&self) -> Result<(), ConfigError> {
        let policy = self.policy;
        needs(
            self.deterministic && policy != PolicySpec::Full,
            "deterministic",
            "--policy full",
            "which workers are in time is not determined",
        )?;
        needs(
            self.objective == Objective::Progress && !policy.weighs(),
            "objective progress",
            "a policy that weighs when to cut (auto, filter, empirical, elfving, bdsgd)",
            &format!("{policy} does not"),
        )?;
        needs(
            self.round.rebalance && !policy.foresees(),
            "rebalance",
            "--policy auto or filter",
            "others do not know how long each worker takes",
        )
    }

    fn check_stragglers(&self) -> Result<(), ConfigError> {
        let RoundConfig { straggler, late, micro_batches, .. } = *self.round;
        needs(
            straggler.counts_parts() && micro_batches < 2,
            "straggler salvage",
            "at least two micro-batches",
            "one has no part that could be finished",
        )?;
        needs(
            late == Late::Fold && !straggler.keeps_work(),
            "late fold",
            "--straggler finish",
            "other stragglers give up their work at the cut",
        )
    }

    /// Where shards may be left behind, no setting may need all of them at once.
    fn check_weak(&self) -> Result<(), ConfigError> {
        let all = match (self.weak.pull, self.weak.push) {
            (Enough::All, Enough::All) => return Ok(()),
            (_, Enough::All) => "--pull all",
            (Enough::All, _) => "--push all",
            _ => "--pull all and --push all",
        };
        at_least_one("max-stale", self.weak.max_stale)?;
        let (policy, lag) = (self.policy, self.policy.build().admissible_lag());
        let policy = format!("policy {policy}");
        let whole = [
            (self.deterministic, "deterministic", "it hashes one version of all parameters"),
            (self.update.clip != Clip::None, "clip", "the norm is that of all shards' sums"),
            (self.round.late == Late::Fold, "late fold", "late gradients are folded whole"),
            (lag > 0, &policy, "its gradients are of many versions"),
        ];
        for (wanted, setting, why) in whole {
            needs(wanted, setting, all, why)?;
        }
        needs(
            self.weak.push != Enough::All && self.round.straggler.keeps_work(),
            "straggler finish",
            "--push all",
            "a late contribution is dropped as a whole",
        )
    }
}

impl ServerConfig {
    /// Checks everything that [`crate::serve`] relies on.
    pub fn check(&self) -> Result<(), ConfigError> {
        let kept = self.checkpoints.as_ref().map_or(1, |checkpoints| checkpoints.keep);
        at_least_one("keep-checkpoints", kept as u64)?;
        at_least_one("samples", u64::from(self.samples.unwrap_or(1)))?;
        let rules = Rules {
            policy: self.policy,
            objective: self.objective,
            round: &self.round,
            placement: &self.placement,
            weak: self.weak,
            update: &self.update,
            limits: &self.limits,
            deterministic: self.deterministic,
            heartbeat: self.heartbeat,
            liveness: self.liveness,
        };
        rules.check()?;
        needs(
            self.samples.is_none() && self.limits.epochs.is_some(),
            "epochs",
            "a data set",
            "a stream has no epochs",
        )?;
        needs(
            self.placement.remote && !self.shard_faults.is_empty(),
            "shard-faults",
            "shards in this process",
            "a shard in a process of its own is given its faults there",
        )
    }
}

fn at_least_one(setting: &'static str, found: u64) -> Result<(), ConfigError> {
    if found > 0 { Ok(()) } else { Err(ConfigError::Zero(setting)) }
}

fn range(setting: &'static str, found: u64, most: u64) -> Result<(), ConfigError> {
    range_to(setting, found, most, most.to_string())
}

fn range_to(
    setting: &'static str,
    found: u64,
    most: u64,
    named: String,
) -> Result<(), ConfigError> {
    match (1..=most).contains(&found) {
        true => Ok(()),
        false => Err(ConfigError::OutOfRange { setting, least: 1, most: named, found }),
    }
}

fn needs(lacks: bool, setting: &str, needs: &'static str, why: &str) -> Result<(), ConfigError> {
    match lacks {
        true => Err(ConfigError::Needs { setting: setting.to_owned(), needs, why: why.to_owned() }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use paceline_params::{LrScaling, OptimizerSpec, Schedule};

    use paceline_core::Straggler;

    use super::*;

    /// The settings of a small run that pass the checks.
    struct Settings {
        policy: PolicySpec,
        objective: Objective,
        round: RoundConfig,
        placement: Placement,
        weak: WeakSync,
        update: UpdateConfig,
        limits: Limits,
        deterministic: bool,
        heartbeat: Duration,
    }

    /// The error after `change`, in words; empty if there is none.
    fn error(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings {
            policy: PolicySpec::Full,
            objective: Objective::Samples,
            round: RoundConfig {
                expected: 4,
                batch: 8,
                micro_batches: 2,
                ..RoundConfig::default()
            },
            placement: Placement { shards: 2, remote: false, block_elems: 128, staging_bytes: 1 },
            weak: WeakSync::default(),
            update: UpdateConfig {
                optimizer: OptimizerSpec::SGD.into(),
                learning_rate: 0.1,
                schedule: Schedule::CONSTANT,
                scaling: LrScaling::None,
                reference_weight: 1.0,
                clip: Clip::None,
            },
            limits: Limits::default(),
            deterministic: false,
            heartbeat: Duration::from_millis(20),
        };
        change(&mut settings);
        let rules = Rules {
            policy: settings.policy,
            objective: settings.objective,
            round: &settings.round,
            placement: &settings.placement,
            weak: settings.weak,
            update: &settings.update,
            limits: &settings.limits,
            deterministic: settings.deterministic,
            heartbeat: settings.heartbeat,
            liveness: SHORTEST_LIVENESS,
        };
        rules.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(error(|_| ()), "");
        assert_eq!(error(|s| s.round.expected = 4097), "workers must be from 1 to 4096, not 4097");
        assert_eq!(error(|s| s.placement.shards = 0), "shards must be from 1 to 1024, not 0");
        let block = error(|s| s.placement.block_elems = MAX_BLOCK_ELEMS + 1);
        assert_eq!(block, "block size must be from 1 to 16777216, not 16777217");
        assert_eq!(error(|s| s.round.batch = 0), "batch must be at least 1");
        let parts = error(|s| s.round.micro_batches = 9);
        assert_eq!(parts, "micro-batches must be from 1 to the batch (8), not 9");
        let quorum = error(|s| s.round.quorum = 5);
        assert_eq!(quorum, "quorum must be from 1 to the number of workers (4), not 5");
        let rate = error(|s| s.update.learning_rate = f32::NAN);
        assert_eq!(rate, "lr must be a positive number");
        let weight = error(|s| s.update.reference_weight = 0.0);
        assert_eq!(weight, "reference-weight must be a positive number");
        let loss = error(|s| s.limits.loss = Some(f64::INFINITY));
        assert_eq!(loss, "target-loss must be a positive number");
        assert!(error(|s| s.limits.accuracy = Some(1.1)).contains("from 0 to 1"));
        assert!(error(|s| s.heartbeat = SHORTEST_LIVENESS).contains("liveness is too short"));
        assert!(error(|s| s.heartbeat = Duration::ZERO).contains("liveness is too short"));
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused() {
        let policy = |text: &str| text.parse::<PolicySpec>().unwrap();
        let exact = error(|s| (s.deterministic, s.policy) = (true, policy("static:2")));
        assert!(exact.starts_with("deterministic needs --policy full"), "{exact}");
        let progress = error(|s| s.objective = Objective::Progress);
        assert!(progress.starts_with("objective progress needs a policy"), "{progress}");
        assert!(error(|s| s.round.rebalance = true).starts_with("rebalance needs"));
        let salvage =
            |s: &mut Settings| (s.round.straggler, s.round.micro_batches) = (Straggler::Salvage, 1);
        assert!(error(salvage).starts_with("straggler salvage needs at least two micro-batches"));
        let late = error(|s| s.round.late = Late::Fold);
        assert!(late.starts_with("late fold needs --straggler finish"), "{late}");
    }

    #[test]
    fn shards_that_may_be_left_behind_go_with_nothing_that_needs_all() {
        fn weak(s: &mut Settings) {
            (s.weak.push, s.weak.max_stale) = (Enough::Auto, 8);
        }
        assert_eq!(error(weak), "");
        assert_eq!(error(|s| s.weak.pull = Enough::Auto), "max-stale must be at least 1");
        let refused = |needs: &str, change: fn(&mut Settings)| {
            let error = error(|s| {
                weak(s);
                change(s);
            });
            assert!(error.starts_with(needs), "{error}");
        };
        refused("deterministic needs --push all", |s| s.deterministic = true);
        refused("clip needs --push all", |s| s.update.clip = "norm:1".parse().unwrap());
        refused("policy async needs --push all", |s| s.policy = PolicySpec::Stale(None));
        refused("straggler finish needs --push all", |s| s.round.straggler = Straggler::Finish);
        refused("late fold needs --pull all and --push all", |s| {
            (s.weak.pull, s.round.late, s.round.straggler) =
                (Enough::Auto, Late::Fold, Straggler::Finish);
        });
    }
}
