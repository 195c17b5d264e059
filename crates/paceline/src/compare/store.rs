//! Outcomes that are there already: a comparison that was interrupted goes on where it was.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::Mutex,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::trial::{Outcome, Trial};

/// A file with a line for each run that is done.
pub(super) struct Store {
    known: Mutex<BTreeMap<String, Outcome>>,
    file: Mutex<File>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    trial: Trial,
    outcome: Outcome,
}

impl Store {
    /// Opens or makes the folder's file. A last line that is not whole is of an interrupted run.
    pub(super) fn open(dir: &Path) -> Result<Store> {
        let failed = || format!("failed to keep results in {}", dir.display());
        fs::create_dir_all(dir).with_context(failed)?;
        let path = dir.join("results.jsonl");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("failed to read {}", path.display()))?,
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let mut known = BTreeMap::new();
        for (number, line) in text[..whole].lines().enumerate() {
            let line: Line = serde_json::from_str(line).with_context(|| {
                format!("{}, line {}: not a result of this program", path.display(), number + 1)
            })?;
            known.insert(key(&line.trial)?, line.outcome);
        }
        let file = OpenOptions::new().create(true).append(true).open(&path).with_context(failed)?;
        let lock = file.try_lock();
        lock.with_context(|| format!("{} is in use by another comparison", dir.display()))?;
        file.set_len(whole as u64).with_context(failed)?;
        Ok(Store { known: Mutex::new(known), file: Mutex::new(file) })
    }

    pub(super) fn find(&self, trial: &Trial) -> Result<Option<Outcome>> {
        let known = self.known.lock().expect("nobody panicked with it");
        Ok(known.get(&key(trial)?).cloned())
    }

    pub(super) fn add(&self, trial: Trial, outcome: Outcome) -> Result<()> {
        let key = key(&trial)?;
        let line = Line { trial, outcome };
        let text = serde_json::to_string(&line)? + "\n";
        let mut file = self.file.lock().expect("nobody panicked with it");
        file.write_all(text.as_bytes()).context("failed to write a result")?;
        self.known.lock().expect("nobody panicked with it").insert(key, line.outcome);
        Ok(())
    }
}

fn key(trial: &Trial) -> Result<String> {
    Ok(serde_json::to_string(trial)?)
}
