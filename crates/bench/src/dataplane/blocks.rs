//! The cost of splitting parameters into blocks against one frame per shard, without stragglers. All by
//! TCP, which partial modes use; shared memory has no frames.

use anyhow::{Context, Result};
use paceline_wire::Transport;

use crate::{
    contest::{Contest, Contestant},
    exchange::Exchange,
    paceline::Paceline,
    report::Report,
    stats::ratio,
};

/// Workers, parameters, and block sizes in KiB up to the whole shard: one frame.
const CASES: [(usize, usize, &[usize]); 2] =
    [(4, 8 << 20, &[64, 256, DEFAULT, 4096, 16_384]), (64, 1 << 20, &[64, DEFAULT, 2048])];
const SHARDS: usize = 2;
const DEFAULT: usize = 1024;

/// Flags of modes that must cost as little with blocks of the default size.
const MODES: [(&str, &str); 2] = [("pull", "--pull auto"), ("push", "--push auto")];

pub(super) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let mut modes = Vec::new();
    for (name, flags) in MODES {
        let flag = flags.split(' ').next().unwrap_or(flags);
        match paceline.knows(flag)? {
            true => modes.push((name, flags)),
            false => {
                let why = format!("this version of `train` has no {flag}");
                report.skip(&format!("cost_of_partial_{name}"), "<= 1.02", &why);
            }
        }
    }
    for (workers, params, sizes) in CASES {
        if report.quick() && workers > 4 {
            let name = format!("cost_of_blocks_{workers}");
            report.skip(&name, "<= 1.02", "takes longer than a quick run");
            continue;
        }
        // Figures with a goal are measured more often than the other sizes; with many workers in many
        // short runs, since the machine's speed changes from one to the next.
        let (goal, rounds) = if workers > 4 { (24, 12) } else { (6, 24) };
        let pairs = if report.quick() { [1, 1] } else { [2, goal] };
        let rounds = if report.quick() { 5 } else { rounds };
        let flags = |kib: usize| format!("--block-kib {kib}");
        let (shards, transport) = (SHARDS, Transport::Tcp);
        let run = |flags| Exchange { params, workers, shards, rounds, transport, flags };
        let of_size = |&kib: &usize| {
            let run = run(flags(kib));
            Contestant::new(size(kib), move || run.seconds(paceline))
        };
        let largest = sizes[sizes.len() - 1];
        let whole = size(largest);
        if !report.quick() {
            let contestants: Vec<Contestant<'_>> = sizes.iter().map(of_size).collect();
            let contest = Contest::hold(pairs[0], &contestants)?;
            let title = format!("Block sizes by TCP, {workers} workers, {} MiB", params >> 18);
            report.section(contest.table(&title, &whole));
        }
        let mut contestants: Vec<Contestant<'_>> = [DEFAULT, largest].iter().map(of_size).collect();
        for (name, mode) in &modes {
            let run = run(format!("{} {mode}", flags(DEFAULT)));
            contestants.push(Contestant::new(*name, move || run.seconds(paceline)));
        }
        let contest = Contest::hold(pairs[1], &contestants)?;
        let title =
            format!("Blocks and partial modes by TCP, {workers} workers, {} MiB", params >> 18);
        report.section(contest.table(&title, &whole));
        let cost = |name: &str| -> Result<_> {
            let whole = contest.turns(&whole).context("one big frame was not measured")?;
            Ok(ratio(whole, contest.turns(name).context("blocks were not measured")?))
        };
        let blocks = cost(&size(DEFAULT))?;
        let note = format!(
            "a round by TCP with blocks of {} over one with {whole}; {blocks}",
            size(DEFAULT)
        );
        report.at_most(&format!("cost_of_blocks_{workers}"), blocks.high, 1.02, note);
        for (name, flags) in &modes {
            let mode = cost(name)?;
            let note = format!("a round with {flags} over one by TCP with all in {whole}; {mode}");
            report.at_most(&format!("cost_of_partial_{name}_{workers}"), mode.high, 1.02, note);
        }
    }
    Ok(())
}

fn size(kib: usize) -> String {
    match kib {
        0..1024 => format!("{kib} KiB"),
        _ => format!("{} MiB", kib >> 10),
    }
}
