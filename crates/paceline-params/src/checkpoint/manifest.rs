//! The manifest: the run's state, and sizes and checksums of the checkpoint's files.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::{Checkpoint, CheckpointError, MANIFEST, OPTIMIZER, PARAMS, WORKER_STATE};
use crate::text::serde_as_text;
use crate::{OptimizerGroups, TensorSpec};

/// The format that this version writes. It reads all formats up to this one.
///
/// Since format 2, tensors have a parameter group and there is an optimizer for each group. Since format 3, a
/// worker's state may take the place of parameters and optimizer state.
const FORMAT: u64 = 3;

/// The contents of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format of the checkpoint.
    pub format: u64,
    /// The CRC-32 of the manifest itself, with this field as `00000000`.
    pub seal: Crc32,
    /// The round that a resumed run starts with; see [`Checkpoint::round`].
    pub round: u64,
    /// The version of the parameters.
    pub version: u64,
    /// How many updates the parameters have seen.
    pub step: u64,
    /// The name of the model.
    pub model: String,
    /// The optimizers that the state belongs to.
    pub optimizer: OptimizerGroups,
    /// The other files: parameters and then, where there is any, the optimizer's state; or a worker's state.
    pub files: Vec<FileEntry>,
    /// The tensors, in the order of the flat vector.
    pub tensors: Vec<TensorSpec>,
    /// Other state of the run.
    pub state: Value,
}

/// A file of a checkpoint, as its manifest lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name within the checkpoint.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its checksum.
    pub crc32: Crc32,
}

/// A CRC-32 (IEEE 802.3), as eight hexadecimal digits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Crc32(pub u32);

impl Manifest {
    /// A manifest for a new checkpoint, in the current format and not yet sealed.
    pub(super) fn new(checkpoint: &Checkpoint, files: Vec<FileEntry>) -> Self {
        Manifest {
            format: FORMAT,
            seal: Crc32::default(),
            round: checkpoint.round,
            version: checkpoint.version,
            step: checkpoint.step,
            model: checkpoint.model.clone(),
            optimizer: checkpoint.optimizer.clone(),
            files,
            tensors: checkpoint.tensors.clone(),
            state: checkpoint.state.clone(),
        }
    }

    /// Reads the manifest of the checkpoint at `dir`, without checking the files that it lists:
    /// [`verify`](super::verify) does.
    pub fn load(dir: &Path) -> Result<Self, CheckpointError> {
        let path = dir.join(MANIFEST);
        let text = fs::read(&path).map_err(CheckpointError::io("read", &path))?;
        let manifest = Self::decode(&text, &path)?;
        let names = |files: &[FileEntry]| files.iter().map(|file| file.name.clone()).collect();
        let found: Vec<String> = names(&manifest.files);
        let expected = file_names(&manifest.optimizer);
        if found != expected && found != [WORKER_STATE] {
            let expected = expected.into_iter().map(str::to_owned).collect();
            return Err(CheckpointError::Files { path, expected, found });
        }
        Ok(manifest)
    }

    /// The file's text, sealed.
    pub(super) fn encode(&self) -> Result<String, serde_json::Error> {
        let unsealed = Manifest { seal: Crc32::default(), ..self.clone() };
        let text = serde_json::to_string_pretty(&unsealed)? + "\n";
        let seal = Crc32::checksum(text.as_bytes());
        // The seal field comes before any text that could look like it.
        Ok(text.replacen(&seal_field(Crc32::default()), &seal_field(seal), 1))
    }

    fn decode(text: &[u8], path: &Path) -> Result<Self, CheckpointError> {
        let malformed = |cause| CheckpointError::Manifest { path: path.to_owned(), cause };
        let Preamble { format, seal } = serde_json::from_slice(text).map_err(malformed)?;
        let found = Crc32::checksum(unseal(text, seal).as_bytes());
        if found != seal {
            let path = path.to_owned();
            return Err(CheckpointError::Checksum { path, expected: seal, found });
        }
        if !(1..=FORMAT).contains(&format) {
            let path = path.to_owned();
            return Err(CheckpointError::Format { path, found: format, supported: FORMAT });
        }
        serde_json::from_slice(text).map_err(malformed)
    }
}

/// The fields that every format of the manifest has.
#[derive(Deserialize)]
struct Preamble {
    format: u64,
    seal: Crc32,
}

fn unseal(text: &[u8], seal: Crc32) -> String {
    let text = String::from_utf8_lossy(text);
    text.replacen(&seal_field(seal), &seal_field(Crc32::default()), 1)
}

/// The files that a checkpoint of parameters with this optimizer has beside the manifest.
fn file_names(optimizer: &OptimizerGroups) -> Vec<&'static str> {
    if optimizer.slot_names().is_empty() { vec![PARAMS] } else { vec![PARAMS, OPTIMIZER] }
}

fn seal_field(seal: Crc32) -> String {
    format!("\"seal\": \"{seal}\"")
}

impl Crc32 {
    /// The checksum of `bytes`.
    pub fn checksum(bytes: &[u8]) -> Self {
        Crc32(crc32fast::hash(bytes))
    }
}

impl fmt::Display for Crc32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for Crc32 {
    type Err = Crc32Error;

    fn from_str(text: &str) -> Result<Self, Crc32Error> {
        let value = u32::from_str_radix(text, 16).map(Crc32);
        // Accepts only the spelling of `Display`.
        value.ok().filter(|crc| crc.to_string() == text).ok_or_else(|| Crc32Error(text.to_owned()))
    }
}

serde_as_text!(Crc32);

/// A text that is no checksum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("checksum `{0}` is not 8 lower-case hexadecimal digits")]
pub struct Crc32Error(String);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::OptimizerSpec;

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            seal: Crc32::default(),
            round: 13,
            version: 13,
            step: 13,
            model: "mlp".to_owned(),
            optimizer: "sgd;sgd:weight_decay=0.1".parse().unwrap(),
            files: vec![FileEntry { name: PARAMS.to_owned(), bytes: 96, crc32: Crc32(0xbeef) }],
            tensors: vec![TensorSpec::new("w", [2, 3]).in_group(1)],
            state: json!({ "loss": 0.1 + 0.2, "seal": "00000000" }),
        }
    }

    fn decode(text: &str) -> Result<Manifest, CheckpointError> {
        Manifest::decode(text.as_bytes(), Path::new("m"))
    }

    /// The same text with a correct seal.
    fn reseal(text: &str) -> String {
        let seal = Crc32::checksum(text.as_bytes());
        text.replacen(&seal_field(Crc32::default()), &seal_field(seal), 1)
    }

    #[test]
    fn a_manifest_reads_back_as_it_was() {
        let decoded = decode(&manifest().encode().unwrap()).unwrap();
        assert_eq!(Manifest { seal: Crc32::default(), ..decoded }, manifest());
    }

    #[test]
    fn any_changed_byte_breaks_the_seal() {
        let text = manifest().encode().unwrap().into_bytes();
        for at in 0..text.len() {
            for flip in [1, 0x20] {
                let mut damaged = text.clone();
                damaged[at] ^= flip;
                let error = Manifest::decode(&damaged, Path::new("m")).unwrap_err();
                assert!(error.is_damage(), "{at}: {error}");
            }
        }
    }

    #[test]
    fn a_later_format_is_not_taken_for_damage() {
        let text = serde_json::to_string_pretty(&manifest()).unwrap();
        let later = reseal(&text.replace("\"format\": 3", "\"format\": 4"));
        let error = decode(&later).unwrap_err();
        assert!(!error.is_damage());
        assert_eq!(error.to_string(), "read m: format 4, where this version reads up to 3");
    }

    #[test]
    fn a_manifest_from_before_parameter_groups_is_still_read() {
        let text = serde_json::to_string_pretty(&manifest()).unwrap();
        let old = text
            .replace("\"format\": 3", "\"format\": 1")
            .replace("sgd;sgd:weight_decay=0.1", "sgd")
            .replace(",\n      \"group\": 1", "");
        assert!(!old.contains("group"));
        let old = decode(&reseal(&old)).unwrap();
        assert_eq!(old.optimizer, OptimizerSpec::SGD.into());
        assert_eq!(old.tensors, [TensorSpec::new("w", [2, 3])]);
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let text = serde_json::to_string_pretty(&manifest()).unwrap();
        let odd = reseal(&text.replace("\"step\": 13", "\"step\": 13, \"pace\": 1"));
        assert!(decode(&odd).unwrap_err().to_string().contains("unknown field `pace`"));
    }

    #[test]
    fn a_checksum_has_one_spelling() {
        assert_eq!("0000beef".parse(), Ok(Crc32(0xbeef)));
        for text in ["", "beef", "0000BEEF", "+000beef", "00000beef"] {
            assert!(text.parse::<Crc32>().is_err(), "{text}");
        }
    }
}
