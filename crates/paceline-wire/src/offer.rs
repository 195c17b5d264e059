//! Offers: the model and data of a worker, for a server that starts without a model; and the states that such
//! workers exchange through the server.

use std::{collections::BTreeMap, fmt};

use paceline_core::Version;
use paceline_params::{OptimizerGroups, TensorSpec};
use serde::{Deserialize, Serialize};

/// The model and data of a worker, and how it wants to be trained. The first offer that reaches a server
/// defines the run; all others must agree with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// The tensors, in the order of the flat vector.
    pub tensors: Vec<TensorSpec>,
    /// A hash of each tensor's initial values. Workers whose hashes differ take the run's state.
    pub hashes: Vec<u64>,
    /// Bytes that a state has for what is not among the tensors: frozen parameters and buffers.
    #[serde(default)]
    pub frozen_bytes: u64,
    /// A hash of the initial frozen parameters and buffers.
    #[serde(default)]
    pub frozen_hash: u64,
    /// How an update is made.
    pub update: OfferedUpdate,
    /// In mode mean, the kinds of the optimizers that workers step. Older packages do not say.
    #[serde(default)]
    pub steppers: Vec<String>,
    /// Samples in an epoch; `None` for a stream, of which only weights are counted.
    pub samples: Option<u32>,
    /// Usual number of samples per worker and round.
    pub batch: u32,
    /// Seed of the sample order.
    pub seed: u64,
    /// Micro-batches per worker and round.
    pub micro_batches: u32,
    /// The version of the worker's package.
    pub package: String,
    /// Settings of the run, by their names in a config file. They go over the server's defaults, and below
    /// its config file, environment and flags.
    pub settings: BTreeMap<String, String>,
}

/// How an update is made of a round's sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum OfferedUpdate {
    /// The shards publish the mean gradient; every worker steps its own optimizer.
    Mean,
    /// The shards hold the parameters and step the optimizer of each parameter group.
    Server(OptimizerGroups),
}

impl fmt::Display for OfferedUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OfferedUpdate::Mean => write!(f, "mode mean"),
            OfferedUpdate::Server(optimizer) => write!(f, "mode server with {optimizer}"),
        }
    }
}

/// The answer to an [`Offer`] that is not refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfferReply {
    /// The offer defines the run: send the initial state on this connection ([`StateHead`]).
    SendState,
    /// The run starts from the values that the worker has.
    KeepState,
    /// The worker's values are not the run's: join, and fetch this state or a newer one
    /// ([`Role::State`](crate::message::Role::State)).
    TakeState {
        /// The run's version.
        version: Version,
        /// Tensors whose initial values differ from those that the run started from, by their index. The
        /// index after the last tensor stands for frozen parameters and buffers.
        differing: Vec<u32>,
    },
}

/// Announces a state: a safetensors file, which follows in chunks
/// ([`Header::Chunk`](crate::frame::Header::Chunk)). The parameters are its tensors `model.NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHead {
    /// The version that the state belongs to.
    pub version: Version,
    /// The length of the file.
    pub bytes: u64,
}

impl Offer {
    /// The first difference to the offer that defined the run, in words; `None` if this worker can take part.
    /// Initial values may differ.
    pub fn difference(&self, run: &Offer) -> Option<String> {
        self.other_fact(run, "the package's version", &|offer| offer.package.clone())
            .or_else(|| self.other_task(run))
            .or_else(|| self.other_setting(run))
    }

    /// The first difference in model, update or data, in words. A run that is resumed keeps them; its
    /// settings, and the package, may be others than before.
    pub fn other_task(&self, run: &Offer) -> Option<String> {
        let samples = |offer: &Offer| match offer.samples {
            Some(samples) => samples.to_string(),
            None => "that of a stream".to_owned(),
        };
        let fact = |what: &str, of: &dyn Fn(&Offer) -> String| self.other_fact(run, what, of);
        // Another update may have other tensors.
        fact("the update", &|offer| offer.update.to_string())
            .or_else(|| self.other_tensor(run))
            .or_else(|| fact("the number of samples", &samples))
            .or_else(|| fact("the batch size", &|offer| offer.batch.to_string()))
            .or_else(|| {
                fact("the number of micro-batches", &|offer| offer.micro_batches.to_string())
            })
            .or_else(|| fact("the seed", &|offer| offer.seed.to_string()))
            .or_else(|| self.other_steppers(run))
    }

    fn other_steppers(&self, run: &Offer) -> Option<String> {
        let is_known = !self.steppers.is_empty() && !run.steppers.is_empty();
        is_known
            .then(|| self.other_fact(run, "the optimizer", &|offer| offer.steppers.join(" and ")))?
    }

    fn other_fact(&self, run: &Offer, what: &str, of: &dyn Fn(&Offer) -> String) -> Option<String> {
        let (here, there) = (of(self), of(run));
        (here != there).then(|| format!("{what} is {here} here and {there} in the run"))
    }

    fn other_tensor(&self, run: &Offer) -> Option<String> {
        let count = self.tensors.len().max(run.tensors.len());
        (0..count).find_map(|index| match (self.tensors.get(index), run.tensors.get(index)) {
            (Some(here), Some(there)) if here.name != there.name => Some(format!(
                "tensor {index} is `{}` here and `{}` in the run",
                here.name, there.name
            )),
            (Some(here), Some(there)) if here.shape != there.shape => Some(format!(
                "tensor `{}` has shape {:?} here and {:?} in the run",
                here.name, here.shape, there.shape
            )),
            (Some(here), Some(there)) if here.group != there.group => Some(format!(
                "tensor `{}` is in parameter group {} here and {} in the run",
                here.name, here.group, there.group
            )),
            (Some(here), None) => Some(format!("tensor `{}` is not in the run", here.name)),
            (None, Some(there)) => Some(format!("tensor `{}` of the run is missing", there.name)),
            _ => None,
        })
    }

    fn other_setting(&self, run: &Offer) -> Option<String> {
        let value = |offer: &Offer, name: &str| {
            offer.settings.get(name).map_or("not set".to_owned(), |value| format!("`{value}`"))
        };
        self.settings.keys().chain(run.settings.keys()).find_map(|name| {
            let (here, there) = (value(self, name), value(run, name));
            (here != there)
                .then(|| format!("the setting {name} is {here} here and {there} in the run"))
        })
    }

    /// A difference to frozen values that a resumed run cannot give its workers, in words. Its checkpoint has
    /// them only if it is the state of a worker. Offers of older runs have no hash of them.
    pub fn other_frozen_values(&self, run: &Offer) -> Option<String> {
        let kept = matches!(run.update, OfferedUpdate::Mean) || run.frozen_hash == 0;
        (!kept && self.frozen_hash != run.frozen_hash).then(|| {
            "frozen parameters or buffers have other values here than in the run".to_owned()
        })
    }

    /// The tensors whose initial values differ from those of `run`, by their index. The index after the last
    /// tensor stands for frozen parameters and buffers.
    pub fn other_values(&self, run: &Offer) -> Vec<u32> {
        let hashes = |offer: &Offer| [offer.hashes.as_slice(), &[offer.frozen_hash]].concat();
        let pairs = (0..).zip(hashes(self).into_iter().zip(hashes(run)));
        pairs.filter(|(_, (here, there))| here != there).map(|(index, _)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use paceline_params::OptimizerSpec;

    use super::*;

    fn offer() -> Offer {
        Offer {
            tensors: vec![TensorSpec::new("fc.weight", [10, 4]), TensorSpec::new("fc.bias", [10])],
            hashes: vec![1, 2],
            frozen_bytes: 0,
            frozen_hash: 5,
            update: OfferedUpdate::Mean,
            steppers: vec!["SGD".to_owned()],
            samples: Some(100),
            batch: 8,
            seed: 1,
            micro_batches: 2,
            package: "0.1.0".to_owned(),
            settings: BTreeMap::from([("policy".to_owned(), "auto".to_owned())]),
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Offer), difference: &str) {
        let mut changed = offer();
        change(&mut changed);
        assert_eq!(changed.difference(&offer()).unwrap_or_default(), difference);
    }

    #[test]
    fn the_first_difference_is_named() {
        check(|_| (), "");
        check(|o| o.hashes[1] = 9, "");
        check(
            |o| o.tensors[0].shape = vec![10, 5],
            "tensor `fc.weight` has shape [10, 5] here and [10, 4] in the run",
        );
        check(
            |o| o.tensors[1].name = "head.bias".to_owned(),
            "tensor 1 is `head.bias` here and `fc.bias` in the run",
        );
        check(|o| drop(o.tensors.pop()), "tensor `fc.bias` of the run is missing");
        check(|o| o.tensors.push(TensorSpec::new("x", [1])), "tensor `x` is not in the run");
        check(
            |o| o.package = "0.2.0".to_owned(),
            "the package's version is 0.2.0 here and 0.1.0 in the run",
        );
        check(
            |o| o.update = OfferedUpdate::Server(OptimizerSpec::SGD.into()),
            "the update is mode server with sgd here and mode mean in the run",
        );
        check(
            |o| o.samples = None,
            "the number of samples is that of a stream here and 100 in the run",
        );
        check(|o| o.batch = 16, "the batch size is 16 here and 8 in the run");
        check(|o| o.micro_batches = 4, "the number of micro-batches is 4 here and 2 in the run");
        check(|o| o.seed = 3, "the seed is 3 here and 1 in the run");
        check(
            |o| o.steppers[0] = "Adam".to_owned(),
            "the optimizer is Adam here and SGD in the run",
        );
        check(|o| o.steppers.clear(), "");
        check(|o| o.settings.clear(), "the setting policy is not set here and `auto` in the run");
    }

    #[test]
    fn a_resumed_run_takes_other_settings_and_no_other_task() {
        let other = Offer { package: "0.2.0".to_owned(), settings: BTreeMap::new(), ..offer() };
        assert_eq!(other.other_task(&offer()), None);
        let other = Offer { batch: 16, ..other };
        let difference = "the batch size is 16 here and 8 in the run";
        assert_eq!(other.other_task(&offer()).as_deref(), Some(difference));
    }

    #[test]
    fn other_frozen_values_are_a_difference_where_no_state_has_them() {
        let other = Offer { frozen_hash: 9, ..offer() };
        assert_eq!(other.other_frozen_values(&offer()), None, "workers take a state");
        let update = OfferedUpdate::Server(OptimizerSpec::SGD.into());
        let run = Offer { update, ..offer() };
        assert_eq!(run.other_frozen_values(&run), None);
        assert!(other.other_frozen_values(&run).is_some());
        let older = Offer { frozen_hash: 0, ..run };
        assert_eq!(other.other_frozen_values(&older), None);
    }

    #[test]
    fn tensors_with_other_values_are_listed() {
        let mut other = offer();
        assert!(other.other_values(&offer()).is_empty());
        other.hashes[1] = 9;
        assert_eq!(other.other_values(&offer()), [1]);
        other.frozen_hash = 9;
        assert_eq!(other.other_values(&offer()), [1, 2], "frozen values come after the tensors");
    }
}
