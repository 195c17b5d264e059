//! Bench `pytorch`: the Python package beside DistributedDataParallel over Gloo and beside its peers.

mod costs;
mod cuts;
mod equality;
mod python;
mod slow;
mod steps;
mod system;

use anyhow::Result;

use crate::report::Report;

use self::{python::Python, system::System};

pub(crate) fn run(report: &mut Report) -> Result<()> {
    let python = Python::find()?;
    report.section(setting(&python));
    type BenchPart = fn(&Python, &mut Report) -> Result<()>;
    let parts: [(&str, BenchPart); 4] = [
        ("steps", steps::run),
        ("costs", costs::run),
        ("equality", equality::run),
        ("cuts", cuts::run),
    ];
    for (name, part) in parts {
        if report.wants(name) {
            part(&python, report)?;
        }
    }
    slow::run(&python, report)
}

/// How everything is measured, for the docs.
fn setting(python: &Python) -> String {
    let mut text = format!(
        "## Setting\n\n4 workers on one host under `torchrun`, one thread each, {}. Data: MNIST and tiny \
         Shakespeare where they are in `../shared/datasets`, else the data that the examples make. Systems \
         take turns within one run of the bench; intervals are 95 %.\n",
        python.versions()
    );
    for system in System::PEERS {
        if let Err(why) = python.has(&system) {
            text += &format!("\n{} was not measured: {why}.\n", system.name);
        }
    }
    text
}
