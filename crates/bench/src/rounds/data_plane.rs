//! Push, fold and pull of a 100 MB model against bare sockets and memory; shared memory against TCP.

use anyhow::Result;
use paceline_wire::Transport;

use crate::{
    exchange::{BYTES, Exchange, PARAMS, bare_seconds},
    limits::stream_add,
    paceline::Paceline,
    report::Report,
    stats::{ConfidenceInterval, abba_ratio, median},
};

/// Bare sockets and the exchange are measured in turn, so that slow spells of the machine affect both.
pub(crate) fn run(paceline: &Paceline, report: &mut Report) -> Result<()> {
    let (pairs, rounds) = if report.quick() { (1, 5) } else { (4, 10) };
    for workers in [1, 2, 4] {
        if report.quick() && workers > 1 {
            let name = format!("exchange_over_bare_socket_{workers}");
            report.skip(&name, ">= 0.7", "takes longer than a quick run");
            continue;
        }
        let exchange = |transport| {
            let flags = "--optimizer sgd".to_owned();
            Exchange { params: PARAMS, workers, shards: 2, rounds, transport, flags }
        };
        let (mut bare, mut real, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        let ratio = abba_ratio(
            pairs,
            || {
                memory.push(stream_add(PARAMS, 1));
                real.push(exchange(Transport::Tcp).seconds(paceline)?);
                Ok(real[real.len() - 1])
            },
            || {
                bare.push(bare_seconds(workers)?);
                Ok(bare[bare.len() - 1])
            },
        )?;
        let times = Times { bare: median(&bare), real: median(&real), memory: median(&memory) };
        record(report, workers, &ratio, &times);
        share(paceline, report, pairs, exchange)?;
    }
    Ok(())
}

/// Both transports are measured in turn.
fn share(
    paceline: &Paceline,
    report: &mut Report,
    pairs: usize,
    exchange: impl Fn(Transport) -> Exchange,
) -> Result<()> {
    let workers = exchange(Transport::Tcp).workers;
    let (mut shared, mut sent) = (Vec::new(), Vec::new());
    let ratio = abba_ratio(
        pairs,
        || {
            shared.push(exchange(Transport::Auto).seconds(paceline)?);
            Ok(shared[shared.len() - 1])
        },
        || {
            sent.push(exchange(Transport::Tcp).seconds(paceline)?);
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

/// Seconds per round, and bytes per second of memory.
struct Times {
    bare: f64,
    real: f64,
    memory: f64,
}

fn record(report: &mut Report, workers: usize, ratio: &ConfidenceInterval, times: &Times) {
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
