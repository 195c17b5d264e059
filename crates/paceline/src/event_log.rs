//! The event log: one line of JSON for everything that happened, only ever added to.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result};
use paceline_core::Event;

/// `events.jsonl`, open for adding.
pub(crate) struct EventLog {
    file: BufWriter<File>,
}

impl EventLog {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("failed to open {}", path.display()))?;
        Ok(EventLog { file: BufWriter::new(file) })
    }

    pub(crate) fn add(&mut self, event: &Event) -> Result<()> {
        serde_json::to_writer(&mut self.file, event)?;
        Ok(self.file.write_all(b"\n")?)
    }

    /// Lets readers see all that was added.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.file.flush().context("failed to write the event log")
    }
}
