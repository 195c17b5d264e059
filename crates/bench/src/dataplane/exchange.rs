//! One round's exchange of a 100 MB tensor: workers × shards, transports, limits, peers.

use anyhow::{Context, Result};
use paceline_wire::Transport;

use super::peers::AllReducePeer;
use crate::{
    contest::{Contest, Contestant},
    exchange::{BYTES, Exchange, PARAMS, bare_seconds},
    limits::stream_add,
    paceline::Paceline,
    report::Report,
    stats::{median, ratio},
};

/// Shards in the comparison with peers: the default of a run.
const SHARDS: usize = 2;
const BARE: &str = "bare loopback sockets";
const COPIED: &str = "paceline, shm, 2 shards, copied";

/// Transports by their names in tables: all on one host, where `auto` is shared memory.
const TRANSPORTS: [(&str, Transport); 2] = [("tcp", Transport::Tcp), ("shm", Transport::Auto)];

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let mut peers = Vec::new();
    for peer in AllReducePeer::ALL {
        match peer.install(report.quick()) {
            Ok(()) => peers.push(peer),
            Err(why) => report.skip(&format!("{}_over_tcp_4", peer.name), "stated", &why),
        }
    }
    for workers in [2, 4, 8] {
        if report.quick() && workers > 2 {
            let name = format!("exchange_of_bare_sockets_{workers}");
            report.skip(&name, "stated", "takes longer than a quick run");
            continue;
        }
        compare(paceline, report, workers, &peers)?;
    }
    Ok(())
}

fn compare(
    paceline: &Paceline,
    report: &mut Report,
    workers: usize,
    peers: &[AllReducePeer],
) -> Result<()> {
    // Goals are set for four workers.
    let (pairs, rounds) = match workers {
        _ if report.quick() => (1, 5),
        4 => (6, 10),
        _ => (2, 6),
    };
    let all_shards: &[usize] = if report.quick() { &[SHARDS] } else { &[1, 2, 4] };
    let mut contestants = Vec::new();
    for (name, transport) in TRANSPORTS {
        for &shards in all_shards {
            // The new value is the mean of the contributions, as in an all-reduce.
            let flags = "--optimizer mean".to_owned();
            let params = PARAMS;
            let exchange = Exchange { params, workers, shards, rounds, transport, flags };
            let seconds = move || exchange.seconds(paceline);
            contestants.push(Contestant::new(ours(name, shards), seconds));
        }
    }
    // A worker that may finish late copies the shards' version instead of keeping it.
    let flags = "--optimizer mean --straggler finish".to_owned();
    let (params, shards, transport) = (PARAMS, SHARDS, Transport::Auto);
    let exchange = Exchange { params, workers, shards, rounds, transport, flags };
    contestants.push(Contestant::new(COPIED, move || exchange.seconds(paceline)));
    for peer in peers {
        contestants.push(Contestant::new(peer.name, || peer.seconds(workers, PARAMS, rounds)));
    }
    contestants.push(Contestant::new(BARE, || bare_seconds(workers)));
    let contest = Contest::hold(pairs, &contestants)?;
    let memory = stream_add(PARAMS, std::thread::available_parallelism()?.get());
    let title = format!("100 MB, {workers} workers");
    report.section(contest.table(&title, BARE));
    limits(report, &contest, workers, memory)?;
    against_peers(report, &contest, workers, peers)
}

fn ours(transport: &str, shards: usize) -> String {
    format!("paceline, {transport}, {shards} shards")
}

fn limits(report: &mut Report, contest: &Contest, workers: usize, memory: f64) -> Result<()> {
    let bare = contest.turns(BARE).context("bare sockets were not measured")?;
    let moved = 2.0 * (workers * BYTES) as f64;
    for (transport, _) in TRANSPORTS {
        let turns = contest.turns(&ours(transport, SHARDS)).context("nothing was measured")?;
        let note = format!(
            "{workers} workers, {SHARDS} shards, {transport}: bare sockets' time for the same bytes \
             over a round's; {}",
            ratio(turns, bare)
        );
        let name = format!("exchange_of_bare_sockets_{workers}_{transport}");
        report.tell(&name, ratio(turns, bare).mean, note);
        let note = format!("the same bytes against STREAM-add's {:.1} GB/s", memory / 1e9);
        let name = format!("exchange_of_stream_add_{workers}_{transport}");
        report.tell(&name, moved / median(turns) / memory, note);
    }
    Ok(())
}

/// Each peer's time over ours; goals are set for four workers.
fn against_peers(
    report: &mut Report,
    contest: &Contest,
    workers: usize,
    peers: &[AllReducePeer],
) -> Result<()> {
    for (transport, _) in TRANSPORTS {
        let turns = contest.turns(&ours(transport, SHARDS)).context("nothing was measured")?;
        let mut best = f64::INFINITY;
        for peer in peers {
            let theirs = contest.turns(peer.name).context("a peer was not measured")?;
            let over = ratio(turns, theirs);
            best = best.min(over.mean);
            let note =
                format!("all-reduce by {} over our round, {workers} workers; {over}", peer.name);
            let name = format!("{}_over_{transport}_{workers}", peer.name);
            match (peer.name, transport, workers) {
                ("gloo", "tcp", 4) => report.at_least(&name, over.mean, 1.0, note),
                _ => report.tell(&name, over.mean, note),
            }
        }
        if transport == "shm" && !peers.is_empty() {
            let name = format!("best_peer_over_shm_{workers}");
            let note = "all-reduce by the fastest peer over our round by shared memory, at whose end all \
                        workers have the result where the shards published it, and none has read it";
            match workers {
                4 => report.at_least(&name, best, 2.0, note),
                _ => report.tell(&name, best, note),
            }
            let copied = contest.turns(COPIED).context("nothing was measured")?;
            let theirs = peers.iter().filter_map(|peer| contest.turns(peer.name));
            let best =
                theirs.map(|theirs| ratio(copied, theirs).mean).fold(f64::INFINITY, f64::min);
            let name = format!("best_peer_over_shm_copied_{workers}");
            let note =
                "the same where each worker copies it into memory of its own (--straggler finish)";
            report.tell(&name, best, note);
        }
    }
    Ok(())
}
