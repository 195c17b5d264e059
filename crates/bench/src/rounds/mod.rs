//! Bench `rounds`: one round from end to end, as users see it.

mod crowd;
mod data_plane;
mod deaths;
mod exact;
mod stragglers;
mod training;

use anyhow::Result;

use crate::{paceline::Paceline, report::Report};

pub(crate) fn run(report: &mut Report) -> Result<()> {
    let paceline = Paceline::build()?;
    type BenchPart = fn(&Paceline, &mut Report) -> Result<()>;
    let parts: [(&str, BenchPart); 6] = [
        ("training", training::run),
        ("deaths", deaths::run),
        ("stragglers", stragglers::run),
        ("exact", exact::run),
        ("crowd", crowd::run),
        ("data-plane", data_plane::run),
    ];
    for (name, part) in parts {
        if report.wants(name) {
            part(&paceline, report)?;
        }
    }
    Ok(())
}
