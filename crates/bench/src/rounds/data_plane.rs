//! Push, fold and pull of a 100 MB model against bare sockets and memory; shared memory against TCP.

use anyhow::Result;

use crate::{
    limits::{socket_round, stream_add},
    paceline::Paceline,
    report::Report,
    stats::{Interval, abba_ratio, median},
};

const PARAMS: usize = 25_000_000;
const BYTES: usize = PARAMS * size_of::<f32>();

/// Bare sockets and the real thing take turns, so that a slow spell of the machine meets both.
pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let (pairs, rounds) = if report.quick() { (1, 5) } else { (4, 10) };
    for workers in [1, 2, 4] {
        if report.quick() && workers > 1 {
            let name = format!("exchange_over_bare_socket_{workers}");
            report.skip(&name, ">= 0.7", "takes longer than a quick run");
            continue;
        }
        let (mut bare, mut real, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        let ratio = abba_ratio(
            pairs,
            || {
                memory.push(stream_add(PARAMS));
                let name = format!("bare-{workers}-{}", real.len());
                real.push(real_round(paceline, &name, workers, rounds, "tcp")?);
                Ok(real[real.len() - 1])
            },
            || {
                bare.push(median(&bare_rounds(workers)?));
                Ok(bare[bare.len() - 1])
            },
        )?;
        let times = Times { bare: median(&bare), real: median(&real), memory: median(&memory) };
        record(report, workers, &ratio, &times);
        share(paceline, report, workers, (pairs, rounds))?;
    }
    Ok(())
}

/// Both transports take turns.
fn share(
    paceline: &Paceline,
    report: &mut Report,
    workers: usize,
    (pairs, rounds): (usize, u64),
) -> Result<()> {
    let (mut shared, mut sent) = (Vec::new(), Vec::new());
    let ratio = abba_ratio(
        pairs,
        || {
            let name = format!("shared-{workers}-{}", shared.len());
            shared.push(real_round(paceline, &name, workers, rounds, "auto")?);
            Ok(shared[shared.len() - 1])
        },
        || {
            let name = format!("sent-{workers}-{}", sent.len());
            sent.push(real_round(paceline, &name, workers, rounds, "tcp")?);
            Ok(sent[sent.len() - 1])
        },
    )?;
    let note = format!(
        "{workers} workers × 100 MB each way, 2 shards: {:.0} ms a round by shared memory against \
         {:.0} ms by TCP; {ratio}",
        median(&shared) * 1e3,
        median(&sent) * 1e3
    );
    report.tell(&format!("exchange_shared_over_tcp_{workers}"), ratio.mean, note);
    Ok(())
}

/// Seconds a round, and bytes per second of memory.
struct Times {
    bare: f64,
    real: f64,
    memory: f64,
}

fn bare_rounds(workers: usize) -> Result<Vec<f64>> {
    (0..3).map(|_| Ok(socket_round(workers, BYTES)?.as_secs_f64())).collect()
}

/// Seconds that a round takes, by the median.
fn real_round(
    paceline: &Paceline,
    name: &str,
    workers: usize,
    rounds: u64,
    transport: &str,
) -> Result<f64> {
    let args = format!(
        "--model synthetic:{PARAMS} --workers {workers} --shards 2 --policy full --rounds {rounds} \
         --batch 1 --micro-batches 1 --optimizer sgd --checkpoint-every 1000000 --staging-mb 4096 \
         --transport {transport}"
    );
    let run = paceline.train(name, &args)?;
    // The first rounds find memory that was never written to, in as many buffers as there are.
    let times: Vec<f64> = run.round_times(3).iter().map(|time| time.as_secs_f64()).collect();
    Ok(median(&times))
}

fn record(report: &mut Report, workers: usize, ratio: &Interval, times: &Times) {
    let Times { bare, real, memory } = *times;
    let moved = 2.0 * (workers * BYTES) as f64;
    let note = format!(
        "{workers} workers × 100 MB each way, 2 shards: {:.0} ms a round ({:.2} GB/s) against {:.0} \
         ms over {workers} bare loopback connections ({:.2} GB/s); {ratio}",
        real * 1e3,
        moved / real / 1e9,
        bare * 1e3,
        moved / bare / 1e9
    );
    report.at_least(&format!("exchange_over_bare_socket_{workers}"), ratio.mean, 0.7, note);
    let note = format!("the same bytes against STREAM-add at {:.1} GB/s", memory / 1e9);
    report.tell(&format!("exchange_over_stream_add_{workers}"), moved / real / memory, note);
}
