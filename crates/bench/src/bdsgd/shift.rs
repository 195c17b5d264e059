//! Clusters other than the one of the fit (Q3), with and without adaptation.

use std::fmt::Write as _;

use anyhow::Result;

use super::BdsgdBench;
use crate::{
    report::Report,
    study::{ReplayRange, fit, simulate, words},
};

/// Fitted on, run on.
const SHIFTS: [(&str, &str); 3] = [
    ("lognormal:n=48,sigma=0.05,rounds=1500", "shift48"),
    ("nodes158:rounds=1500", "stalls:n=158,rounds=600,sigma=0.2"),
    ("iid-exp:rounds=1500", "nodes158-stalls"),
];

pub(super) fn run(bench: &BdsgdBench, report: &mut Report) -> Result<()> {
    let seeds = if report.quick() { 2 } else { 5 };
    let mut text =
        "## Fitted on one cluster, run on another: share of the oracle, mean (worst)\n\n\
                    Fitted from fresh weights. *frozen*: levels and spreads follow, the weights do \
                    not.\n\n\
                    | fitted on | run on | frozen | adapting | generic prior, adapting | auto |\n\
                    |---|---|---|---|---|---|\n"
            .to_owned();
    let shifts = if report.quick() { &SHIFTS[..1] } else { &SHIFTS };
    let mut least: f64 = f64::INFINITY;
    for (fitted_on, run_on) in shifts {
        let model = bench.model("shift");
        fit(&bench.paceline, &format!("--fresh --synthetic {fitted_on} --seed 7"), &model)?;
        let share = |policy: &str, with_model: bool| -> Result<ReplayRange> {
            let args = format!("--synthetic {run_on} --seeds {seeds} --policy {policy}");
            let mut args = words(&args);
            if with_model {
                args.extend(["--run-time-model".to_owned(), model.display().to_string()]);
            }
            Ok(ReplayRange::from_rows(&simulate(&bench.paceline, &args)?, |row| row.of_oracle))
        };
        let frozen = share("bdsgd:frozen", true)?;
        let adapting = share("bdsgd", true)?;
        let (prior, auto) = (share("bdsgd", false)?, share("auto", true)?);
        least = least.min(adapting.mean / frozen.mean);
        let cell = |range: ReplayRange| format!("{:.3} ({:.3})", range.mean, range.worst);
        let _ = writeln!(
            text,
            "| {fitted_on} | {run_on} | {} | {} | {} | {} |",
            cell(frozen),
            cell(adapting),
            cell(prior),
            cell(auto)
        );
    }
    let note = "rate with adaptation over rate without, the worst of the shifts";
    report.at_least("adaptation_over_frozen", least, 0.99, note);
    report.section(text);
    Ok(())
}
