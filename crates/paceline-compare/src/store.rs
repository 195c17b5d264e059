//! Stored results, from which an interrupted comparison resumes.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Mutex,
};

use anyhow::{Context, Result, bail};
use paceline_report::Usage;
use serde::{Deserialize, Serialize};

use crate::trial::{Trial, TrialOutcome};

/// A file with one line per finished run.
pub(crate) struct ResultStore {
    known: Mutex<BTreeMap<String, TrialOutcome>>,
    file: Mutex<File>,
}

#[derive(Serialize, Deserialize)]
struct StoredResult {
    trial: Trial,
    outcome: TrialOutcome,
}

impl ResultStore {
    /// Opens or creates the folder's file, without an incomplete last line, which an interrupted run
    /// leaves. Results are keyed by the names of input files, so the files' contents must not change.
    pub(crate) fn open(dir: &Path, inputs: &[PathBuf]) -> Result<ResultStore> {
        let failed = || format!("failed to keep results in {}", dir.display());
        fs::create_dir_all(dir).with_context(failed)?;
        let path = dir.join("results.jsonl");
        // Truncating the file below must not remove lines that another comparison adds.
        let file = OpenOptions::new().create(true).append(true).open(&path).with_context(failed)?;
        let lock = file.try_lock();
        lock.with_context(|| format!("{} is in use by another comparison", dir.display()))?;
        check_inputs(dir, inputs)?;
        let text = fs::read_to_string(&path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut known = BTreeMap::new();
        for (number, line) in text[..whole].lines().enumerate() {
            let line: StoredResult = serde_json::from_str(line).with_context(|| {
                format!("{}, line {}: not a result of this program", path.display(), number + 1)
            })?;
            known.insert(key(&line.trial)?, line.outcome);
        }
        file.set_len(whole as u64).with_context(failed)?;
        Ok(ResultStore { known: Mutex::new(known), file: Mutex::new(file) })
    }

    pub(crate) fn find(&self, trial: &Trial) -> Result<Option<TrialOutcome>> {
        let known = self.known.lock().expect("nobody panicked with it");
        Ok(known.get(&key(trial)?).cloned())
    }

    pub(crate) fn add(&self, trial: Trial, outcome: TrialOutcome) -> Result<()> {
        let key = key(&trial)?;
        let line = StoredResult { trial, outcome };
        let text = serde_json::to_string(&line)? + "\n";
        let mut file = self.file.lock().expect("nobody panicked with it");
        file.write_all(text.as_bytes()).context("failed to write a result")?;
        self.known.lock().expect("nobody panicked with it").insert(key, line.outcome);
        Ok(())
    }
}

/// Key of the program's version in `inputs.json`.
const PROGRAM: &str = "paceline";

/// Records hashes of the input files, or refuses files that changed since they were recorded.
fn check_inputs(dir: &Path, inputs: &[PathBuf]) -> Result<()> {
    let path = dir.join("inputs.json");
    let mut noted: BTreeMap<String, u64> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} was not written by paceline", path.display()))?,
        Err(_) => BTreeMap::new(),
    };
    let version = fnv1a(env!("CARGO_PKG_VERSION").as_bytes());
    if noted.insert(PROGRAM.to_owned(), version).is_some_and(|before| before != version) {
        bail!(Usage(format!(
            "the results in {} are from another version of paceline: give --out another folder",
            dir.display()
        )));
    }
    for input in inputs {
        let found =
            contents(input).with_context(|| format!("failed to read {}", input.display()))?;
        let name = input.display().to_string();
        if noted.insert(name, found).is_some_and(|before| before != found) {
            let (input, dir) = (input.display(), dir.display());
            bail!(Usage(format!(
                "{input} has changed since the results in {dir} were written: give --out another \
                 folder, or remove that one"
            )));
        }
    }
    fs::write(&path, serde_json::to_vec(&noted)?)
        .with_context(|| format!("failed to write {}", path.display()))
}

/// A hash of a file, or of all files of a folder.
fn contents(path: &Path) -> io::Result<u64> {
    if !path.is_dir() {
        return Ok(fnv1a(&fs::read(path)?));
    }
    let mut files =
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|file| file.is_file());
    files.sort();
    files.iter().try_fold(0, |hash: u64, file| Ok(hash.rotate_left(1) ^ fnv1a(&fs::read(file)?)))
}

/// The FNV-1a hash, which detects changes but resists no attacker.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn key(trial: &Trial) -> Result<String> {
    Ok(serde_json::to_string(trial)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_file_that_has_changed_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (out, trace) = (dir.path().join("out"), dir.path().join("t.csv"));
        fs::write(&trace, "1").unwrap();
        for _ in 0..2 {
            ResultStore::open(&out, std::slice::from_ref(&trace)).unwrap();
        }
        fs::write(&trace, "2").unwrap();
        let error =
            ResultStore::open(&out, std::slice::from_ref(&trace)).err().unwrap().to_string();
        assert!(error.contains("t.csv has changed since the results in"), "{error}");
        ResultStore::open(&out, &[]).unwrap();
    }
}
