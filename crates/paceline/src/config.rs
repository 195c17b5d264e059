//! The settings of a run: defaults, then the config file, then the environment, then flags.
//!
//! The settings themselves are in `settings.rs`. [`RunConfig`] holds the values that are in force, and
//! [`RunFlags`] those that flags and environment give. Layers are laid over each other as TOML tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, Command};
use paceline_core::{Enough, RoundConfig, Span, Straggler};
use paceline_faults::FaultPlan;
use paceline_nn::CostSpec;
use paceline_params::{LrScaling, UpdateConfig};
use paceline_policy::{Cutoff, Objective, PolicySpec};
use paceline_report::Usage;
use paceline_server::{Limits, Placement, WeakSync};
use paceline_wire::Transport;
use serde::Serialize;
use toml::de::DeTable;

use crate::{
    flags::RunFlags,
    offered::ModelSource,
    settings::{
        ClusterSettings, FaultSettings, RecordSettings, RoundSettings, StopSettings, TaskSettings,
        UpdateSettings, WeakSettings,
    },
};

/// Everything that a run can be told. A config file has the same names, without the groups.
#[derive(Debug, Clone, PartialEq, Default, Args, Serialize)]
#[command(next_help_heading = "Run")]
pub(crate) struct RunConfig {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) record: RecordSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) cluster: ClusterSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) task: TaskSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) round: RoundSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) weak: WeakSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) update: UpdateSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) stop: StopSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) faults: FaultSettings,
}

/// How long a run is when nothing says when to stop.
const DEFAULT_EPOCHS: u32 = 5;

impl RunConfig {
    /// Lays the flags (and environment) over the file (if any) over the defaults.
    pub(crate) fn layered(file: Option<&Path>, flags: &RunFlags) -> Result<Self> {
        let defaults = toml::Table::new();
        Self::lay(defaults, file, flags, false).map_err(|error| Usage(format!("{error:#}")).into())
    }

    /// Like [`Self::layered`], with settings that a worker offers between the defaults and the file.
    pub(crate) fn offered(
        settings: &BTreeMap<String, String>,
        file: Option<&Path>,
        flags: &RunFlags,
    ) -> Result<Self> {
        Self::lay(RunFlags::read(settings)?.table().clone(), file, flags, false)
    }

    /// Lays the flags over the settings that a run was left with. Whatever they say of when to stop
    /// replaces all that was said of it then.
    pub(crate) fn resumed(saved: &Path, flags: &RunFlags) -> Result<Self> {
        let defaults = toml::Table::new();
        let config = Self::lay(defaults, Some(saved), flags, true);
        config.map_err(|error| Usage(format!("{error:#}")).into())
    }

    /// Lays the settings that workers changed, and then the flags, over those that a run was left with.
    pub(crate) fn going_on(
        saved: &toml::Table,
        changed: &BTreeMap<String, String>,
        flags: &RunFlags,
    ) -> Result<Self> {
        let mut layers = RunFlags::read(changed)?;
        layers.extend(flags);
        Self::lay(saved.clone(), None, &layers, true)
    }

    fn lay(
        mut table: toml::Table,
        file: Option<&Path>,
        flags: &RunFlags,
        resumed: bool,
    ) -> Result<Self> {
        if let Some(path) = file {
            let text = fs::read_to_string(path)
                .with_context(|| format!("failed to read the config {}", path.display()))?;
            Self::read(&text).with_context(|| format!("in the config {}", path.display()))?;
            table.extend(toml::from_str::<toml::Table>(&text)?);
        }
        let flags = flags.table();
        // The objective suited the old policy; the new one has its own.
        if resumed && flags.contains_key("policy") {
            table.remove("objective");
        }
        let limits = names::<StopSettings>();
        if resumed && limits.iter().any(|limit| flags.contains_key(limit)) {
            limits.iter().for_each(|limit| drop(table.remove(limit)));
        }
        table.extend(flags.clone());
        let config = Self::read(&toml::to_string(&table)?)?;
        config.check()?;
        Ok(config)
    }

    /// Reads a config file. Errors name the line.
    fn read(text: &str) -> Result<Self> {
        let known = names::<RunConfig>();
        let table = DeTable::parse(text)?;
        let mut keys = table.get_ref().iter().map(|(key, _)| key);
        if let Some(key) = keys.find(|key| !known.contains(key.get_ref().as_ref())) {
            let line = 1 + text[..key.span().start].matches('\n').count();
            bail!("line {line}: there is no setting `{}`", key.get_ref());
        }
        // Each group takes its own from the same text. `flatten` would lose the lines.
        Ok(RunConfig {
            record: toml::from_str(text)?,
            cluster: toml::from_str(text)?,
            task: toml::from_str(text)?,
            round: toml::from_str(text)?,
            weak: toml::from_str(text)?,
            update: toml::from_str(text)?,
            stop: toml::from_str(text)?,
            faults: toml::from_str(text)?,
        })
    }

    /// What is allowed and most likely not meant.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let workers = self.cluster.workers;
        let count = match self.round.policy {
            PolicySpec::Static(Cutoff::Count(wanted)) if wanted > workers => Some(format!(
                "static:{wanted} waits for more workers than there are ({workers}): it is full"
            )),
            _ => None,
        };
        let (heartbeat, liveness) = (self.heartbeat(), self.round.liveness);
        let lost = self.longest_stop().filter(|stop| *stop + 2 * heartbeat > liveness.0);
        let stop = lost.map(Span).map(|stop| {
            format!("a worker stopped for {stop} may be lost: it counts as dead after {liveness}")
        });
        let adascale = self.lr_scaling() == LrScaling::AdaScale;
        let alone = (adascale && matches!(self.round.policy, PolicySpec::Stale(_))).then(|| {
            format!(
                "lr-scaling adascale is linear with {}: of one contribution a round nothing is learnt \
                 about the noise",
                self.round.policy
            )
        });
        let apart = self.weak.pull != Enough::All || self.weak.push != Enough::All;
        let by_tcp = (apart && self.cluster.transport == Transport::Auto).then(|| {
            "with --pull or --push other than all gradients and parameters go by TCP, not by shared memory"
                .to_owned()
        });
        count.into_iter().chain(stop).chain(alone).chain(by_tcp).collect()
    }

    pub(crate) fn fault_plan(&self) -> Result<FaultPlan> {
        Ok(self.faults.stragglers.parse()?)
    }

    fn longest_stop(&self) -> Option<Duration> {
        self.fault_plan().ok()?.longest_stop()
    }

    /// How often a worker gives a sign of life: often enough that one that was stopped for less than
    /// the liveness is heard again in time, by half of what is left.
    pub(crate) fn heartbeat(&self) -> Duration {
        const SHORTEST: Duration = Duration::from_millis(50);
        let liveness = self.round.liveness.0;
        let usual = (liveness / 5).min(Duration::from_secs(1));
        let left = self.longest_stop().and_then(|stop| liveness.checked_sub(stop));
        left.map_or(usual, |left| usual.min(SHORTEST.max(left / 2)))
    }

    /// Writes down what follows from other settings, so that it stays when those change.
    pub(crate) fn settle(&mut self) {
        // A resume with other workers keeps the meaning of the learning rate.
        self.update.reference_weight = Some(self.full_weight());
        self.update.lr_scaling = Some(self.lr_scaling());
        self.round.objective = Some(self.objective());
        self.stop.epochs = self.limits().epochs;
        // A run may be resumed from elsewhere.
        if let Some(model) = &mut self.round.run_time_model
            && let Ok(absolute) = std::path::absolute(&*model)
        {
            *model = absolute.display().to_string();
        }
        if let Some(CostSpec::File(costs)) = &mut self.task.costs
            && let Ok(absolute) = std::path::absolute(&*costs)
        {
            *costs = absolute;
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        let StopSettings { rounds, epochs, target_accuracy, target_loss, time_limit } = self.stop;
        let targets = target_accuracy.or(target_loss);
        // Workers that bring their model know when they have finished.
        let workers_finish = self.is_offered();
        let unlimited =
            rounds.is_none() && targets.is_none() && time_limit.is_none() && !workers_finish;
        Limits {
            rounds,
            epochs: epochs.or(unlimited.then_some(DEFAULT_EPOCHS)),
            accuracy: target_accuracy,
            loss: target_loss,
            time: time_limit.map(|span| span.0),
            workers_finish,
        }
    }

    pub(crate) fn round_config(&self) -> RoundConfig {
        let round = &self.round;
        RoundConfig {
            quorum: round.quorum as usize,
            quorum_grace: round.quorum_grace.0,
            expected: self.cluster.workers as usize,
            join_grace: round.join_grace.0,
            straggler: self.straggler(),
            late: round.late,
            micro_batches: round.micro_batches,
            batch: round.batch,
            rebalance: round.rebalance,
        }
    }

    /// What stragglers do: what is finished counts, unless something else is asked for. Who waits for
    /// all has none.
    pub(crate) fn straggler(&self) -> Straggler {
        let RoundSettings { straggler, micro_batches, policy, .. } = self.round;
        straggler.unwrap_or(match micro_batches > 1 && policy != PolicySpec::Full {
            true => Straggler::Salvage,
            false => Straggler::Abort,
        })
    }

    /// What a round wants the most of: what suits the policy, unless something else is asked for.
    pub(crate) fn objective(&self) -> Objective {
        self.round.objective.unwrap_or(self.round.policy.objective())
    }

    /// How the learning rate follows what is contributed: as the objective values it, unless something
    /// else is asked for. Workers that bring their model have a learning rate of their own.
    pub(crate) fn lr_scaling(&self) -> LrScaling {
        self.update.lr_scaling.unwrap_or(match self.is_offered() {
            true => LrScaling::None,
            false => self.objective().lr_scaling(),
        })
    }

    /// Whether workers bring the model.
    pub(crate) fn is_offered(&self) -> bool {
        self.task.model == ModelSource::Offered
    }

    pub(crate) fn weak_sync(&self) -> WeakSync {
        let WeakSettings { pull, push, max_stale } = self.weak;
        WeakSync { pull, push, max_stale }
    }

    pub(crate) fn placement(&self, remote: bool) -> Placement {
        Placement {
            shards: self.cluster.shards,
            remote,
            block_elems: self.cluster.block_kib * 1024 / size_of::<f32>(),
            staging_bytes: self.cluster.staging_mb << 20,
        }
    }

    pub(crate) fn update_config(&self) -> UpdateConfig {
        UpdateConfig {
            optimizer: self.update.optimizer.clone(),
            learning_rate: self.update.lr,
            schedule: self.update.schedule,
            scaling: self.lr_scaling(),
            reference_weight: self.full_weight(),
            clip: self.update.clip,
        }
    }

    /// Samples of a round in which everybody contributes.
    pub(crate) fn full_weight(&self) -> f64 {
        self.update.reference_weight.unwrap_or(self.samples_per_round() as f64)
    }

    /// Rounds in which everybody contributes until `samples` are used.
    pub(crate) fn rounds_per_epoch(&self, samples: u32) -> u64 {
        u64::from(samples).div_ceil(self.samples_per_round()).max(1)
    }

    /// Samples of a round in which every worker contributes its whole batch.
    pub(crate) fn samples_per_round(&self) -> u64 {
        u64::from(self.cluster.workers) * u64::from(self.round.batch)
    }
}

/// The names of the settings in a group, as flags and config files have them.
pub(crate) fn names<T: Args>() -> BTreeSet<String> {
    let command = T::augment_args(Command::new("settings"));
    command.get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flags::tests::flags;

    /// The settings of this command line, whether they go together or not.
    fn config(line: &str) -> RunConfig {
        RunConfig::read(&flags(line).table().to_string()).unwrap()
    }

    #[track_caller]
    fn refused(text: &str, parts: &[&str]) {
        let error = RunConfig::read(text).unwrap_err();
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
        let config = RunConfig::layered(Some(&path), &flags("--batch 16")).unwrap();
        let ClusterSettings { workers, shards, .. } = config.cluster;
        assert_eq!((workers, config.round.batch, shards), (8, 16, 2));
        assert_eq!(config.stop.time_limit, Some(Span(Duration::from_secs(90))));
        assert_eq!(config.limits().epochs, None, "a time limit is limit enough");
    }

    #[test]
    fn limits_given_on_a_resume_replace_those_of_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, "workers = 2\nquorum = 2\nrounds = 6\ntime-limit = 90\n").unwrap();
        let config = RunConfig::resumed(&path, &flags("--epochs 2")).unwrap();
        let Limits { rounds, epochs, accuracy, loss, time, .. } = config.limits();
        assert_eq!((rounds, epochs, accuracy, loss, time), (None, Some(2), None, None, None));
        let other = RunConfig::resumed(&path, &flags("--batch 16")).unwrap();
        assert_eq!(other.limits().rounds, Some(6));
    }

    #[test]
    fn what_a_policy_wants_is_written_down_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        let mut begun = RunConfig::default();
        assert_eq!(begun.objective(), Objective::Progress);
        begun.settle();
        fs::write(&path, toml::to_string(&begun).unwrap()).unwrap();
        let resumed = |line: &str| {
            let config = RunConfig::resumed(&path, &flags(line)).unwrap();
            (config.objective(), config.lr_scaling())
        };
        assert_eq!(resumed(""), (Objective::Progress, LrScaling::AdaScale));
        // The learning rate keeps its meaning.
        assert_eq!(resumed("--policy static:2"), (Objective::Samples, LrScaling::AdaScale));
        let stale = config("--policy stale:3 --lr-scaling adascale");
        assert!(stale.doubts()[0].contains("adascale is linear with stale:3"));
    }

    #[test]
    fn the_effective_config_reads_back_as_itself() {
        let config = config("--time-limit 3s --costs lognormal:0.5 --push 0.75");
        let text = toml::to_string(&config).unwrap();
        assert_eq!(RunConfig::read(&text).unwrap(), config);
    }

    #[test]
    fn settings_that_contradict_each_other_or_all_sense_are_refused() {
        let check = |line: &str, expected: &str| {
            let error = RunConfig::layered(None, &flags(line)).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        };
        check("--quorum 9", "quorum must be from 1 to the number of workers (4), not 9");
        check("--stragglers slow:4:2,kill:9@3", "worker 4, 9, but there are 4");
        check("--stragglers crowd:2-4,stop:7:5s:1s", "worker 4, 7, but there are 4");
        check("--stragglers shard:2:5", "names shard 2, but there are 2");
        check("--shards 1025", "from 1 to 1024");
        check("--shards 0", "from 1 to 1024");
        check("--workers 5000", "from 1 to 4096");
        check("--staging-mb 0", "staging-mb must be");
        check(&format!("--staging-mb {}", u64::MAX >> 1), "16777216");
        check("--block-kib 65537", "from 1 to 65536");
        check("--block-kib 0", "block-kib must be");
        check("--deterministic", "--policy full");
    }

    #[test]
    fn the_config_of_an_earlier_run_still_loads() {
        let saved = r#"
            run-dir = "runs"
            workers = 3
            shards = 2
            model = "cnn"
            data = "embedded"
            pull = "all"
            push = "0.75"
            max-stale = 8
            balance = true
            costs = "lengths.txt"
            seed = 1
            policy = "auto"
            quorum = 1
            quorum-grace = "10s"
            join-grace = "60s"
            liveness = "10s"
            late = "drop"
            objective = "progress"
            rebalance = false
            batch = 32
            micro-batches = 4
            optimizer = "momentum:0.9"
            lr = 0.019999999552965164
            schedule = "constant"
            lr-scaling = "adascale"
            reference-weight = 128.0
            clip = "none"
            epochs = 5
            deterministic = false
            keep-checkpoints = 2
            staging-mb = 2048
            block-kib = 1024
            transport = "auto"
            wire = "f32"
            stragglers = ""
        "#;
        let config = RunConfig::read(saved).unwrap();
        assert_eq!((config.cluster.workers, config.update.reference_weight), (3, Some(128.0)));
        assert_eq!(config.weak.push, Enough::Share(0.75));
        assert_eq!(config.update.lr, RunConfig::default().update.lr);
    }

    #[test]
    fn a_count_that_no_round_can_reach_is_doubted() {
        let policy = |text: &str| config(&format!("--policy {text}"));
        assert!(policy("static:5").doubts()[0].contains("more workers than there are (4)"));
        assert!(policy("static:4").doubts().is_empty());
        assert!(policy("static:0.9").doubts().is_empty());
    }

    #[test]
    fn a_stop_shorter_than_liveness_leaves_time_for_a_sign_of_life() {
        let stopped =
            |stragglers: &str| config(&format!("--liveness 4s --stragglers {stragglers}"));
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
        let names: Vec<String> = names::<RunConfig>().into_iter().collect();
        assert_eq!(names.len(), 46, "all settings are drawn");
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
            let _ = RunConfig::read(&text);
        }

        #[test]
        fn any_values_of_known_settings_are_a_config_or_an_error_that_names_one(
            lines in prop::collection::vec((known(), value()), 1..5),
        ) {
            let text: String =
                lines.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
            match RunConfig::read(&text) {
                Ok(config) => {
                    let written = toml::to_string(&config).unwrap();
                    prop_assert_eq!(&RunConfig::read(&written).unwrap(), &config);
                    // Sense or nonsense, it is told apart without a panic.
                    if config.check().is_ok() {
                        let _ = (config.limits(), config.placement(false), config.update_config());
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
            let parsed = RunConfig::read(&format!("workers = {n}"));
            prop_assert_eq!(parsed.is_ok(), u32::try_from(n).is_ok());
        }
    }
}
