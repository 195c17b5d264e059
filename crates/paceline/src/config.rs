//! The settings of a run: defaults, then the config file, then the environment, then flags.
//!
//! [`RunConfig`] is what holds in the end and what a config file may say; [`RunFlags`] is the layer
//! that environment and flags make. Layers are laid over each other as TOML tables.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use paceline_core::{Enough, Late, RoundConfig, Straggler};
use paceline_nn::{CostSpec, DataSource, ModelSpec};
use paceline_params::{Clip, LrScaling, OptimizerSpec, Schedule, UpdateConfig, WireType};
use paceline_policy::{Cutoff, Objective, PolicySpec};
use paceline_server::{Limits, Placement};
use paceline_wire::Transport;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{flags::RunFlags, scenario::Scenario, span::Span};

/// Settings that cannot be used, as opposed to a run that failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Everything that a run can be told. A config file has the same names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct RunConfig {
    pub(crate) name: Option<String>,
    pub(crate) run_dir: String,
    pub(crate) workers: u32,
    pub(crate) shards: u32,
    #[serde(serialize_with = "text", deserialize_with = "parsed")]
    pub(crate) model: ModelSpec,
    #[serde(serialize_with = "text", deserialize_with = "parsed")]
    pub(crate) data: DataSource,
    pub(crate) pull: Enough,
    pub(crate) push: Enough,
    pub(crate) max_stale: u64,
    pub(crate) shard_nominal: Option<Span>,
    pub(crate) costs: Option<String>,
    pub(crate) balance: bool,
    pub(crate) seed: u64,
    pub(crate) policy: PolicySpec,
    pub(crate) run_time_model: Option<String>,
    pub(crate) quorum: u32,
    pub(crate) quorum_grace: Span,
    pub(crate) join_grace: Span,
    pub(crate) liveness: Span,
    pub(crate) straggler: Option<Straggler>,
    pub(crate) late: Late,
    pub(crate) objective: Option<Objective>,
    pub(crate) rebalance: bool,
    pub(crate) batch: u32,
    pub(crate) micro_batches: u32,
    pub(crate) optimizer: OptimizerSpec,
    pub(crate) lr: f32,
    pub(crate) schedule: Schedule,
    pub(crate) lr_scaling: Option<LrScaling>,
    pub(crate) reference_weight: Option<f64>,
    pub(crate) clip: Clip,
    pub(crate) rounds: Option<u64>,
    pub(crate) epochs: Option<u32>,
    pub(crate) target_accuracy: Option<f64>,
    pub(crate) target_loss: Option<f64>,
    pub(crate) time_limit: Option<Span>,
    pub(crate) deterministic: bool,
    pub(crate) eval_every: Option<u64>,
    pub(crate) checkpoint_every: Option<u64>,
    pub(crate) keep_checkpoints: usize,
    pub(crate) staging_mb: u64,
    pub(crate) block_kib: usize,
    pub(crate) transport: Transport,
    pub(crate) wire: WireType,
    pub(crate) stragglers: String,
    pub(crate) nominal: Option<Span>,
}

/// Settings that say when a run is over.
const LIMITS: [&str; 5] = ["rounds", "epochs", "target-accuracy", "target-loss", "time-limit"];

/// How long a run is when nothing says when to stop.
const DEFAULT_EPOCHS: u32 = 5;

impl Default for RunConfig {
    fn default() -> Self {
        RunConfig {
            name: None,
            run_dir: "runs".to_owned(),
            workers: 4,
            shards: 2,
            model: ModelSpec::Cnn,
            data: DataSource::Embedded,
            pull: Enough::All,
            push: Enough::All,
            max_stale: 8,
            shard_nominal: None,
            costs: None,
            balance: true,
            seed: 1,
            policy: PolicySpec::default(),
            run_time_model: None,
            quorum: 1,
            quorum_grace: Span::secs(10),
            join_grace: Span::secs(60),
            liveness: Span::secs(10),
            straggler: None,
            late: Late::Drop,
            objective: None,
            rebalance: false,
            batch: 32,
            micro_batches: 4,
            optimizer: OptimizerSpec::MOMENTUM,
            lr: 0.02,
            schedule: Schedule::default(),
            lr_scaling: None,
            reference_weight: None,
            clip: Clip::None,
            rounds: None,
            epochs: None,
            target_accuracy: None,
            target_loss: None,
            time_limit: None,
            deterministic: false,
            eval_every: None,
            checkpoint_every: None,
            keep_checkpoints: 2,
            staging_mb: 2048,
            block_kib: 1024,
            transport: Transport::Auto,
            wire: WireType::F32,
            stragglers: String::new(),
            nominal: None,
        }
    }
}

impl RunConfig {
    /// Lays the flags (and environment) over the file (if any) over the defaults.
    pub(crate) fn layered(file: Option<&Path>, flags: &RunFlags) -> Result<Self> {
        Self::lay(file, flags, false).map_err(|error| Usage(format!("{error:#}")).into())
    }

    /// Lays the flags over the settings that a run was left with. Whatever they say of when to stop
    /// replaces all that was said of it then.
    pub(crate) fn resumed(saved: &Path, flags: &RunFlags) -> Result<Self> {
        Self::lay(Some(saved), flags, true).map_err(|error| Usage(format!("{error:#}")).into())
    }

    fn lay(file: Option<&Path>, flags: &RunFlags, resumed: bool) -> Result<Self> {
        let mut table = match file {
            Some(path) => {
                let text = fs::read_to_string(path)
                    .with_context(|| format!("failed to read the config {}", path.display()))?;
                parse(&text).with_context(|| format!("in the config {}", path.display()))?
            }
            None => toml::Table::new(),
        };
        let flags = toml::Table::try_from(flags).context("failed to read the flags")?;
        // What was wanted of one policy may not be of another.
        if resumed && flags.contains_key("policy") {
            table.remove("objective");
        }
        if resumed && LIMITS.iter().any(|limit| flags.contains_key(*limit)) {
            LIMITS.iter().for_each(|limit| drop(table.remove(*limit)));
        }
        table.extend(flags);
        let config: RunConfig = table.try_into().context("failed to put the settings together")?;
        config.check()?;
        Ok(config)
    }

    /// What samples cost, if they are not alike.
    pub(crate) fn costs(&self) -> Result<Option<CostSpec>> {
        let costs = self.costs.as_deref().map(str::parse).transpose();
        costs.map_err(|error: String| anyhow::anyhow!("costs: {error}"))
    }

    /// What is allowed and most likely not meant.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let workers = self.workers;
        let count = match self.policy {
            PolicySpec::Static(Cutoff::Count(wanted)) if wanted > workers => Some(format!(
                "static:{wanted} waits for more workers than there are ({workers}): it is full"
            )),
            _ => None,
        };
        let (heartbeat, liveness) = (self.heartbeat(), self.liveness);
        let lost = self.longest_stop().filter(|stop| *stop + 2 * heartbeat > liveness.0);
        let stop = lost.map(Span).map(|stop| {
            format!("a worker stopped for {stop} may be lost: it counts as dead after {liveness}")
        });
        let adascale = self.lr_scaling() == LrScaling::AdaScale;
        let alone = (adascale && matches!(self.policy, PolicySpec::Stale(_))).then(|| {
            format!(
                "lr-scaling adascale is linear with {}: of one contribution a round nothing is learnt \
                 about the noise",
                self.policy
            )
        });
        let apart = self.pull != Enough::All || self.push != Enough::All;
        let by_tcp = (apart && self.transport == Transport::Auto).then(|| {
            "with --pull or --push other than all gradients and parameters go by TCP, not by shared memory"
                .to_owned()
        });
        count.into_iter().chain(stop).chain(alone).chain(by_tcp).collect()
    }

    pub(crate) fn scenario(&self) -> Result<Scenario> {
        Ok(self.stragglers.parse()?)
    }

    fn longest_stop(&self) -> Option<Duration> {
        self.scenario().ok()?.longest_stop()
    }

    /// How often a worker gives a sign of life: often enough that one that was stopped for less than
    /// the liveness is heard again in time, by half of what is left.
    pub(crate) fn heartbeat(&self) -> Duration {
        const SHORTEST: Duration = Duration::from_millis(50);
        let liveness = self.liveness.0;
        let usual = (liveness / 5).min(Duration::from_secs(1));
        let left = self.longest_stop().and_then(|stop| liveness.checked_sub(stop));
        left.map_or(usual, |left| usual.min(SHORTEST.max(left / 2)))
    }

    /// Writes down what follows from other settings, so that it stays when those change.
    pub(crate) fn settle(&mut self) {
        // A resume with other workers keeps the meaning of the learning rate.
        self.reference_weight = Some(self.full_weight());
        self.lr_scaling = Some(self.lr_scaling());
        self.objective = Some(self.objective());
        self.epochs = self.limits().epochs;
        // A run may be resumed from elsewhere.
        let here = |path: &mut String| {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute.display().to_string();
            }
        };
        self.run_time_model.as_mut().map(here);
        if let Ok(Some(CostSpec::File(_))) = self.costs() {
            self.costs.as_mut().map(here);
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        let targets = self.target_accuracy.or(self.target_loss);
        let unlimited = self.rounds.is_none() && targets.is_none() && self.time_limit.is_none();
        Limits {
            rounds: self.rounds,
            epochs: self.epochs.or(unlimited.then_some(DEFAULT_EPOCHS)),
            accuracy: self.target_accuracy,
            loss: self.target_loss,
            time: self.time_limit.map(|span| span.0),
        }
    }

    pub(crate) fn round(&self) -> RoundConfig {
        RoundConfig {
            quorum: self.quorum as usize,
            quorum_grace: self.quorum_grace.0,
            expected: self.workers as usize,
            join_grace: self.join_grace.0,
            straggler: self.straggler(),
            late: self.late,
            micro_batches: self.micro_batches,
            batch: self.batch,
            rebalance: self.rebalance,
            blocks: 0,
        }
    }

    /// What stragglers do: what is finished counts, unless something else is asked for. Who waits for
    /// all has none.
    pub(crate) fn straggler(&self) -> Straggler {
        self.straggler.unwrap_or(match self.micro_batches > 1 && self.policy != PolicySpec::Full {
            true => Straggler::Salvage,
            false => Straggler::Abort,
        })
    }

    /// What a round wants the most of: what suits the policy, unless something else is asked for.
    pub(crate) fn objective(&self) -> Objective {
        self.objective.unwrap_or(self.policy.objective())
    }

    /// How the learning rate follows what is contributed: as the objective values it, unless something
    /// else is asked for.
    pub(crate) fn lr_scaling(&self) -> LrScaling {
        self.lr_scaling.unwrap_or(usual_scaling(self.objective()))
    }

    pub(crate) fn placement(&self, remote: bool) -> Placement {
        Placement {
            shards: self.shards,
            remote,
            block_elems: self.block_kib * 1024 / size_of::<f32>(),
            staging_bytes: self.staging_mb << 20,
        }
    }

    pub(crate) fn update(&self) -> UpdateConfig {
        UpdateConfig {
            optimizer: self.optimizer,
            learning_rate: self.lr,
            schedule: self.schedule,
            scaling: self.lr_scaling(),
            reference_weight: self.full_weight(),
            clip: self.clip,
        }
    }

    /// Samples of a round in which everybody contributes.
    pub(crate) fn full_weight(&self) -> f64 {
        self.reference_weight.unwrap_or(f64::from(self.workers) * f64::from(self.batch))
    }

    /// Rounds in which everybody contributes until `samples` are used.
    pub(crate) fn rounds_per_epoch(&self, samples: u32) -> u64 {
        u64::from(samples).div_ceil(u64::from(self.workers) * u64::from(self.batch)).max(1)
    }
}

/// The scaling that realises what an objective values.
pub(crate) fn usual_scaling(objective: Objective) -> LrScaling {
    match objective {
        Objective::Samples => LrScaling::Linear,
        Objective::Progress => LrScaling::AdaScale,
    }
}

/// Reads a config file as a table, having checked every name and value in it: errors have lines.
fn parse(text: &str) -> Result<toml::Table> {
    toml::from_str::<RunConfig>(text)?;
    Ok(toml::from_str(text)?)
}

pub(crate) fn text<T: ToString, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn parsed<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn refused(text: &str, parts: &[&str]) {
        let error = parse(text).map(drop).unwrap_err();
        let error = format!("{error:#}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }

    #[test]
    fn what_a_file_says_wrongly_is_named_with_its_line() {
        refused("workers = 2\nwrokers = 3\n", &["line 2", "wrokers"]);
        refused("\n\npolicy = \"fastest\"", &["line 3", "unknown policy `fastest`"]);
        refused("model = \"transformer\"", &["line 1", "transformer"]);
        refused("lr = \"fast\"", &["line 1"]);
        refused("wire = \"f64\"", &["line 1", "unknown wire type `f64` (known: f32, bf16, f16)"]);
        refused("time-limit = \"soon\"", &["line 1", "soon"]);
        refused("workers = ", &["line 1"]);
    }

    #[test]
    fn flags_go_over_the_file_and_the_file_over_the_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        fs::write(&path, "workers = 8\nbatch = 64\ntime-limit = 90\n").unwrap();
        let flags = RunFlags { batch: Some(16), ..RunFlags::default() };
        let config = RunConfig::layered(Some(&path), &flags).unwrap();
        assert_eq!((config.workers, config.batch, config.shards), (8, 16, 2));
        assert_eq!(config.time_limit, Some(Span::secs(90)));
        assert_eq!(config.limits().epochs, None, "a time limit is limit enough");
    }

    #[test]
    fn limits_given_on_a_resume_replace_those_of_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, "workers = 2\nquorum = 2\nrounds = 6\ntime-limit = 90\n").unwrap();
        let longer = RunFlags { epochs: Some(2), ..RunFlags::default() };
        let config = RunConfig::resumed(&path, &longer).unwrap();
        let Limits { rounds, epochs, accuracy, loss, time } = config.limits();
        assert_eq!((rounds, epochs, accuracy, loss, time), (None, Some(2), None, None, None));
        let other = RunFlags { batch: Some(16), ..RunFlags::default() };
        assert_eq!(RunConfig::resumed(&path, &other).unwrap().limits().rounds, Some(6));
    }

    #[test]
    fn what_a_policy_wants_is_written_down_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        let mut config = RunConfig::default();
        assert_eq!(config.objective(), Objective::Progress);
        config.settle();
        fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
        let resumed = |policy: Option<&str>| {
            let policy = policy.map(|policy| policy.parse().unwrap());
            let flags = RunFlags { policy, ..RunFlags::default() };
            let config = RunConfig::resumed(&path, &flags).unwrap();
            (config.objective(), config.lr_scaling())
        };
        assert_eq!(resumed(None), (Objective::Progress, LrScaling::AdaScale));
        // The learning rate keeps its meaning.
        assert_eq!(resumed(Some("static:2")), (Objective::Samples, LrScaling::AdaScale));
        let stale = RunConfig { policy: "stale:3".parse().unwrap(), ..config };
        assert!(stale.doubts()[0].contains("adascale is linear with stale:3"));
    }

    #[test]
    fn the_effective_config_reads_back_as_itself() {
        let config = RunConfig { time_limit: Some(Span::secs(3)), ..RunConfig::default() };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<RunConfig>(&text).unwrap(), config);
    }

    #[test]
    fn settings_that_contradict_each_other_or_all_sense_are_refused() {
        let none = RunFlags::default;
        let check = |flags: RunFlags| RunConfig::layered(None, &flags).unwrap_err().to_string();
        let quorum = check(RunFlags { quorum: Some(9), ..RunFlags::default() });
        assert!(quorum.contains("quorum must be from 1 to the number of workers (4), not 9"));
        let mistaken = RunFlags { stragglers: Some("slow:4:2,kill:9@3".into()), ..none() };
        assert!(check(mistaken).contains("worker 4, 9, but there are 4"));
        let crowded = RunFlags { stragglers: Some("crowd:2-4,stop:7:5s:1s".into()), ..none() };
        assert!(check(crowded).contains("worker 4, 7, but there are 4"));
        assert!(check(RunFlags { shards: Some(1025), ..none() }).contains("from 1 to 1024"));
        assert!(check(RunFlags { shards: Some(0), ..none() }).contains("from 1 to 1024"));
        assert!(check(RunFlags { workers: Some(5000), ..none() }).contains("from 1 to 4096"));
        assert!(check(RunFlags { staging_mb: Some(0), ..none() }).contains("staging-mb must be"));
        assert!(check(RunFlags { staging_mb: Some(u64::MAX >> 1), ..none() }).contains("16777216"));
        assert!(check(RunFlags { block_kib: Some(65_537), ..none() }).contains("from 1 to 65536"));
        assert!(check(RunFlags { block_kib: Some(0), ..none() }).contains("block-kib must be"));
        let exact = check(RunFlags { deterministic: Some(true), ..RunFlags::default() });
        assert!(exact.contains("--policy full"));
    }

    #[test]
    fn a_count_that_no_round_can_reach_is_doubted() {
        let policy =
            |text: &str| RunConfig { policy: text.parse().unwrap(), ..RunConfig::default() };
        assert!(policy("static:5").doubts()[0].contains("more workers than there are (4)"));
        assert!(policy("static:4").doubts().is_empty());
        assert!(policy("static:0.9").doubts().is_empty());
    }

    #[test]
    fn a_stop_shorter_than_liveness_leaves_time_for_a_sign_of_life() {
        let stopped = |stragglers: &str| RunConfig {
            stragglers: stragglers.to_owned(),
            liveness: Span::secs(4),
            ..RunConfig::default()
        };
        let ms = Duration::from_millis;
        for (stragglers, heartbeat) in [
            ("slow:1:2", ms(800)),
            ("stop:1:9s:1s", ms(800)),
            ("stop:1:9s:3s", ms(500)),
            ("stop:1:9s:3900ms", ms(50)),
            ("stop:1:9s:3999ms", ms(50)),
            ("stop:1:9s:5s", ms(800)),
        ] {
            assert_eq!(stopped(stragglers).heartbeat(), heartbeat, "{stragglers}");
        }
        assert!(stopped("stop:1:9s:3900ms").doubts().is_empty());
        assert!(stopped("stop:1:9s:3999ms").doubts()[0].contains("stopped for 3999ms may be lost"));
        assert!(stopped("stop:1:9s:4s").doubts()[0].contains("stopped for 4s may be lost"));
    }

    /// The names of all settings.
    fn known() -> impl Strategy<Value = String> {
        let config = RunConfig {
            name: Some(String::new()),
            reference_weight: Some(1.0),
            rounds: Some(1),
            epochs: Some(1),
            target_accuracy: Some(0.5),
            target_loss: Some(0.5),
            time_limit: Some(Span::secs(1)),
            eval_every: Some(1),
            checkpoint_every: Some(1),
            nominal: Some(Span::secs(1)),
            straggler: Some(Straggler::Abort),
            objective: Some(Objective::Progress),
            lr_scaling: Some(LrScaling::Linear),
            costs: Some("lognormal:1".to_owned()),
            run_time_model: Some(String::new()),
            shard_nominal: Some(Span::secs(1)),
            ..RunConfig::default()
        };
        let names: Vec<String> =
            toml::Table::try_from(config).unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names.len(), 46, "a setting that is not drawn");
        prop::sample::select(names)
    }

    /// What somebody might write there.
    fn value() -> impl Strategy<Value = String> {
        let words = [
            "full",
            "static:3",
            "static:0.5",
            "cnn",
            "synthetic:9",
            "embedded",
            "abort",
            "finish",
            "salvage",
            "adamw",
            "momentum:0.9,nesterov",
            "step:2:0.5",
            "warmup:3+cosine:9",
            "sqrt",
            "bf16",
            "norm:2",
            "tcp",
            "slow:1:2",
            "kill:0@3",
            "preempt:0@3:1s",
            "90s",
            "1e300h",
            "",
            "0.5",
            "nan",
        ];
        prop_oneof![
            prop::sample::select(words.to_vec()).prop_map(|word| format!("\"{word}\"")),
            any::<i64>().prop_map(|n| n.to_string()),
            (0..100i64).prop_map(|n| n.to_string()),
            any::<f64>().prop_map(|x| format!("{x:?}").replace("NaN", "nan")),
            any::<bool>().prop_map(|b| b.to_string()),
            "\"[a-z0-9:.@+,-]{0,12}\"",
        ]
    }

    proptest! {
        #[test]
        fn any_text_is_a_config_or_an_error_and_never_a_panic(
            text in "([a-z-]{1,12} ?= ?[\"a-z0-9:.+-]{0,12}\n){0,4}.{0,20}",
        ) {
            let _ = parse(&text);
        }

        #[test]
        fn any_values_of_known_settings_are_a_config_or_an_error_that_names_one(
            lines in prop::collection::vec((known(), value()), 1..5),
        ) {
            let text: String =
                lines.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
            match parse(&text).and_then(|table| Ok(table.try_into::<RunConfig>()?)) {
                Ok(config) => {
                    let written = toml::to_string(&config).unwrap();
                    prop_assert_eq!(toml::from_str::<RunConfig>(&written).unwrap(), config.clone());
                    // Sense or nonsense, it is told apart without a panic.
                    if config.check().is_ok() {
                        let _ = (config.limits(), config.placement(false), config.update());
                    }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    prop_assert!(error.contains("line "), "{}", error);
                }
            }
        }

        #[test]
        fn numbers_out_of_range_are_refused_not_wrapped(n in any::<i64>()) {
            let parsed = parse(&format!("workers = {n}"));
            prop_assert_eq!(parsed.is_ok(), u32::try_from(n).is_ok());
        }
    }
}
