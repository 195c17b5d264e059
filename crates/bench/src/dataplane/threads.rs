//! CPU times of a server's threads, of its workers' processes, and of others.

use std::{collections::BTreeMap, fs, time::Instant};

use anyhow::{Context, Result};

use crate::machine::{TICKS, busy_seconds};

/// CPU seconds by user, at one moment.
pub(super) struct Accounts {
    at: Instant,
    seconds: BTreeMap<String, f64>,
}

impl Accounts {
    /// Reads the CPU seconds of the threads of `train`'s process by name, the first one being the
    /// coordinator, and the sum over the processes that it started.
    pub(super) fn read(server: u32) -> Result<Self> {
        let (at, mut seconds) = (Instant::now(), BTreeMap::new());
        for task in fs::read_dir(format!("/proc/{server}/task")).context("the server has gone")? {
            let task = task?;
            let Some(stat) = Stat::read(&task.path().join("stat").display().to_string()) else {
                continue;
            };
            let first = task.file_name().to_string_lossy() == server.to_string();
            let name = if first { "coordinator".to_owned() } else { stat.name };
            *seconds.entry(name).or_default() += stat.seconds;
        }
        for process in fs::read_dir("/proc")? {
            let stat = Stat::read(&process?.path().join("stat").display().to_string());
            if let Some(stat) = stat.filter(|stat| stat.parent == server) {
                *seconds.entry("workers".to_owned()).or_default() += stat.seconds;
            }
        }
        let ours: f64 = seconds.values().sum();
        seconds.insert("others".to_owned(), busy_seconds()? - ours);
        Ok(Accounts { at, seconds })
    }

    /// The number of cores that each kept busy since `earlier`.
    pub(super) fn since(&self, earlier: &Accounts) -> BTreeMap<String, f64> {
        let wall = self.at.duration_since(earlier.at).as_secs_f64();
        let used = |(name, seconds): (&String, &f64)| {
            let before = earlier.seconds.get(name).copied().unwrap_or(0.0);
            (name.clone(), (seconds - before).max(0.0) / wall)
        };
        self.seconds.iter().map(used).collect()
    }
}

/// The kernel's `stat` line of a process or a thread.
struct Stat {
    name: String,
    parent: u32,
    seconds: f64,
}

impl Stat {
    /// `None` if it has gone.
    fn read(path: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name is in parentheses and may hold any character.
        let (head, rest) = text.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
        let seconds = (ticks(11)? + ticks(12)?) / TICKS;
        Some(Stat { name, parent: fields.get(1)?.parse().ok()?, seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = "12 (shard 0) x) S 7 12 12 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 3 0 1 2 3";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent, stat.seconds), ("shard 0) x", 7, 2.0));
        assert!(Stat::parse("12 (gone").is_none());
    }

    #[test]
    fn a_busy_thread_is_seen_by_its_name() {
        let me = std::process::id();
        let busy = std::thread::Builder::new().name("busy".to_owned()).spawn(move || {
            let before = Accounts::read(me).unwrap();
            let began = Instant::now();
            while began.elapsed().as_millis() < 200 {
                std::hint::spin_loop();
            }
            Accounts::read(me).unwrap().since(&before)["busy"]
        });
        assert!(busy.unwrap().join().unwrap() > 0.05);
    }
}
