//! Incast: 64 workers push 4 MB each at once through one link of 1 Gbit/s with a short queue.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use paceline_core::{Event, EventKind, LeaveReason};

use crate::{
    paceline::Paceline,
    processes::{Processes, address, wait},
    report::Report,
    stats::percentile,
};

const WORKERS: usize = 64;
const PARAMS: usize = 1_000_000;

/// Bytes per second of the link, including headers.
const LINK: f64 = 1e9 / 8.0;

/// Pause between a pull and its push, so that the pushes of successive rounds are distinct.
const PAUSE: Duration = Duration::from_secs(1);

/// Slower than this share of the link is a trickle: control messages, acknowledgements.
const TRICKLE: f64 = 0.05;

const GOALS: [(&str, &str); 4] = [
    ("incast_goodput", ">= 0.9"),
    ("incast_timeouts", "<= 0"),
    ("incast_lost_workers", "<= 0"),
    ("incast_control_p99_ms", "<= 50"),
];

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let link = match Bottleneck::lay(paceline) {
        Ok(link) => link,
        Err(error) => {
            for (name, goal) in GOALS {
                report.skip(name, goal, &format!("no link of its own here: {error:#}"));
            }
            return Ok(());
        }
    };
    let rounds = if report.quick() { 2 } else { 8 };
    let watch = Watch::start(&link);
    let latencies = push_rounds(paceline, &link, rounds)?;
    let seconds = pushing(&watch.end()?, rounds);
    let payload = (rounds * WORKERS * PARAMS * size_of::<f32>()) as f64;
    let note = format!(
        "of 1 Gbit/s through a queue of 256 KiB, in {rounds} rounds of {WORKERS} × 4 MB; {:.2} s a \
         push on the link, which carries 0.956 at most besides headers",
        seconds / rounds as f64
    );
    report.at_least("incast_goodput", payload / seconds / LINK, 0.9, note);
    let again = link.count("/proc/net/snmp", "Tcp:", "RetransSegs")?;
    let note = format!("of TCP, on the workers' side; {again} segments were sent again");
    let timeouts = link.count("/proc/net/netstat", "TcpExt:", "TCPTimeouts")?;
    report.at_most("incast_timeouts", timeouts, 0.0, note);
    let events = paceline.events("incast")?;
    let lost = events.iter().filter(|event| match &event.kind {
        EventKind::WorkerLeft { why, .. } => *why != LeaveReason::Finished,
        _ => false,
    });
    report.at_most("incast_lost_workers", lost.count() as f64, 0.0, "of 64");
    let note = format!(
        "ms from a sign of life to its answer by the coordinator, over the same link, p99 of {}; \
         median {:.1}, worst {:.1}",
        latencies.len(),
        percentile(&latencies, 0.5),
        percentile(&latencies, 1.0)
    );
    report.at_most("incast_control_p99_ms", percentile(&latencies, 0.99), 50.0, note);
    Ok(())
}

/// Runs `rounds` rounds with all workers behind the link; returns the round-trip times of their
/// heartbeats in milliseconds, sorted.
fn push_rounds(paceline: &Paceline, link: &Bottleneck, rounds: usize) -> Result<Vec<f64>> {
    const TOKEN: (&str, &str) = ("PACELINE_TOKEN", "incast");
    let args = format!(
        "server --name incast --bind {}:0 --workers {WORKERS} --model synthetic:{PARAMS} --batch 1 \
         --micro-batches 1 --policy full --rounds {rounds} --checkpoint-every 1000000 \
         --transport tcp",
        link.here
    );
    let args: Vec<&str> = args.split_whitespace().collect();
    let mut server = paceline.command(&args);
    server.env(TOKEN.0, TOKEN.1).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut all = Processes(vec![server.spawn()?]);
    let address = address(&mut all.0[0])?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("workers.log");
    let said = File::options().create(true).append(true).open(&log)?;
    for _ in 0..WORKERS {
        let pause = format!("{}ms", PAUSE.as_millis());
        let worker =
            paceline.command(&["worker", "--tied", "--connect", &address, "--nominal", &pause]);
        let mut worker = link.behind(&worker);
        worker.env(TOKEN.0, TOKEN.1).env("PACELINE_LOG", "debug").env("NO_COLOR", "1");
        worker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone()?);
        all.0.push(worker.spawn()?);
    }
    // Earlier, sixty-four processes start on a few cores and wait for these, not for the link.
    let opened = |event: &Event| matches!(event.kind, EventKind::RoundStarted { .. });
    let begun = || paceline.events("incast").is_ok_and(|events| events.iter().any(opened));
    wait("the first round", || Ok(begun() || all.0[0].try_wait()?.is_some()))?;
    let before = fs::metadata(&log)?.len() as usize;
    wait("the end of the run", || Ok(all.0[0].try_wait()?.is_some()))?;
    let status = all.0[0].wait()?;
    ensure!(status.success(), "the run through the link failed: {status}");
    let text = fs::read_to_string(&log)?;
    let micros = text[before..].lines().filter_map(|line| {
        line.split_once("answered after ")?.1.split_once(" us")?.0.parse::<f64>().ok()
    });
    let mut latencies: Vec<f64> = micros.map(|micros| micros / 1e3).collect();
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

/// A network namespace behind a link with limited bandwidth towards this process. `paceline link` holds
/// it, and removes it when this is dropped or this process ends in any way.
struct Bottleneck {
    keeper: Child,
    namespace: String,
    device: String,
    here: String,
}

impl Bottleneck {
    fn lay(paceline: &Paceline) -> Result<Self> {
        let owner = std::process::id();
        let mut keeper = paceline
            .command(&["link", "--owner", &owner.to_string(), "--worker", "0", "--rate", "1gbit"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C ends this process; the link's process notices, and removes the link.
            .process_group(0)
            .spawn()?;
        let mut ends = String::new();
        let stdout = keeper.stdout.take().context("a link without words")?;
        BufReader::new(stdout).read_line(&mut ends)?;
        let Some((here, _)) = ends.split_once(' ') else {
            let said = keeper.wait_with_output()?.stderr;
            anyhow::bail!("{}", String::from_utf8_lossy(&said).trim());
        };
        // As it names them.
        let (namespace, device) = (format!("paceline-{owner}-w0"), format!("pl{owner}w0"));
        let link = Bottleneck { keeper, namespace, device, here: here.to_owned() };
        // Only the direction towards us is limited, as at a server's port: pulls end before pushes begin.
        tool("tc", &format!("qdisc del dev {} root", link.device))?;
        // The burst covers a tick of the kernel's clock (4 ms), or the rate would not be reached.
        let limit = "root tbf rate 1gbit burst 500kb limit 256kb";
        tool("tc", &format!("-n {} qdisc replace dev eth0 {limit}", link.namespace))?;
        Ok(link)
    }

    /// The same command, behind the link.
    fn behind(&self, command: &Command) -> Command {
        let mut behind = Command::new("ip");
        behind.args(["netns", "exec", &self.namespace]).arg(command.get_program());
        behind.args(command.get_args());
        behind
    }

    /// The kernel's counters behind the link: a line of names, and one of numbers.
    fn count(&self, file: &str, of: &str, what: &str) -> Result<f64> {
        let text = tool("ip", &format!("netns exec {} cat {file}", self.namespace))?;
        let mut lines = text.lines().filter(|line| line.starts_with(of));
        let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        let mut both = names.split(' ').zip(values.split(' '));
        let found = both.find(|(name, _)| *name == what);
        let count = found.and_then(|(_, count)| count.parse().ok());
        count.with_context(|| format!("the kernel does not count {what}"))
    }
}

impl Drop for Bottleneck {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Runs a tool of iproute2 and returns its output.
fn tool(name: &str, words: &str) -> Result<String> {
    let output = Command::new(name).args(words.split_whitespace()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{name} {words}` said: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A moment in seconds, and the bytes carried so far to us and from us.
type Sample = (f64, u64, u64);

/// Samples a link's byte counters every few milliseconds, on its own thread.
struct Watch {
    run: mpsc::Sender<()>,
    samples: thread::JoinHandle<Result<Vec<Sample>>>,
}

impl Watch {
    fn start(link: &Bottleneck) -> Self {
        let folder = format!("/sys/class/net/{}/statistics", link.device);
        let bytes = move |file: &str| -> Result<u64> {
            Ok(fs::read_to_string(format!("{folder}/{file}"))?.trim().parse()?)
        };
        let (run, over) = mpsc::channel();
        let began = Instant::now();
        let samples = thread::spawn(move || {
            let mut samples = Vec::new();
            while over.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                let (came, went) = (bytes("rx_bytes")?, bytes("tx_bytes")?);
                samples.push((began.elapsed().as_secs_f64(), came, went));
            }
            Ok(samples)
        });
        Watch { run, samples }
    }

    fn end(self) -> Result<Vec<Sample>> {
        drop(self.run);
        self.samples.join().expect("reading a file does not panic")
    }
}

/// Seconds during which bytes were pushed in `rounds` rounds: the longest breaks are those between
/// rounds, and any other is a stall. While more bytes go out than come in, the incoming ones
/// acknowledge pulls.
fn pushing(samples: &[Sample], rounds: usize) -> f64 {
    let moving = |pair: &&[Sample]| {
        let (came, went) = (pair[1].1 - pair[0].1, pair[1].2 - pair[0].2);
        came > went && came as f64 > TRICKLE * LINK * (pair[1].0 - pair[0].0)
    };
    let spells: Vec<_> = samples.windows(2).filter(moving).map(|p| (p[0].0, p[1].0)).collect();
    let mut breaks: Vec<f64> = spells.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
    breaks.sort_by(|a, b| b.total_cmp(a));
    let (Some(first), Some(last)) = (spells.first(), spells.last()) else { return f64::NAN };
    last.1 - first.0 - breaks.iter().take(rounds - 1).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_breaks_are_between_rounds_and_others_are_stalls() {
        // Bytes come for 1 s, stall for 0.2 s, come for 0.5 s; and for 0.3 s after a pause with a pull
        // and its acknowledgements.
        let flows = [0.0..1.0, 1.2..1.7, 1.9..2.0, 3.0..3.3];
        let (mut came, mut went) = (0, 0);
        let samples: Vec<Sample> = (0..800)
            .map(|i| {
                let at = f64::from(i) * 0.005;
                came += if flows.iter().any(|flow| flow.contains(&at)) { 500_000 } else { 300 };
                went += if flows[2].contains(&at) { 9_000_000 } else { 20_000 };
                (at, came, went)
            })
            .collect();
        let found = pushing(&samples, 2);
        assert!((found - 2.0).abs() < 0.03, "{found}");
        assert!(pushing(&[], 2).is_nan());
    }
}
