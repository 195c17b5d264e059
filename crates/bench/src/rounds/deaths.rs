//! A worker killed in mid-round, and too few left.

use anyhow::Result;
use paceline_core::EventKind;

use crate::{paceline::Paceline, report::Report};

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let run = paceline.train("killed", "--epochs 1 --stragglers kill:2@20")?;
    let left = run
        .events
        .iter()
        .any(|e| matches!(e.kind, EventKind::WorkerLeft { worker, .. } if worker.0 == 2));
    let whole = run.number("/ledger/epochs") == 1.0 && run.is("/ledger/balanced");
    let requeued = run.number("/samples/requeued");
    let note = format!("SIGKILL at round 20: {requeued} samples went to others, epoch complete");
    report.must("killed_worker_epoch_balances", left && whole && requeued > 0.0, note);

    let args = "--workers 2 --quorum 2 --quorum-grace 500ms --epochs 2 --stragglers kill:1@30";
    let lost = paceline.try_train("quorum", args)?;
    let clear = lost.code == Some(3) && lost.stderr.contains("quorum lost");
    let note = format!("exit code {:?}: {}", lost.code.unwrap_or(-1), lost.text("/reason"));
    report.must("quorum_lost_is_an_error", clear, note);

    let resumed = paceline.resume("quorum", "--stragglers slow:0:1 --epochs 2")?;
    let whole = resumed.number("/ledger/epochs") == 2.0 && resumed.is("/ledger/balanced");
    let note = format!(
        "the checkpoint of version {} was intact; {} rounds more, 2 epochs complete",
        lost.number("/version"),
        resumed.number("/rounds")
    );
    report.must("quorum_lost_resumes", resumed.code == Some(0) && whole, note);
    Ok(())
}
