//! A slow link: a network namespace for one worker, joined to ours by a pair of rate-limited devices.
//!
//! A process of its own lays it, and takes it away when its standard input closes, which it does
//! when whoever started it is gone, in whatever way. The server stays on loopback: a proxy listens
//! on our end of the link, for the other end alone.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use thiserror::Error;

use crate::rate::Rate;

/// A link to set up.
#[derive(Debug, Clone, Copy)]
pub struct LinkSpec {
    /// The process whose worker it is for; names are made from it.
    pub owner: u32,
    /// The worker.
    pub worker: u32,
    /// Bits per second, each way.
    pub rate: Rate,
}

/// Why a link cannot be set up.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The process that keeps the link does not start, or does not speak.
    #[error("failed to start the keeper of a link: {0}")]
    Keeper(#[from] io::Error),
    /// The process that keeps the link failed.
    #[error("{0}")]
    Refused(String),
    /// A tool does not run.
    #[error("{NEEDS}; failed to run {tool}: {error}")]
    Missing {
        /// The tool.
        tool: String,
        /// Why it does not run.
        error: io::Error,
    },
    /// A tool failed.
    #[error("{NEEDS}; `{command}` said: {said}")]
    Failed {
        /// The tool, with its arguments.
        command: String,
        /// Its standard error.
        said: String,
    },
    /// All addresses are taken.
    #[error("no net of 198.18.0.0/15 is free")]
    NoFreeNet,
}

const NEEDS: &str = "link:WORKER:RATE needs root, and ip and tc of iproute2";

/// A link, kept by another process for as long as this is not dropped.
#[derive(Debug)]
pub(crate) struct ShapedLink {
    keeper: Child,
    namespace: String,
    /// Our end.
    pub(crate) here: IpAddr,
    /// The worker's end.
    pub(crate) there: IpAddr,
}

impl ShapedLink {
    /// Starts a process that sets up the link and keeps it: `program link`.
    pub(crate) fn start(program: &[OsString], spec: LinkSpec) -> Result<Self, LinkError> {
        let LinkSpec { owner, worker, rate } = spec;
        let mut keeper = Command::new(&program[0])
            // Ctrl-C is for this process: the keeper sees that it is gone, and takes the link away.
            .process_group(0)
            .args(&program[1..])
            .args(["link", "--owner", &owner.to_string(), "--worker", &worker.to_string()])
            .args(["--rate", &rate.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = keeper.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let ends = line.split_once(' ');
        let ends = ends.and_then(|(a, b)| Some((a.parse().ok()?, b.trim().parse().ok()?)));
        let Some((here, there)) = ends else {
            let error = keeper.wait_with_output()?.stderr;
            let error = String::from_utf8_lossy(&error);
            let error = error.trim().trim_start_matches("error: ");
            return Err(LinkError::Refused(error.to_owned()));
        };
        Ok(ShapedLink { keeper, namespace: namespace(owner, worker), here, there })
    }

    /// What to put before a command for it to run behind the link.
    pub(crate) fn entrance(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.namespace]
    }
}

impl Drop for ShapedLink {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl LinkSpec {
    /// Sets up the link, prints its two ends, and keeps it until standard input closes. This is the
    /// keeper's side: `paceline link`.
    pub fn keep(self) -> Result<(), LinkError> {
        let laid = Laid::new(self)?;
        writeln!(io::stdout(), "{} {}", laid.here, laid.there)?;
        io::stdin().read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

/// What is there of a link; taken away when dropped.
struct Laid {
    namespace: String,
    device: String,
    here: Ipv4Addr,
    there: Ipv4Addr,
}

impl Laid {
    fn new(spec: LinkSpec) -> Result<Self, LinkError> {
        let LinkSpec { owner, worker, rate } = spec;
        let (here, there) = free_ends(owner.wrapping_mul(31).wrapping_add(worker))?;
        let device = format!("pl{owner}w{worker}");
        let laid = Laid { namespace: namespace(owner, worker), device, here, there };
        let Laid { namespace, device, .. } = &laid;
        // At least what comes in a tick of the kernel's clock (4 ms), or the rate is not reached.
        let burst = (rate.bits() / 8 / 250).max(4096);
        let limit = format!("root tbf rate {}bit burst {burst}b latency 400ms", rate.bits());
        run("ip", &format!("netns add {namespace}"))?;
        run("ip", &format!("link add {device} type veth peer name eth0 netns {namespace}"))?;
        run("ip", &format!("addr add {here}/30 dev {device}"))?;
        run("ip", &format!("-n {namespace} addr add {there}/30 dev eth0"))?;
        run("tc", &format!("qdisc add dev {device} {limit}"))?;
        run("tc", &format!("-n {namespace} qdisc add dev eth0 {limit}"))?;
        run("ip", &format!("link set {device} up"))?;
        run("ip", &format!("-n {namespace} link set eth0 up"))?;
        Ok(laid)
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        let _ = run("ip", &format!("link del {}", self.device));
        let _ = run("ip", &format!("netns del {}", self.namespace));
    }
}

fn namespace(owner: u32, worker: u32) -> String {
    format!("paceline-{owner}-w{worker}")
}

/// Two addresses in a net of their own that is not in use, looked for from `start` on. They are of
/// 198.18.0.0/15, which is set apart for measurements (RFC 2544).
fn free_ends(start: u32) -> Result<(Ipv4Addr, Ipv4Addr), LinkError> {
    const NETS: u32 = 1 << 15;
    let used = run("ip", "-4 -o addr show")?;
    let ends = |net: u32| {
        let first = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + 4 * (net % NETS);
        (Ipv4Addr::from(first + 1), Ipv4Addr::from(first + 2))
    };
    let mut nets = (0..NETS).map(|i| ends(start.wrapping_add(i)));
    let free = nets.find(|(here, _)| !used.contains(&format!(" {here}/")));
    free.ok_or(LinkError::NoFreeNet)
}

/// Runs a tool of iproute2 and returns what it says.
fn run(tool: &str, words: &str) -> Result<String, LinkError> {
    let mut command = Command::new(tool);
    command.args(words.split_whitespace()).stdin(Stdio::null());
    let missing = |error| LinkError::Missing { tool: tool.to_owned(), error };
    let output = command.output().map_err(missing)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(LinkError::Failed { command: format!("{tool} {words}"), said });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_as_short_as_the_kernel_wants_them() {
        // The highest process id and worker; 15 characters at most.
        assert!(format!("pl{}w{}", 4_194_304, 1023).len() <= 15);
    }

    #[test]
    fn what_fails_says_what_is_needed() {
        let error = run("ip", "netns no-such-word").unwrap_err();
        let error = error.to_string();
        assert!(error.contains("needs root, and ip and tc"), "{error}");
        let missing = run("no-such-tool", "at all").unwrap_err();
        assert!(missing.to_string().contains("no-such-tool"));
    }
}
