//! The real traces: fitted on the first half, run on the second.

use std::{fmt::Write as _, path::Path};

use anyhow::Result;

use super::BdsgdBench;
use crate::{
    policies,
    report::Report,
    study::{ReplayRange, fit, simulate, words},
};

const POLICIES: [&str; 7] =
    ["full", "static:0.9", "filter", "bdsgd:paper", "bdsgd:frozen", "bdsgd", "auto"];

pub(super) fn run(bench: &BdsgdBench, report: &mut Report) -> Result<()> {
    let files = policies::trace_files();
    if files.is_empty() || report.quick() {
        let why = match report.quick() {
            true => "takes longer than a quick run",
            false => "the traces are not in ../shared/traces",
        };
        report.skip("traces_bdsgd_of_oracle", "stated", why);
        return Ok(());
    }
    let mut text = format!(
        "## Real traces: fitted on the first half, run on the second; share of the oracle, mean \
         (worst) of 5 seeds\n\n| trace | {} | bdsgd, generic prior |\n|---|{}\n",
        POLICIES.join(" | "),
        "---|".repeat(POLICIES.len() + 1)
    );
    let mut logs = [0.0; POLICIES.len()];
    for file in &files {
        let model = bench.model("trace");
        fit(&bench.paceline, &format!("{file} --rounds ..50% --held-out 0.2"), &model)?;
        let mut args = words(&format!("{file} --rounds 50%.. --seeds 5"));
        args.extend(["--policy".to_owned(), POLICIES.join(",")]);
        args.extend(["--run-time-model".to_owned(), model.display().to_string()]);
        let rows = simulate(&bench.paceline, &args)?;
        let args = words(&format!("{file} --rounds 50%.. --seeds 5 --policy bdsgd"));
        let prior = ReplayRange::from_rows(&simulate(&bench.paceline, &args)?, |row| row.of_oracle);
        let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
        let _ = write!(text, "| {} |", name.trim_end_matches(".csv.gz"));
        for (policy, log) in POLICIES.iter().zip(&mut logs) {
            let replays = rows.iter().filter(|row| row.policy == *policy);
            let share = ReplayRange::from_rows(replays, |row| row.of_oracle);
            let _ = write!(text, " {:.3} ({:.3}) |", share.mean, share.worst);
            *log += share.mean.ln() / files.len() as f64;
        }
        let _ = writeln!(text, " {:.3} ({:.3}) |", prior.mean, prior.worst);
    }
    let note = format!("geometric mean over {} traces, second halves", files.len());
    for (policy, log) in POLICIES.iter().zip(logs) {
        let key = policy.replace([':', '.'], "_");
        report.tell(&format!("traces_{key}_of_oracle"), log.exp(), note.clone());
    }
    text += "\nOn recorded run-times the joint model gains nothing over `filter` but on single traces, \
             and adapting its weights (*frozen* does not) may cost: what is gained is gained where \
             nodes slow down together, as in the clusters above.\n";
    report.section(text);
    Ok(())
}
