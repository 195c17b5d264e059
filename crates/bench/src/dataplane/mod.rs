//! Bench `dataplane`: the data plane against the machine's limits and against peers.

mod blocks;
mod exchange;
mod fold;
mod hosts;
mod incast;
mod peers;
mod scaling;
mod threads;
mod weak;

use anyhow::Result;

use crate::{paceline::Paceline, report::Report};

pub(crate) fn run(report: &mut Report) -> Result<()> {
    let paceline = Paceline::build()?;
    type BenchPart = fn(&Paceline, &mut Report) -> Result<()>;
    let parts: [(&str, BenchPart); 8] = [
        ("fold", fold::run),
        ("exchange", exchange::run),
        ("hosts", hosts::run),
        ("blocks", blocks::run),
        ("weak", weak::run),
        ("accuracy", weak::accuracy),
        ("incast", incast::run),
        ("scaling", scaling::run),
    ];
    for (name, part) in parts {
        if report.wants(name) {
            part(&paceline, report)?;
        }
    }
    Ok(())
}
