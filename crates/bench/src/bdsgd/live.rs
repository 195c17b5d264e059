//! Live: 8 workers and 2 shards, nodes of four that are slow together (Q5).

use anyhow::Result;

use super::BdsgdBench;
use crate::report::Report;

/// Workers are padded to a nominal time, so that two cores carry eight of them.
const RUN: &str = "--workers 8 --shards 2 --model softmax --batch 16 --nominal 60ms \
                   --straggler abort --stragglers node:0-3:2.5,node:4-7:2.5,stalls:1.2 \
                   --seed 5";

pub(super) fn run(bench: &BdsgdBench, report: &mut Report) -> Result<()> {
    let rounds = if report.quick() { 80 } else { 300 };
    let mut rate = |policy: &str| -> Result<f64> {
        let name = format!("live-{}", policy.replace([':', '.'], "-"));
        let run =
            bench.paceline.train(&name, &format!("{RUN} --policy {policy} --rounds {rounds}"))?;
        let seconds: f64 = run.round_times(20).iter().map(|time| time.as_secs_f64()).sum();
        let accepted: f64 = accepted(&run.events, 20);
        report.must(
            &format!("{name}_balanced"),
            run.is("/ledger/balanced"),
            "every sample accounted for",
        );
        Ok(accepted / seconds)
    };
    let (full, own, paper) = (rate("full")?, rate("bdsgd")?, rate("bdsgd:paper")?);
    let (filter, auto) = (rate("filter")?, rate("auto")?);
    let note =
        "contributions a second over full, 8 workers, 2 shards, two nodes of four slowed 2.5×";
    report.at_least("live_bdsgd_over_full", own / full, 1.0, note);
    report.tell("live_paper_over_full", paper / full, "the same, committing before the round");
    report.tell("live_filter_over_full", filter / full, "the same by filter");
    report.tell("live_auto_over_full", auto / full, "the same by auto");
    Ok(())
}

/// Contributions that counted, without the first `skip` rounds.
fn accepted(events: &[paceline_core::Event], skip: u64) -> f64 {
    let counts = events.iter().filter_map(|event| match &event.kind {
        paceline_core::EventKind::Cut { round, accepted, .. } if round.0 >= skip => {
            Some(f64::from(*accepted))
        }
        _ => None,
    });
    counts.sum()
}
