//! The event log: one line of JSON for everything that happened, only ever added to.
//!
//! A run that goes on after a resume goes on in the same file: time continues from the last line,
//! and rounds that no checkpoint held come again; the later one is the one that counts.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use paceline_core::{Event, EventKind, Time};
use serde::{Deserialize, Serialize};

/// `events.jsonl`, open for adding.
pub(crate) struct EventLog {
    file: BufWriter<File>,
    /// When the last process of this run said its last; its clock is carried on.
    before: Duration,
}

/// An event as it is written, its time being that of the whole run.
#[derive(Serialize)]
struct Line<'a> {
    at: Time,
    #[serde(flatten)]
    kind: &'a EventKind,
}

impl EventLog {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let mut file =
                File::options().create(true).read(true).write(true).truncate(false).open(path)?;
            let before = drop_torn_line(&mut file)?;
            Ok::<_, io::Error>((file, before))
        };
        let (file, before) =
            open().with_context(|| format!("failed to open {}", path.display()))?;
        Ok(EventLog { file: BufWriter::new(file), before })
    }

    pub(crate) fn add(&mut self, event: &Event) -> Result<()> {
        let line = Line { at: event.at + self.before, kind: &event.kind };
        serde_json::to_writer(&mut self.file, &line)?;
        Ok(self.file.write_all(b"\n")?)
    }

    /// Lets readers see all that was added.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.file.flush().context("failed to write the event log")
    }
}

/// A process that was killed may have left half a line; the next line must not be glued to it.
/// Returns the time of the last whole one.
fn drop_torn_line(file: &mut File) -> io::Result<Duration> {
    #[derive(Deserialize)]
    struct At {
        at: Time,
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    file.seek(SeekFrom::Start(whole as u64))?;
    let last = text[..whole].trim_ascii_end().rsplit(|&byte| byte == b'\n').next();
    let at = last.and_then(|line| serde_json::from_slice::<At>(line).ok());
    Ok(at.map_or(Duration::ZERO, |At { at }| at.since(Time::ZERO)))
}

#[cfg(test)]
mod tests {
    use paceline_core::WorkerId;

    use super::*;

    #[test]
    fn the_clock_of_a_resumed_run_goes_on_where_it_stood() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        for _ in 0..3 {
            let mut log = EventLog::open(&path).unwrap();
            for at in [0, 5] {
                let kind = EventKind::WorkerJoined { worker: WorkerId(1), name: String::new() };
                log.add(&Event { at: Time::ZERO + Duration::from_secs(at), kind }).unwrap();
            }
            log.flush().unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let at = |line| serde_json::from_str::<Event>(line).unwrap().at.since(Time::ZERO).as_secs();
        assert_eq!(text.lines().map(at).collect::<Vec<_>>(), [0, 5, 5, 10, 10, 15]);
    }

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
