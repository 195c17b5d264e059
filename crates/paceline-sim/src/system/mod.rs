//! The whole system in simulated time: workers, shards and the network between them, driven by the
//! production [`Coordinator`](paceline_core::Coordinator).
//!
//! What is modelled: a round's work reaches a worker after one delay, its request the shards after
//! another; the parameters come over the shards' links, shared fairly, and take one more delay; the
//! worker computes as long as its [`World`](crate::World) says; its gradient takes a delay and the
//! shards' links again. Shards fold what is accepted, one contribution after the other; after the
//! close they complete that and apply the update, and then the next round may open. So pull, push,
//! queueing and aggregation are inside the run-times that a policy sees and the overhead that it
//! bears.
//!
//! One shard may be slower than the others, or stop now and then. Where not all are waited for, a
//! round has those that were in time: nothing is pulled from the others or pushed to them, and they
//! come back once they have made the update that they owe. Of those that it has a worker waits for as
//! many as its own rule says, with values that are older otherwise, and its gradient counts once it is
//! on as many as a rule of the coordinator says; what is still under way when its round closes is
//! given up. These, too, are the production ones ([`Weak`]).

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

use self::driver::Driver;
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
    /// What those past the cut do: they abort when the cut reaches them, or finish. Salvage is
    /// taken for abort.
    pub straggler: Straggler,
    /// No round closes with fewer.
    pub quorum: usize,
    /// A range of samples given back this often is waited for.
    pub patience: u32,
}

/// Which shards are waited for, where not all are.
pub struct Weak {
    /// By rounds, for the last update.
    pub shards: Shards,
    /// By workers, for values; all without.
    pub pull: Option<WaitRule>,
    /// By the coordinator, for the parts of a gradient; all without.
    pub push: Option<WaitRule>,
    /// For how many rounds a worker may use old values.
    pub max_stale: u64,
}

impl System {
    /// Stragglers abort, the rest is as in production.
    pub fn new(spec: SystemSpec) -> System {
        System { spec, straggler: Straggler::Abort, quorum: 1, patience: Ledger::PATIENCE }
    }

    /// Runs so many rounds of `world`. Rounds in which nobody was there are left out. The same
    /// world and policy give the same outcome bit for bit, but for [`SystemOutcome::cost`].
    pub fn run(
        &self,
        world: &mut dyn World,
        rounds: usize,
        policy: Box<dyn Policy>,
    ) -> SystemOutcome {
        let shards = Shards::all(self.spec.shards);
        self.run_over(Weak { shards, pull: None, push: None, max_stale: 0 }, world, rounds, policy)
    }

    /// The same over shards, as many as the system has, that may be left behind.
    pub fn run_over(
        &self,
        weak: Weak,
        world: &mut dyn World,
        rounds: usize,
        policy: Box<dyn Policy>,
    ) -> SystemOutcome {
        let (policy, cost) = Timed::new(policy);
        let mut driver = Driver::new(self, weak, world, Box::new(policy));
        let rounds = (0..rounds).filter_map(|_| driver.round()).collect();
        let cost = cost.lock().expect("nobody panicked with it").clone();
        driver.outcome(rounds, cost)
    }
}
