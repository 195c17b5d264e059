//! Runs whose model the workers bring: the settings of such a run, from the server's own and the first
//! worker's offer.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use paceline_core::{Enough, Straggler};
use paceline_nn::{ModelError, ModelSpec};
use paceline_params::{LrScaling, OptimizerGroups, OptimizerSpec, checkpoint};
use paceline_policy::PolicySpec;
use paceline_report::Usage;
use paceline_server::{ResumedOffer, ServerConfig};
use paceline_wire::offer::{Offer, OfferedUpdate};

use crate::{
    config::RunConfig,
    flags::RunFlags,
    model,
    run_dir::RunDir,
    session::{Others, check_descriptors, check_unfinished, server_config},
    settings::UpdateSettings,
};

/// Where a run's model comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelSource {
    /// A model of this program.
    Native(ModelSpec),
    /// The first worker offers it.
    Offered,
}

const OFFERED: &str = "offered";

impl FromStr for ModelSource {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            OFFERED => Ok(ModelSource::Offered),
            model => model.parse().map(ModelSource::Native),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Native(model) => model.fmt(f),
            ModelSource::Offered => f.write_str(OFFERED),
        }
    }
}

/// Settings that an offer cannot have: they concern the server's files and processes, or a model of this
/// program.
const NOT_OFFERED: [&str; 9] = [
    "name",
    "run-dir",
    "model",
    "data",
    "costs",
    "balance",
    "stragglers",
    "nominal",
    "shard-nominal",
];

/// A run that waits for its model.
pub(crate) struct OfferedRun {
    /// The server's own settings, which go over those of the offer.
    file: Option<PathBuf>,
    flags: RunFlags,
    name: Option<String>,
    pub(crate) others: Others,
    /// How long to wait for an offer.
    pub(crate) idle: Duration,
    /// The settings in force: the server's own until an offer is taken.
    config: Arc<Mutex<RunConfig>>,
    /// The run to go on with.
    resumption: Option<Resumption>,
}

/// A run to go on with, and its settings when it stopped.
pub(crate) struct Resumption {
    run: ResumedOffer,
    settings: toml::Table,
}

impl Resumption {
    pub(crate) fn read(dir: &RunDir, path: PathBuf) -> Result<Self> {
        let saved = checkpoint::read(&path)?;
        let run = ResumedOffer::new(saved);
        let run = run.with_context(|| format!("in the checkpoint {}", path.display()))?;
        let Some(run) = run else {
            let why = format!("{} trains a model of this program", dir.path().display());
            bail!(Usage(format!("{why}: leave out --command or --model offered to resume it")));
        };
        Ok(Resumption { run, settings: toml::from_str(&fs::read_to_string(dir.config())?)? })
    }

    /// The settings that workers give now and gave otherwise, or not at all, when the run began.
    fn changed(&self, offer: &Offer) -> BTreeMap<String, String> {
        let settings = offer.settings.iter();
        let changed =
            settings.filter(|(name, now)| self.run.offer.settings.get(*name) != Some(now));
        changed.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

impl OfferedRun {
    /// The run of a server with these settings, which `config` has the values of.
    pub(crate) fn new(
        (file, flags): (Option<&Path>, &RunFlags),
        config: RunConfig,
        others: Others,
        idle: Duration,
        resumption: Option<Resumption>,
    ) -> Self {
        let mut flags = flags.clone();
        if others.own_workers {
            // As many as are started.
            flags = flags.with("workers", config.cluster.workers);
        }
        let (file, name) = (file.map(Path::to_owned), config.record.name.clone());
        let config = Arc::new(Mutex::new(config));
        OfferedRun { file, flags, name, others, idle, config, resumption }
    }

    /// The settings in force, as they become known.
    pub(crate) fn config(&self) -> Arc<Mutex<RunConfig>> {
        Arc::clone(&self.config)
    }

    /// The run to go on with.
    pub(crate) fn resumed(&self) -> Option<ResumedOffer> {
        self.resumption.as_ref().map(|resumption| resumption.run.clone())
    }

    /// The run of this offer, or why there can be none.
    pub(crate) fn plan(&self, offer: &Offer, dir: &RunDir) -> Result<ServerConfig> {
        let mut config = self.settings(offer)?;
        config.record.name.clone_from(&self.name);
        config.settle();
        check_descriptors(&config, &self.others)?;
        if let Some(Resumption { run, .. }) = &self.resumption {
            check_unfinished(dir, &config, &run.start, offer.samples)?;
        }
        let run_time_model = model::load(config.round.run_time_model.as_deref().map(Path::new))?;
        let server =
            server_config(&config, run_time_model, dir, offer.samples, self.others.clone())?;
        dir.write_config(&config)?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(server)
    }

    fn settings(&self, offer: &Offer) -> Result<RunConfig> {
        let misplaced = offer.settings.keys().find(|name| NOT_OFFERED.contains(&name.as_str()));
        ensure!(misplaced.is_none(), "the setting {} is the server's", misplaced.unwrap());
        let optimizer = match &offer.update {
            OfferedUpdate::Mean => {
                let groups = offer.tensors.iter().map(|tensor| tensor.group as usize + 1);
                let groups = groups.max().unwrap_or(1);
                ensure!(groups <= 2, "a mean has one group of gradients and one of other values");
                OptimizerGroups::new(vec![OptimizerSpec::Mean; groups])?
            }
            OfferedUpdate::Server(optimizer) => optimizer.clone(),
        };
        let own = BTreeMap::from([
            ("optimizer", optimizer.to_string()),
            ("seed", offer.seed.to_string()),
            ("batch", offer.batch.to_string()),
            ("micro-batches", offer.micro_batches.to_string()),
        ]);
        let config = match &self.resumption {
            // Model, data and update are those of before.
            Some(resumption) => {
                RunConfig::going_on(&resumption.settings, &resumption.changed(offer), &self.flags)?
            }
            None => {
                let mut settings = offer.settings.clone();
                settings.extend(own.iter().map(|(&name, value)| (name.to_owned(), value.clone())));
                RunConfig::offered(&settings, self.file.as_deref(), &self.flags)?
            }
        };
        let in_force = [
            ("optimizer", config.update.optimizer.to_string()),
            ("seed", config.task.seed.to_string()),
            ("batch", config.round.batch.to_string()),
            ("micro-batches", config.round.micro_batches.to_string()),
        ];
        for (name, value) in in_force {
            ensure!(
                own[name] == value,
                "{name} is {} in the offer and {value} in the server's settings",
                own[name]
            );
        }
        if offer.update == OfferedUpdate::Mean {
            check_mean(&config)?;
        }
        Ok(config)
    }
}

/// Refuses settings that have no effect on a mean, or would change it: workers step their own optimizers, with
/// one mean of all parameters per round.
fn check_mean(config: &RunConfig) -> Result<()> {
    let RunConfig { round, weak, update, .. } = config;
    let default = UpdateSettings::default();
    let optimizer = "set it in your optimizer";
    let scheduler = "use a scheduler of torch.optim.lr_scheduler";
    let clipping = "call torch.nn.utils.clip_grad_norm_ before optimizer.step()";
    let scaling = "give lr_scaling= to paceline.init";
    let whole = "every worker needs the whole mean";
    let newest = "every worker computes from the newest version";
    let policy = format!("policy {}", round.policy);
    let refused = [
        (update.lr != default.lr, "lr", optimizer),
        (update.schedule != default.schedule, "schedule", scheduler),
        (update.clip != default.clip, "clip", clipping),
        (config.lr_scaling() != LrScaling::None, "lr-scaling", scaling),
        (weak.pull != Enough::All, "pull", whole),
        (weak.push != Enough::All, "push", whole),
        (matches!(round.policy, PolicySpec::Stale(_)), &policy, newest),
        (config.straggler() == Straggler::Finish, "straggler finish", newest),
    ];
    for (is_set, setting, instead) in refused {
        ensure!(!is_set, "the setting {setting} is not supported in mode \"mean\": {instead}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use paceline_params::TensorSpec;

    use super::*;
    use crate::flags::tests::flags;

    fn offer(settings: &[(&str, &str)]) -> Offer {
        Offer {
            tensors: vec![TensorSpec::new("w", [2])],
            hashes: vec![1],
            frozen_bytes: 0,
            frozen_hash: 0,
            steppers: Vec::new(),
            update: OfferedUpdate::Mean,
            samples: Some(100),
            batch: 8,
            seed: 3,
            micro_batches: 2,
            package: "0.1.0".to_owned(),
            settings: settings.iter().map(|&(a, b)| (a.to_owned(), b.to_owned())).collect(),
        }
    }

    fn run(line: &str) -> OfferedRun {
        let flags = flags(&format!("--model offered {line}"));
        let config = RunConfig::layered(None, &flags).unwrap();
        let others =
            Others { own_workers: false, command: false, remote_shards: false, token: None };
        OfferedRun::new((None, &flags), config, others, Duration::ZERO, None)
    }

    #[track_caller]
    fn refused(line: &str, settings: &[(&str, &str)], why: &str) {
        let error = run(line).settings(&offer(settings)).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn an_offer_goes_over_the_defaults_and_below_the_servers_settings() {
        let settings = [("policy", "full"), ("quorum", "2")];
        let config = run("--quorum 3").settings(&offer(&settings)).unwrap();
        assert_eq!(config.round.policy.to_string(), "full");
        assert_eq!((config.round.quorum, config.round.batch, config.task.seed), (3, 8, 3));
        assert_eq!(config.update.optimizer.to_string(), "mean");
        assert_eq!(config.limits().epochs, None, "the workers know when they have finished");
        assert!(config.limits().workers_finish);
    }

    #[test]
    fn settings_that_an_offer_cannot_have_are_named() {
        refused("", &[("polciy", "full")], "there is no setting `polciy`");
        refused("", &[("name", "mine")], "the setting name is the server's");
        refused("", &[("quorum", "9")], "quorum must be from 1 to the number of workers (4)");
        refused("", &[("target-loss", "1")], "target-loss needs a model of this program");
        let batch = "batch is 8 in the offer and 16 in the server's settings";
        refused("--batch 16", &[], batch);
        let optimizer = "optimizer is mean in the offer and sgd in the server's settings";
        refused("--optimizer sgd", &[], optimizer);
    }

    #[test]
    fn settings_that_would_change_a_mean_are_refused_and_shards_take_them() {
        let cases = [
            ("lr", "0.5", "lr is not supported in mode \"mean\": set it in your optimizer"),
            ("schedule", "cosine:10", "use a scheduler of torch.optim.lr_scheduler"),
            ("clip", "norm:1", "call torch.nn.utils.clip_grad_norm_ before optimizer.step()"),
            ("lr-scaling", "linear", "give lr_scaling= to paceline.init"),
            ("pull", "auto", "the setting pull is not supported in mode \"mean\""),
            ("push", "0.5", "the setting push is not supported in mode \"mean\""),
            ("policy", "async", "the setting policy async is not supported"),
            ("policy", "stale:3", "the setting policy stale:3 is not supported"),
            ("straggler", "finish", "the setting straggler finish is not supported"),
        ];
        for (name, value, why) in cases {
            refused("", &[(name, value)], why);
            refused(&format!("--{name} {value}"), &[], why);
            let update = OfferedUpdate::Server(OptimizerSpec::SGD.into());
            let offer = Offer { update, ..offer(&[(name, value)]) };
            assert!(run("").settings(&offer).is_ok(), "{name}");
        }
        refused("", &[("straggler", "finish"), ("late", "fold")], "straggler finish is not");
        refused("", &[("late", "fold")], "late fold needs --straggler finish");
    }
}
