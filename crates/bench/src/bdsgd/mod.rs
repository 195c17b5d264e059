//! Bench `bdsgd`: the deep generative model of joint run-times, and its reviewers' questions.

mod clusters;
mod cost;
mod foresight;
mod live;
mod shift;
mod traces;

use std::path::PathBuf;

use anyhow::Result;

use crate::{paceline::Paceline, report::Report};

/// The program, and a folder for models.
pub(crate) struct BdsgdBench {
    paceline: Paceline,
    models: tempfile::TempDir,
}

impl BdsgdBench {
    fn model(&self, name: &str) -> PathBuf {
        self.models.path().join(name)
    }
}

pub(crate) fn run(report: &mut Report) -> Result<()> {
    let bench = BdsgdBench { paceline: Paceline::build()?, models: tempfile::tempdir()? };
    type BenchPart = fn(&BdsgdBench, &mut Report) -> Result<()>;
    let parts: [(&str, BenchPart); 7] = [
        ("cost", cost::run),
        ("clusters", clusters::run),
        ("foresight", foresight::run),
        ("bias", foresight::bias),
        ("shift", shift::run),
        ("live", live::run),
        ("traces", traces::run),
    ];
    for (name, part) in parts {
        if report.wants(name) {
            part(&bench, report)?;
        }
    }
    Ok(())
}
