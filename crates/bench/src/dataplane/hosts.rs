//! A round's exchange between hosts with a worker and a shard each, against an all-reduce among the
//! same hosts: equally many machines, and equally many bytes between them.

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::peers::AllReducePeer;
use crate::{
    contest::{Contest, Contestant},
    exchange::PARAMS,
    paceline::{Paceline, round_times},
    processes::{Processes, address, wait},
    report::Report,
    stats::{median, ratio},
};

const HOSTS: usize = 4;
const OURS: &str = "paceline";
const TOKEN: (&str, &str) = ("PACELINE_TOKEN", "hosts");

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let peer = AllReducePeer::GLOO;
    let ready = peer.install(report.quick()).map_err(anyhow::Error::msg);
    let hosts = match ready.and_then(|()| Hosts::lay()) {
        Ok(hosts) => hosts,
        Err(error) => {
            report.skip("gloo_over_hosts_4", ">= 1", &format!("{error:#}"));
            return Ok(());
        }
    };
    let (pairs, rounds) = if report.quick() { (1, 5) } else { (5, 12) };
    let contestants = [
        Contestant::new(OURS, || exchange(paceline, &hosts, rounds)),
        Contestant::new(peer.name, || {
            let meeting = format!("{}:29500", Hosts::address(0));
            let on = |host: usize, command: &Command| hosts.on(host, command);
            peer.seconds_apart((PARAMS, rounds), HOSTS, &meeting, on)
        }),
    ];
    let contest = Contest::hold(pairs, &contestants)?;
    let title = format!("100 MB between {HOSTS} hosts with a worker and a shard each");
    report.section(contest.table(&title, peer.name));
    let turns = |name: &str| contest.turns(name).context("somebody was not measured");
    let over = ratio(turns(OURS)?, turns(peer.name)?);
    let note = format!(
        "all-reduce by {} over our round, {HOSTS} network namespaces with a worker and a shard each, \
         TCP between them; {over}",
        peer.name
    );
    report.at_least("gloo_over_hosts_4", over.mean, 1.0, note);
    Ok(())
}

/// Median seconds per round. A worker exchanges data with its host's shard by shared memory, and with
/// other shards by TCP.
fn exchange(paceline: &Paceline, hosts: &Hosts, rounds: usize) -> Result<f64> {
    let here = Hosts::address(0);
    let args = format!(
        "server --name hosts --bind {here}:0 --remote-shards --shards {HOSTS} --workers {HOSTS} \
         --model synthetic:{PARAMS} --batch 1 --micro-batches 1 --policy full --optimizer mean \
         --rounds {rounds} --checkpoint-every 1000000 --staging-mb 4096"
    );
    let words = |text: &str| paceline.command(&text.split_whitespace().collect::<Vec<_>>());
    let start = |host: usize, text: &str, stderr: Stdio| -> Result<Child> {
        let mut command = hosts.on(host, &words(text));
        command.env(TOKEN.0, TOKEN.1).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Ok(command.spawn()?)
    };
    let mut all = Processes(vec![start(0, &args, Stdio::piped())?]);
    let server = address(&mut all.0[0])?;
    for host in 0..HOSTS {
        let own = Hosts::address(host);
        let shard = format!("server --shard {host}/{HOSTS} --coordinator {server} --bind {own}:0");
        all.0.push(start(host, &shard, Stdio::null())?);
        all.0.push(start(host, &format!("worker --connect {server}"), Stdio::null())?);
    }
    wait("the end of the run", || Ok(all.0[0].try_wait()?.is_some()))?;
    let status = all.0[0].wait()?;
    ensure!(status.success(), "the run between hosts failed: {status}");
    let times = round_times(&paceline.events("hosts")?, 3);
    paceline.discard("hosts")?;
    Ok(median(&times.iter().map(|time| time.as_secs_f64()).collect::<Vec<_>>()))
}

/// Network namespaces joined by a switch. A process holds each one and ends with this process, however
/// that ends; the namespace then vanishes with its contents.
struct Hosts {
    hosts: Vec<Keeper>,
    _switch: Keeper,
}

impl Hosts {
    fn lay() -> Result<Self> {
        let switch = Keeper::start()?;
        switch.ip("link add switch type bridge")?;
        switch.ip("link set switch up")?;
        let hosts: Result<Vec<Keeper>> = (0..HOSTS).map(|_| Keeper::start()).collect();
        let hosts = hosts?;
        for (index, host) in hosts.iter().enumerate() {
            let there = host.0.id();
            switch.ip(&format!("link add port{index} type veth peer name eth0 netns {there}"))?;
            switch.ip(&format!("link set port{index} master switch up"))?;
            host.ip(&format!("addr add {}/24 dev eth0", Hosts::address(index)))?;
            host.ip("link set eth0 up")?;
            host.ip("link set lo up")?;
        }
        Ok(Hosts { hosts, _switch: switch })
    }

    fn address(host: usize) -> String {
        format!("10.86.0.{}", host + 1)
    }

    /// The same command, on a host.
    fn on(&self, host: usize, command: &Command) -> Command {
        self.hosts[host].inside(command)
    }
}

/// A process in its own network namespace, which ends when its standard input is closed.
struct Keeper(Child);

impl Keeper {
    fn start() -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        // Ctrl-C ends this process, and with it the keeper.
        let keeper = command.process_group(0).spawn().context("failed to run unshare")?;
        let mut keeper = Keeper(keeper);
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
        let (pid, ours) = (keeper.0.id().to_string(), namespace("self")?);
        wait("a network namespace", || {
            ensure!(keeper.0.try_wait()?.is_none(), "this system makes no network namespaces");
            Ok(namespace(&pid).is_ok_and(|its| its != ours))
        })?;
        Ok(keeper)
    }

    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["--net", "--target", &self.0.id().to_string()]);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            inside.env(name, value.unwrap_or_default());
        }
        inside
    }

    fn ip(&self, words: &str) -> Result<()> {
        let mut ip = Command::new("ip");
        ip.args(words.split_whitespace());
        let output = self.inside(&ip).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`ip {words}` said: {}", said.trim());
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
