//! The whole system in simulated time: workers, shards and the network between them, driven by the
//! production [`Coordinator`](paceline_core::Coordinator).
//!
//! The model of a round: its work reaches a worker after one delay, and the worker's request reaches
//! the shards after another. The parameters cross the shards' links, shared fairly, with one more
//! delay. The worker computes for the run-time of its [`World`](crate::World). Its gradient takes a
//! delay and the shards' links again. Shards fold accepted contributions one after another; after the
//! close they finish folding and apply the update, and then the next round may open. So the run-times
//! and the overhead that a policy sees include pull, push, queueing and aggregation.
//!
//! One shard may be slower than the others, or stop now and then. Where rounds do not wait for all
//! shards, a round uses the shards that were in time: workers exchange nothing with the others, which
//! rejoin once they have applied the updates that they missed. A worker waits for as many of the
//! round's shards as its own rule says and uses older values of the rest. Its gradient counts once it
//! is on as many shards as a rule of the coordinator says; transfers still under way when the round
//! closes are stopped. These rules, too, are the production ones ([`Weak`]).

mod driver;
mod intakes;
mod link;
mod network;
mod outcome;
mod post;
mod preset;
mod servers;
mod spec;
mod task;

use paceline_core::{Ledger, Policy, Shards, Straggler, WaitRule};

use self::driver::SystemDriver;
pub use self::{
    outcome::{SystemOutcome, SystemRound},
    preset::PRESETS,
    spec::SystemSpec,
};
use crate::{timed::Timed, world::World};

/// A system to be simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct System {
    /// Shards and network.
    pub spec: SystemSpec,
    /// What workers past the cut do: abort when the cut reaches them, or finish. Salvage is treated
    /// as abort.
    pub straggler: Straggler,
    /// Least contributions of a round.
    pub quorum: usize,
    /// Rounds wait for a range of samples that was returned this often.
    pub patience: u32,
}

/// The rules of weak synchronisation: which shards are waited for, if not all.
pub struct Weak {
    /// Shards whose last update a round waits for.
    pub shards: Shards,
    /// Shards whose parameters a worker waits for; `None` for all.
    pub pull: Option<WaitRule>,
    /// Shards that a gradient must reach to count; `None` for all.
    pub push: Option<WaitRule>,
    /// Most rounds for which a worker may use old values.
    pub max_stale: u64,
}

impl System {
    /// Stragglers abort; other settings are production defaults.
    pub fn new(spec: SystemSpec) -> System {
        System { spec, straggler: Straggler::Abort, quorum: 1, patience: Ledger::PATIENCE }
    }

    /// Runs `rounds` rounds of `world`. Rounds without workers are left out. The same world and
    /// policy give the same outcome bit for bit, except for [`SystemOutcome::cost`].
    pub fn run(
        &self,
        world: &mut dyn World,
        rounds: usize,
        policy: Box<dyn Policy>,
    ) -> SystemOutcome {
        let shards = Shards::all(self.spec.shards);
        self.run_over(Weak { shards, pull: None, push: None, max_stale: 0 }, world, rounds, policy)
    }

    /// Like [`run`](Self::run), with weak synchronisation over the system's shards.
    pub fn run_over(
        &self,
        weak: Weak,
        world: &mut dyn World,
        rounds: usize,
        policy: Box<dyn Policy>,
    ) -> SystemOutcome {
        let (policy, cost) = Timed::new(policy);
        let mut driver = SystemDriver::new(self, weak, world, Box::new(policy));
        let rounds = (0..rounds).filter_map(|_| driver.round()).collect();
        let cost = cost.lock().expect("nobody panicked with it").clone();
        driver.outcome(rounds, cost)
    }
}
