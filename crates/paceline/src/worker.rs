//! `paceline worker`: work for a server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use paceline_faults::SlownessSpec;
use paceline_nn::NativeCompute;
use paceline_policy::wait_for_answers;
use paceline_wire::{Connect, Connection, Tcp, message::Job};
use paceline_worker::{Compute, WorkerConfig};

use crate::{cli::WorkerArgs, host, server::token};

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline worker                                    for a server on this machine
  PACELINE_TOKEN=… paceline worker --connect host:4747 --data /data/mnist";

pub(crate) fn run(args: &WorkerArgs) -> Result<()> {
    if args.tied {
        host::end_with_parent()?;
    }
    if let Some(core) = args.pin {
        host::pin(core)?;
    }
    if let Some(more) = args.nice {
        host::give_way(more)?;
    }
    paceline_nn::single_threaded();
    let mut slowness: SlownessSpec = args.stragglers.parse()?;
    slowness.nominal = args.nominal.map(|span| span.0);
    let config = WorkerConfig {
        address: args.connect.clone(),
        token: token(args.token_file.as_deref())?,
        wish: args.index,
        name: host::name(),
        faults: (slowness != SlownessSpec::default()).then(|| slowness.into_faults()),
        transport: args.transport,
    };
    let connect = Patient(args.patience.0);
    let tally =
        paceline_worker::run(&config, &connect, wait_for_answers, |job| prepare(args, job))?;
    tracing::info!("{tally:?}");
    Ok(())
}

fn prepare(args: &WorkerArgs, job: &Job) -> Result<(Box<dyn Compute>, u32), String> {
    let compute = || -> Result<NativeCompute> {
        let model = job.model.parse().context("the server asks for a model that is not here")?;
        let data = args.data.as_deref().unwrap_or(&job.data);
        let costs = args.costs.as_deref().unwrap_or(&job.costs);
        let costs = (!costs.is_empty()).then(|| costs.parse()).transpose();
        let costs = costs.map_err(anyhow::Error::msg)?;
        Ok(NativeCompute::new(model, &data.parse()?, costs.as_ref(), job.seed)?)
    };
    let compute = compute().map_err(|error| format!("{error:#}"))?;
    let samples = compute.samples;
    Ok((Box::new(compute), samples))
}

/// TCP that goes on trying for a while: the server may be starting.
struct Patient(Duration);

impl Connect for Patient {
    fn connect(&self, address: &str) -> std::io::Result<Connection> {
        let deadline = Instant::now() + self.0;
        loop {
            match Tcp.connect(address) {
                Err(error)
                    if error.kind() == std::io::ErrorKind::ConnectionRefused
                        && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(100));
                }
                outcome => return outcome,
            }
        }
    }
}
