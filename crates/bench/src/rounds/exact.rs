//! Exact mode: the same bits twice.

use anyhow::Result;
use paceline_core::EventKind;

use crate::{
    paceline::{FinishedRun, Paceline},
    report::Report,
};

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let hashes = |run: &FinishedRun| -> Vec<String> {
        let hash = |event: &paceline_core::Event| match &event.kind {
            EventKind::Updated { param_hash, .. } => param_hash.clone(),
            _ => None,
        };
        run.events.iter().filter_map(hash).collect()
    };
    let args = "--policy full --deterministic --rounds 40 --shards";
    let first = paceline.train("exact-1", &format!("{args} 2"))?;
    let second = paceline.train("exact-2", &format!("{args} 3"))?;
    let same = hashes(&first) == hashes(&second) && hashes(&first).len() == 40;
    let note = "40 rounds on 2 and on 3 shards: the hash of the parameters is the same in each \
                (equality with a single process: test exact_mode of crate paceline)";
    report.must("exact_mode_repeats", same, note);
    Ok(())
}
