//! The folder of a run: effective config, event log, checkpoints, worker logs, summary.

use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{
    config::RunConfig,
    settings::RecordSettings,
    summary::{Earlier, Summary},
};

/// `runs/NAME/`. Everything there is readable without this program.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    /// Held for as long as this process works in the folder.
    _lock: File,
}

impl RunDir {
    /// Creates the folder of a new run, and sets its name in `config`.
    pub(crate) fn create(config: &mut RunConfig) -> Result<Self> {
        let parent = Path::new(&config.record.run_dir);
        fs::create_dir_all(parent)
            .with_context(|| format!("failed to make the folder {}", parent.display()))?;
        let name = match &config.record.name {
            Some(name) => {
                check_name(name)?;
                claim(parent, name)?.with_context(|| {
                    format!(
                        "a run called {name} is already in {}; continue it with --resume {name}, \
                         or choose another --name",
                        parent.display()
                    )
                })?
            }
            None => made_up_name(parent, config)?,
        };
        let dir = RunDir::open(parent.join(&name))?;
        config.record.name = Some(name);
        dir.write_config(config)?;
        Ok(dir)
    }

    /// Finds the folder of an earlier run by its name or path.
    pub(crate) fn find(run: &str, run_dir: &str) -> Result<Self> {
        let candidates = [Path::new(run_dir).join(run), PathBuf::from(run)];
        match candidates.iter().find(|path| path.join(CONFIG).is_file()) {
            Some(path) => RunDir::open(path.clone()),
            None => bail!(
                "there is no run {run}: neither {} nor {} holds a {CONFIG}",
                candidates[0].display(),
                candidates[1].display()
            ),
        }
    }

    /// Opens and locks a run's folder, for one process at a time.
    fn open(path: PathBuf) -> Result<Self> {
        let lock = File::create(path.join(".lock"))
            .with_context(|| format!("failed to write into {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(RunDir { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                bail!("another process is working on the run in {}", path.display())
            }
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("failed to lock {}", path.display()))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    pub(crate) fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The log file of a worker process.
    pub(crate) fn worker_log(&self, worker: u32) -> Result<(File, PathBuf)> {
        let logs = self.path.join("workers");
        fs::create_dir_all(&logs)?;
        let path = logs.join(format!("w{worker}.log"));
        let file = File::options().create(true).append(true).open(&path);
        Ok((file.with_context(|| format!("failed to write {}", path.display()))?, path))
    }

    /// The run's name, which is its folder's.
    pub(crate) fn name(&self) -> Option<String> {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        path.file_name().map(|name| name.to_string_lossy().into_owned())
    }

    /// Writes the settings without the name, so that a run repeated from them gets its own.
    pub(crate) fn write_config(&self, config: &RunConfig) -> Result<()> {
        let record = RecordSettings { name: None, ..config.record.clone() };
        let text = toml::to_string(&RunConfig { record, ..config.clone() })
            .context("failed to encode the settings")?;
        self.write(CONFIG, text.as_bytes())
    }

    pub(crate) fn write_summary(&self, summary: &Summary) -> Result<()> {
        let text = serde_json::to_string_pretty(summary)?;
        self.write("summary.json", format!("{text}\n").as_bytes())
    }

    /// The summary of the run's last process, if it wrote one.
    pub(crate) fn read_summary(&self) -> Option<Earlier> {
        serde_json::from_slice(&fs::read(self.path.join("summary.json")).ok()?).ok()
    }

    /// Writes a file whole or not at all.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, draft) = (self.path.join(name), self.path.join(format!(".{name}.tmp")));
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().with_context(|| format!("failed to write {}", path.display()))
    }
}

const CONFIG: &str = "config.toml";

fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        bail!("`{name}` is no name for a run: use letters, digits, - and _");
    }
    Ok(())
}

/// Creates the folder; `None` if it exists. Two runs never share one.
fn claim(parent: &Path, name: &str) -> Result<Option<String>> {
    let path = parent.join(name);
    match fs::create_dir(&path) {
        Ok(()) => Ok(Some(name.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to make {}", path.display())),
    }
}

fn made_up_name(parent: &Path, config: &RunConfig) -> Result<String> {
    let model = config.task.model.to_string().replace(':', "-");
    for number in 1..100_000 {
        if let Some(name) = claim(parent, &format!("{model}-{number:03}"))? {
            return Ok(name);
        }
    }
    bail!("{} holds too many runs; choose a --name", parent.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path, name: Option<&str>) -> RunConfig {
        let run_dir = dir.to_string_lossy().into_owned();
        let name = name.map(str::to_owned);
        let record = RecordSettings { run_dir, name, ..RecordSettings::default() };
        RunConfig { record, ..RunConfig::default() }
    }

    #[test]
    fn every_new_run_gets_its_own_folder_and_can_be_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = config(dir.path(), None);
        let mut second = config(dir.path(), None);
        RunDir::create(&mut first).unwrap();
        RunDir::create(&mut second).unwrap();
        assert_eq!(first.record.name.as_deref(), Some("cnn-001"));
        assert_eq!(second.record.name.as_deref(), Some("cnn-002"));
        let found = RunDir::find("cnn-002", &first.record.run_dir).unwrap();
        assert!(found.config().is_file());
        let shared = RunDir::find("cnn-002", &first.record.run_dir).unwrap_err().to_string();
        assert!(shared.contains("another process is working"), "{shared}");
    }

    #[test]
    fn a_name_in_use_or_a_name_that_is_a_path_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        RunDir::create(&mut config(dir.path(), Some("mine"))).unwrap();
        let again = RunDir::create(&mut config(dir.path(), Some("mine"))).unwrap_err();
        assert!(format!("{again:#}").contains("--resume mine"));
        for name in ["../out", "a/b", "", ".hidden"] {
            assert!(RunDir::create(&mut config(dir.path(), Some(name))).is_err(), "{name}");
        }
        let missing = RunDir::find("nobody", &dir.path().to_string_lossy()).unwrap_err();
        assert!(missing.to_string().contains("there is no run nobody"));
    }
}
