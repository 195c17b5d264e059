//! The machine and the commit of a bench.

use std::{fs, process::Command};

use anyhow::Result;

use crate::paceline::workspace;

/// Ticks of the kernel's clock per second, as it reports CPU times.
pub(crate) const TICKS: f64 = 100.0;

/// Processor, cores and memory.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".to_owned());
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(String::new(), |kib| format!(", {:.0} GiB", kib / f64::from(1 << 20)));
    format!("{cores} cores of {model}{memory}")
}

/// The commit of the workspace, short, with a `+` where files differ from it.
pub(crate) fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(workspace()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--", "crates"]).is_some_and(|s| !s.is_empty());
    let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    commit + if changed { "+" } else { "" }
}

/// Seconds that all cores have been busy, with any process.
pub(crate) fn busy_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.map(str::parse).collect::<Result<_, _>>()?;
    // user nice system idle iowait irq softirq steal; guests are counted among users.
    Ok([0, 1, 2, 5, 6, 7].iter().filter_map(|&at| ticks.get(at)).sum::<f64>() / TICKS)
}

/// Memory that a process holds, in bytes.
pub(crate) fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}
