//! Rounds that only exchange data: their gradient costs nothing.

use anyhow::{Result, ensure};
use paceline_wire::Transport;

use crate::{limits::socket_round, paceline::Paceline, stats::median};

/// A tensor of 100 MB.
pub(crate) const PARAMS: usize = 25_000_000;
pub(crate) const BYTES: usize = PARAMS * size_of::<f32>();

/// A run of these rounds, with further flags.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) params: usize,
    pub(crate) workers: usize,
    pub(crate) shards: usize,
    pub(crate) rounds: usize,
    pub(crate) transport: Transport,
    pub(crate) flags: String,
}

impl Exchange {
    /// Median seconds per round: from its start, through pull, push, fold and update, to the next
    /// version. This equals the time from all workers having gradients to all holding the result.
    pub(crate) fn seconds(&self, paceline: &Paceline) -> Result<f64> {
        let Exchange { params, workers, shards, rounds, transport, flags } = self;
        let args = format!(
            "--model synthetic:{params} --workers {workers} --shards {shards} --rounds {rounds} \
             --policy full --batch 1 --micro-batches 1 --checkpoint-every 1000000 \
             --staging-mb 4096 --transport {transport} {flags}"
        );
        let run = paceline.train("exchange", &args)?;
        paceline.discard("exchange")?;
        ensure!(
            *transport == Transport::Tcp || run.number("/data_plane/bytes_shared") > 0.0,
            "no memory was shared, so this measures TCP; enlarge /dev/shm: {}",
            run.stderr
        );
        // The first rounds touch fresh memory in every buffer.
        let times: Vec<f64> = run.round_times(3).iter().map(|time| time.as_secs_f64()).collect();
        Ok(median(&times))
    }
}

/// Seconds that as many bare loopback connections take for the same bytes each way.
pub(crate) fn bare_seconds(workers: usize) -> Result<f64> {
    let times: Result<Vec<f64>> =
        (0..3).map(|_| Ok(socket_round(workers, BYTES)?.as_secs_f64())).collect();
    Ok(median(&times?))
}
