//! The event log: one line of JSON for everything that happened, only ever added to.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
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
        let open = || {
            let mut file =
                File::options().create(true).read(true).write(true).truncate(false).open(path)?;
            drop_torn_line(&mut file)?;
            Ok::<File, io::Error>(file)
        };
        let file = open().with_context(|| format!("failed to open {}", path.display()))?;
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

/// A process that was killed may have left half a line; the next line must not be glued to it.
fn drop_torn_line(file: &mut File) -> io::Result<()> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at as u64 + 1);
    file.set_len(whole)?;
    file.seek(SeekFrom::Start(whole)).map(drop)
}

#[cfg(test)]
mod tests {
    use paceline_core::{EventKind, Time, WorkerId};

    use super::*;

    #[test]
    fn what_is_added_after_a_torn_line_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        std::fs::write(&path, "{\"whole\": 1}\n{\"torn").unwrap();
        let kind = EventKind::WorkerJoined { worker: WorkerId(1), name: "it".to_owned() };
        let event = Event { at: Time::ZERO, kind };
        for _ in 0..2 {
            let mut log = EventLog::open(&path).unwrap();
            log.add(&event).unwrap();
            log.flush().unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], "{\"whole\": 1}");
        assert_eq!(serde_json::from_str::<Event>(lines[2]).unwrap(), event);
    }
}
