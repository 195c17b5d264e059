//! How long a worker computes after a cut.

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::{
    report::Report,
    stats::{median, percentile},
};

use super::{
    python::Python,
    system::{System, Workload},
};

/// Cuts that are measured, of every network and kind of backward pass.
const CUTS: usize = 40;

/// Seconds from cuts to the end of the computation, and of micro-batches without a cut.
#[derive(Debug, Deserialize)]
struct Stops {
    after: Vec<f64>,
    whole: Vec<f64>,
}

pub(super) fn run(python: &Python, report: &mut Report) -> Result<()> {
    for workload in [Workload::CNN, Workload::GPT_SMALL, Workload::GPT_LARGE] {
        for backward in ["session", "plain", "compiled"] {
            let name = format!("{}_cut_to_stop_ms_{backward}", workload.name);
            let why = match python.has(&System::MEAN) {
                Err(why) => Some(why),
                Ok(()) if report.quick() && (workload.name, backward) != ("cnn", "session") => {
                    Some("takes minutes".to_owned())
                }
                Ok(()) => None,
            };
            if let Some(why) = why {
                report.skip(&name, "stated", &why);
                continue;
            }
            let args = format!(
                "--workload {} --batch {} --backward {backward} --cuts {CUTS}",
                workload.name, workload.batch
            );
            let folder = tempfile::tempdir()?;
            let found: Vec<Option<Stops>> = python.torchrun("cuts.py", &args, folder.path())?;
            let Some(Stops { mut after, whole }) = found.into_iter().flatten().next() else {
                continue;
            };
            ensure!(after.len() == CUTS, "{} cuts instead of {CUTS}: {args}", after.len());
            after.sort_by(f64::total_cmp);
            let note = format!(
                "ms from a cut to the last gradient or forward pass: median of {CUTS} cuts; 95 % within \
                 {:.1}; a whole micro-batch of {} samples: {:.1}",
                1e3 * percentile(&after, 0.95),
                workload.batch / 4,
                1e3 * median(&whole),
            );
            report.tell(&name, 1e3 * median(&after), note);
            report.save()?;
        }
    }
    Ok(())
}
