//! One worker of four slowed five times: waiting for it against not waiting.

use anyhow::Result;

use crate::{paceline::Paceline, report::Report, stats::abba_ratio};

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    // Padded to 40 ms per round, of which work takes a few: two cores do not couple the workers.
    let (pairs, rounds) = if report.quick() { (1, 8) } else { (3, 40) };
    let mut number = 0;
    let mut rate = |policy: &str| {
        number += 1;
        let args = format!(
            "--model mlp --batch 16 --policy {policy} --stragglers slow:3:5 --nominal 40ms \
             --rounds {rounds} --eval-every 1000000"
        );
        let run = paceline.train(&format!("straggler-{number}"), &args)?;
        Ok(run.number("/rounds_per_s"))
    };
    let rate = std::cell::RefCell::new(&mut rate);
    let ratio = abba_ratio(pairs, || rate.borrow_mut()("full"), || rate.borrow_mut()("static:3"))?;
    let note = format!("static:3 over full, one of 4 workers slowed 5×, {ratio}");
    report.at_least("static3_over_full", ratio.mean, 2.0, note);
    Ok(())
}
