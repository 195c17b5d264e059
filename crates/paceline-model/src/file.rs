//! Models as files: safetensors with a manifest in the header, sealed by a checksum of the whole file.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use paceline_params::checkpoint::Crc32;
use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Seen, Weights, fit::WINDOW};

/// The key of the manifest in the header.
const KEY: &str = "paceline.model";
/// Version of the networks and their inputs; raised when either changes.
const ARCHITECTURE: u32 = 1;
/// The largest magnitude of a weight. Those of the built-in prior stay below 4; with far larger ones
/// than this, sums inside the networks overflow.
const LARGEST: f32 = 1e3;

/// A model: weights and their origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// The fitted weights.
    pub weights: Weights,
    /// The data and options of the fit.
    pub manifest: ModelManifest,
}

/// The architecture of a model and the data of its fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelManifest {
    /// Version of the networks; files of other versions cannot be read.
    pub architecture: u32,
    /// Rounds that gradients reached back over.
    pub window: usize,
    /// The traces it was fitted on.
    pub traces: Vec<FittedTrace>,
    /// The seed of the fit.
    pub seed: u64,
    /// The evidence lower bound on held-out rounds, in nats per run-time.
    pub held_out: f64,
}

/// A trace that a model was fitted on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FittedTrace {
    /// Its name.
    pub name: String,
    /// Workers in it.
    pub workers: usize,
    /// Rounds that were fitted or held out.
    pub rounds: usize,
    /// Unit of its run-times: `seconds` or `relative`.
    pub unit: String,
    /// A hash of its numbers.
    pub hash: String,
}

/// Why a model file cannot be read.
#[derive(Debug, Error)]
pub enum ModelError {
    /// It is no safetensors file.
    #[error("it is no safetensors file, or a truncated one: {0}")]
    Format(#[from] SafeTensorError),
    /// It is a safetensors file of another kind.
    #[error("it has no manifest of a model: `paceline model fit` writes one")]
    NoManifest,
    /// The manifest cannot be read.
    #[error("its manifest cannot be read: {0}")]
    BadManifest(#[from] serde_json::Error),
    /// A byte of it is not what `paceline model fit` wrote.
    #[error("it is damaged: its checksum is {found}, not {expected}")]
    Damaged {
        /// The checksum that the file states.
        expected: Crc32,
        /// The checksum of its bytes.
        found: Crc32,
    },
    /// Its networks differ from this version's.
    #[error("it does not fit this version of paceline: {}; fit it again", .0.join("; "))]
    Mismatch(Vec<String>),
}

/// The manifest as the header has it. The seal is the CRC-32 of the whole file, computed with a seal
/// of zero.
#[derive(Serialize)]
struct SealedManifest<'a> {
    seal: Crc32,
    #[serde(flatten)]
    manifest: &'a ModelManifest,
}

impl ModelManifest {
    /// The manifest of a new fit.
    pub fn new(traces: Vec<FittedTrace>, seed: u64, held_out: f64) -> ModelManifest {
        ModelManifest { architecture: ARCHITECTURE, window: WINDOW, traces, seed, held_out }
    }
}

impl Model {
    /// The generic prior that comes with the program: fitted on synthetic clusters of many kinds.
    pub fn prior() -> Arc<Model> {
        static PRIOR: LazyLock<Arc<Model>> = LazyLock::new(|| {
            let bytes = include_bytes!("../prior.safetensors");
            Arc::new(Model::from_bytes(bytes).expect("the prior that is built in can be read"))
        });
        PRIOR.clone()
    }

    /// The content of a model file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ModelError> {
        let bytes: Vec<Vec<u8>> = self
            .weights
            .tensors
            .iter()
            .map(|tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect())
            .collect();
        let mut views = BTreeMap::new();
        for (tensor, bytes) in self.weights.tensors.iter().zip(&bytes) {
            views.insert(tensor.name, TensorView::new(Dtype::F32, tensor.shape.to_vec(), bytes)?);
        }
        let unsealed = SealedManifest { seal: Crc32::default(), manifest: &self.manifest };
        let manifest = serde_json::to_string(&unsealed)?;
        let header = [(KEY.to_owned(), manifest)].into_iter().collect();
        let mut bytes = safetensors::serialize(views, Some(header))?;
        let seal = Crc32::checksum(&bytes);
        replace_seal(&mut bytes, Crc32::default(), seal);
        Ok(bytes)
    }

    /// Reads the content of a model file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Model, ModelError> {
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let manifest = header.metadata().as_ref().and_then(|header| header.get(KEY));
        let manifest: serde_json::Value =
            serde_json::from_str(manifest.ok_or(ModelError::NoManifest)?)?;
        check_seal(bytes, &manifest)?;
        let mut differ = Vec::new();
        for (what, ours) in [("architecture", ARCHITECTURE as usize), ("window", WINDOW)] {
            let theirs = manifest.get(what).and_then(serde_json::Value::as_u64);
            if theirs != Some(ours as u64) {
                let theirs = theirs.map_or("missing".to_owned(), |theirs| theirs.to_string());
                differ.push(format!("{what} is {theirs}, not {ours}"));
            }
        }
        if !differ.is_empty() {
            return Err(ModelError::Mismatch(differ));
        }
        let manifest = serde_json::from_value(manifest)?;
        let file = SafeTensors::deserialize(bytes)?;
        let mut weights = Weights::start(0);
        for tensor in &mut weights.tensors {
            let Ok(view) = file.tensor(tensor.name) else {
                differ.push(format!("tensor {} is missing", tensor.name));
                continue;
            };
            if view.dtype() != Dtype::F32 || view.shape() != tensor.shape {
                let (found, wanted) = (view.shape(), tensor.shape);
                differ.push(format!(
                    "tensor {} is {:?} {found:?}, not F32 {wanted:?}",
                    tensor.name,
                    view.dtype()
                ));
                continue;
            }
            for (value, bytes) in tensor.values.iter_mut().zip(view.data().chunks_exact(4)) {
                *value = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            }
            // NaN is in no range.
            let allowed = -LARGEST..=LARGEST;
            if let Some(value) = tensor.values.iter().find(|value| !allowed.contains(value)) {
                differ.push(format!("tensor {} has {value:?}, beyond ±{LARGEST}", tensor.name));
            }
        }
        match differ.is_empty() {
            true => Ok(Model { weights, manifest }),
            false => Err(ModelError::Mismatch(differ)),
        }
    }
}

/// Checks the file's bytes against the seal in its manifest.
fn check_seal(bytes: &[u8], manifest: &serde_json::Value) -> Result<(), ModelError> {
    let Some(seal) = manifest.get("seal") else {
        return Err(ModelError::Mismatch(vec!["its checksum is missing".to_owned()]));
    };
    let expected: Crc32 = serde_json::from_value(seal.clone())?;
    let mut unsealed = bytes.to_vec();
    replace_seal(&mut unsealed, expected, Crc32::default());
    let found = Crc32::checksum(&unsealed);
    match found == expected {
        true => Ok(()),
        false => Err(ModelError::Damaged { expected, found }),
    }
}

/// Puts another seal in the place of `old` in a file. The manifest is a JSON string in a JSON header,
/// so its quotes are escaped; the seal is its first field.
fn replace_seal(bytes: &mut [u8], old: Crc32, new: Crc32) {
    let [old, new] = [old, new].map(|seal| format!(r#"\"seal\":\"{seal}\""#).into_bytes());
    if let Some(at) = bytes.windows(old.len()).position(|window| window == old) {
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
}

/// An FNV-1a hash of run-times, which identifies the data of a fit.
pub fn hash(rounds: &[Seen]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut take = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for round in rounds {
        take(&(round.workers.len() as u64).to_le_bytes());
        for (i, worker) in round.workers.iter().enumerate() {
            take(&worker.to_le_bytes());
            take(&round.log_times[i].to_le_bytes());
            take(&[u8::from(round.observed[i])]);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let source = FittedTrace {
            name: "a".to_owned(),
            workers: 4,
            rounds: 30,
            unit: "seconds".to_owned(),
            hash: hash(&[]),
        };
        Model { weights: Weights::start(3), manifest: ModelManifest::new(vec![source], 3, 1.5) }
    }

    #[test]
    fn a_model_reads_back_as_it_was() {
        let bytes = model().to_bytes().expect("a model can be written");
        assert_eq!(Model::from_bytes(&bytes).expect("and read"), model());
        assert_eq!(bytes, model().to_bytes().expect("the same bytes again"));
    }

    #[track_caller]
    fn refused(bytes: &[u8], part: &str) {
        let error = Model::from_bytes(bytes).expect_err("it does not fit").to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn a_mismatch_is_named() {
        let mut other = model();
        other.manifest.window = 20;
        refused(&other.to_bytes().expect("bytes"), "window is 20, not 16");
        other.manifest.architecture = 9;
        refused(&other.to_bytes().expect("bytes"), "architecture is 9, not 1; window is 20");
        let mut other = model();
        other.weights.tensors.pop();
        refused(&other.to_bytes().expect("bytes"), "tensor emission.shape is missing");
        let mut other = model();
        other.weights.tensors[0].shape = [1, other.weights.tensors[0].values.len()];
        refused(
            &other.to_bytes().expect("bytes"),
            "tensor worker.gates.weight is F32 [1, 672], not",
        );
        let mut other = model();
        other.weights.tensors[1].values[0] = f32::NAN;
        refused(&other.to_bytes().expect("bytes"), "worker.gates.bias has NaN");
        other.weights.tensors[1].values[0] = -1e30;
        refused(&other.to_bytes().expect("bytes"), "worker.gates.bias has -1e30, beyond ±1000");
    }

    #[test]
    fn a_file_without_a_checksum_is_refused() {
        let manifest = serde_json::to_string(&model().manifest).expect("a manifest");
        let header = [(KEY.to_owned(), manifest)].into_iter().collect();
        let bytes = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), Some(header));
        refused(&bytes.expect("a file"), "its checksum is missing; fit it again");
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed() {
        let bytes = model().to_bytes().expect("bytes");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(Model::from_bytes(&damaged).is_err(), "byte {at}");
        }
        let mut damaged = bytes.clone();
        *damaged.last_mut().expect("a byte") ^= 1;
        refused(&damaged, "it is damaged: its checksum is ");
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let bytes = model().to_bytes().expect("bytes");
        for cut in (0..bytes.len()).step_by(97) {
            assert!(Model::from_bytes(&bytes[..cut]).is_err());
        }
        let plain = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), None);
        refused(&plain.expect("an empty file"), "no manifest");
    }

    #[test]
    fn the_prior_that_is_built_in_can_be_read() {
        assert!(!Model::prior().manifest.traces.is_empty());
    }
}
