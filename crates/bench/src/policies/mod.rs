//! Bench `policies`: when to cut, on real and synthetic run-times.

mod cost;
mod hunt;
mod presets;
mod random;
mod traces;

use anyhow::Result;

pub(crate) use cost::BUDGETS;
pub(crate) use traces::files as trace_files;

use crate::{paceline::Paceline, report::Report};

pub(crate) fn run(report: &mut Report) -> Result<()> {
    let paceline = Paceline::build()?;
    type BenchPart = fn(&Paceline, &mut Report) -> Result<()>;
    let parts: [(&str, BenchPart); 8] = [
        ("decisions", cost::decisions),
        ("traces", traces::run),
        ("presets", presets::run),
        ("random", random::run),
        ("hunt", hunt::run),
        ("salvage", traces::salvage),
        ("simulator", cost::simulator),
        ("agreement", cost::agreement),
    ];
    for (name, part) in parts {
        if report.wants(name) {
            part(&paceline, report)?;
        }
    }
    Ok(())
}
