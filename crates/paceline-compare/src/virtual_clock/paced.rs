//! Run-times from the scenario language that also slows live runs.

use paceline_core::{Version, WorkerId};
use paceline_faults::{SlowWorker, SlownessSpec};
use paceline_sim::World;
use paceline_trace::{Deadlines, Trace, Unit, deadlines};

/// Workers that take a nominal time, times the slowdown of a [`SlownessSpec`]: the same factors, by seed,
/// worker and round, as in a live run.
#[derive(Debug, Clone)]
pub struct Paced {
    workers: Vec<SlowWorker>,
    nominal: f64,
    /// The next round's number, and the current round's run-times.
    next: u64,
    row: Vec<f64>,
}

impl Paced {
    /// `workers` workers that take `nominal` seconds unless they are slowed.
    pub fn new(spec: &SlownessSpec, workers: u32, nominal: f64, seed: u64) -> Paced {
        let workers: Vec<SlowWorker> =
            (0..workers).map(|worker| spec.worker(WorkerId(worker), seed)).collect();
        Paced { row: vec![nominal; workers.len()], workers, nominal, next: 0 }
    }
}

impl World for Paced {
    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn next_round(&mut self, _seconds: f64) {
        let base = Version(self.next);
        self.next += 1;
        for (time, worker) in self.row.iter_mut().zip(&self.workers) {
            *time = self.nominal * worker.factor(base);
        }
    }

    fn run_time(&self, worker: usize) -> Option<f64> {
        Some(self.row[worker])
    }

    fn micro_ends(&self, _worker: usize) -> Option<&[f64]> {
        None
    }

    fn micro_batches(&self) -> usize {
        1
    }
}

/// The bounds for the first `rounds` rounds of a world that a policy with hindsight could reach. Workers
/// compute in `micro_batches` equal micro-batches.
pub fn bounds(
    world: &mut dyn World,
    rounds: usize,
    micro_batches: u32,
    overhead: f64,
) -> Deadlines {
    let mut trace = Trace::of_size("", Unit::Seconds, world.workers());
    let parts = micro_batches as usize;
    for _ in 0..rounds {
        world.next_round(0.0);
        let ends: Vec<f64> = (0..world.workers())
            .flat_map(|worker| {
                let whole = world.run_time(worker).unwrap_or(f64::NAN);
                (1..=parts).map(move |part| whole * part as f64 / parts as f64)
            })
            .collect();
        trace.push_micro_round(parts, &ends);
    }
    deadlines(&trace, overhead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_worker_is_slow_and_what_could_be_had_says_so() {
        let spec: SlownessSpec = "slow:1:3".parse().unwrap();
        let mut world = Paced::new(&spec, 4, 2.0, 1);
        world.next_round(0.0);
        assert_eq!((world.run_time(0), world.run_time(1)), (Some(2.0), Some(6.0)));
        // Four workers in 6 s, or three and a third of one in 2.
        let bounds = bounds(&mut Paced::new(&spec, 4, 2.0, 1), 10, 3, 0.0);
        assert!((bounds.full_rate - 4.0 / 6.0).abs() < 1e-9);
        assert!((bounds.clairvoyant_rate - (3.0 + 1.0 / 3.0) / 2.0).abs() < 1e-9);
    }
}
