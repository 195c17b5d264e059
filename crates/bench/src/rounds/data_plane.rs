//! Push, fold and pull of a 100 MB model against bare sockets and memory.

use anyhow::Result;

use crate::{
    limits::{socket_round, stream_add},
    paceline::Paceline,
    report::Report,
    stats::median,
};

const PARAMS: usize = 25_000_000;

pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let (rounds, repeats) = if report.quick() { (6, 2) } else { (16, 5) };
    let bytes = PARAMS * size_of::<f32>();
    for workers in [1, 2, 4] {
        let bare = (0..repeats)
            .map(|_| Ok(socket_round(workers, bytes)?.as_secs_f64()))
            .collect::<Result<Vec<f64>>>()?;
        let bare = median(&bare);
        let memory = stream_add(PARAMS);
        let args = format!(
            "--model synthetic:{PARAMS} --workers {workers} --shards 2 --policy full --rounds \
             {rounds} --batch 1 --micro-batches 1 --optimizer sgd --checkpoint-every 1000000 \
             --staging-mb 4096"
        );
        let run = paceline.train(&format!("plane-{workers}"), &args)?;
        let times: Vec<f64> = run.round_times(2).iter().map(|time| time.as_secs_f64()).collect();
        let round = median(&times);
        let share = bare / round;
        let moved = 2.0 * (workers * bytes) as f64;
        let note = format!(
            "{workers} workers × 100 MB each way, 2 shards: {:.0} ms a round ({:.2} GB/s) against \
             {:.0} ms over {workers} bare loopback connections ({:.2} GB/s); {:.2} of STREAM-add \
             ({:.1} GB/s)",
            round * 1e3,
            moved / round / 1e9,
            bare * 1e3,
            moved / bare / 1e9,
            moved / round / memory,
            memory / 1e9
        );
        report.at_least(&format!("exchange_over_bare_socket_{workers}"), share, 0.7, note);
    }
    Ok(())
}
