//! The event log: one line of JSON per event, only ever appended to.
//!
//! A resumed run appends to the same file. Timestamps continue from the last line. A round that no
//! checkpoint held appears twice; use the later entry.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use paceline_core::{Event, EventKind, Time};
use serde::{Deserialize, Serialize};

/// `events.jsonl`, open for adding.
pub(crate) struct EventLog {
    file: BufWriter<File>,
    /// Time of the last line of the run's earlier processes, from which timestamps continue.
    before: Duration,
}

/// An event as it is written, with its time since the run's first process.
#[derive(Serialize)]
struct LogLine<'a> {
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
        let line = LogLine { at: event.at + self.before, kind: &event.kind };
        serde_json::to_writer(&mut self.file, &line)?;
        Ok(self.file.write_all(b"\n")?)
    }

    /// Makes all added lines visible to readers.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.file.flush().context("failed to write the event log")
    }
}

/// Bytes read at a time to find the last line.
const CHUNK: usize = 16 << 10;

/// The end of a log: the length of its whole lines, and the time of the last one.
struct LogTail {
    whole: u64,
    at: Duration,
}

impl LogTail {
    /// Finds the last whole line from the end of the file, in memory of a fixed size: a run of
    /// weeks leaves a log of gigabytes.
    fn read(log: &mut (impl Read + Seek)) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct At {
            at: Time,
        }
        let end = log.seek(SeekFrom::End(0))?;
        let whole = after_last(log, end, |byte| byte == b'\n')?;
        let last = after_last(log, whole, |byte| !byte.is_ascii_whitespace())?;
        let first = after_last(log, last, |byte| byte == b'\n')?;
        log.seek(SeekFrom::Start(first))?;
        // The parser skips all fields but the time, and keeps none of them.
        let line = BufReader::with_capacity(CHUNK, log.take(last - first));
        let at = serde_json::from_reader(line).map_or(Time::ZERO, |At { at }| at);
        Ok(LogTail { whole, at: at.since(Time::ZERO) })
    }
}

/// The offset after the last byte before `end` that `wanted` accepts; 0 if there is none.
fn after_last(
    log: &mut (impl Read + Seek),
    mut end: u64,
    wanted: impl Fn(u8) -> bool,
) -> io::Result<u64> {
    let mut chunk = [0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let bytes = &mut chunk[..(end - start) as usize];
        log.seek(SeekFrom::Start(start))?;
        log.read_exact(bytes)?;
        if let Some(at) = bytes.iter().rposition(|&byte| wanted(byte)) {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Truncates an incomplete last line, which a killed process may leave, so that the next line is not
/// appended to it; returns the time of the last whole line.
fn drop_torn_line(file: &mut File) -> io::Result<Duration> {
    let LogTail { whole, at } = LogTail::read(file)?;
    file.set_len(whole)?;
    file.seek(SeekFrom::Start(whole))?;
    Ok(at)
}

#[cfg(test)]
mod tests {
    use paceline_core::WorkerId;

    use super::*;

    #[test]
    fn timestamps_of_a_resumed_run_continue() {
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
    fn a_line_added_after_a_torn_line_is_whole() {
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

    /// Counts the bytes that are read, and the most that are asked for at once.
    struct Counted<R> {
        log: R,
        read: usize,
        largest: usize,
    }

    impl<R: Read> Read for Counted<R> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let read = self.log.read(bytes)?;
            self.read += read;
            self.largest = self.largest.max(bytes.len());
            Ok(read)
        }
    }

    impl<R: Seek> Seek for Counted<R> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.log.seek(to)
        }
    }

    fn line(seconds: u64, name: usize) -> Vec<u8> {
        let at = Time::ZERO + Duration::from_secs(seconds);
        let kind = EventKind::WorkerJoined { worker: WorkerId(1), name: "x".repeat(name) };
        let mut line = serde_json::to_vec(&LogLine { at, kind: &kind }).unwrap();
        line.push(b'\n');
        line
    }

    #[test]
    fn a_resume_reads_the_end_of_a_large_log_and_not_the_rest() {
        let whole: Vec<u8> = line(1, 40).repeat(300_000).into_iter().chain(line(7, 40)).collect();
        let mut log = Counted { log: io::Cursor::new(&whole), read: 0, largest: 0 };
        let tail = LogTail::read(&mut log).unwrap();
        assert_eq!((tail.whole, tail.at.as_secs()), (whole.len() as u64, 7));
        assert!(whole.len() > 20 << 20 && log.read <= 4 * CHUNK, "{} bytes read", log.read);
    }

    #[test]
    fn a_line_of_any_length_is_found_a_chunk_at_a_time() {
        for (first, last, torn) in
            [(0, 0, 0), (10, 3 * CHUNK, 5), (5 * CHUNK, 1, 4 * CHUNK), (1, CHUNK, CHUNK)]
        {
            let whole = [line(3, first), line(9, last)].concat();
            let bytes = [&whole[..], &vec![b'{'; torn]].concat();
            let mut log = Counted { log: io::Cursor::new(bytes), read: 0, largest: 0 };
            let tail = LogTail::read(&mut log).unwrap();
            assert_eq!((tail.whole, tail.at.as_secs()), (whole.len() as u64, 9));
            assert!(log.largest <= CHUNK);
        }
        for empty in ["", "{\"torn", "\n\n"] {
            let tail = LogTail::read(&mut io::Cursor::new(empty)).unwrap();
            assert_eq!(
                (tail.whole, tail.at),
                (empty.trim_start_matches("{\"torn").len() as u64, Duration::ZERO)
            );
        }
    }
}
