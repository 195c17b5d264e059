//! Whether and when a policy gets to study changes no answer.

use std::time::Duration;

use paceline_core::{Decision, Policy, RoundRecord, RoundView, RunTime, Version, WorkerId};
use paceline_model::Model;
use paceline_policy::{Objective, PolicySpec};
use paceline_sim::{Recorded, Replay, RoundOutcome};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

/// When the policy studies.
enum Studies {
    Never,
    /// When the driver says.
    AsTold,
    /// At random, before and after decisions and events inside a round.
    AtRandom(Box<ChaCha8Rng>),
}

/// A policy that studies at moments of its own, and hears of a noise scale in every round.
struct Studying {
    inner: Box<dyn Policy>,
    studies: Studies,
    open: bool,
}

impl Studying {
    fn maybe_study(&mut self) {
        if let Studies::AtRandom(rng) = &mut self.studies
            && self.open
            && rng.random_bool(0.5)
        {
            self.inner.study();
        }
    }
}

impl Policy for Studying {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        self.open = true;
        if view.is_opening() {
            self.inner.noise(2.0 + (view.round.0 % 5) as f64);
        }
        self.maybe_study();
        let decision = self.inner.decide(view);
        self.maybe_study();
        decision
    }

    fn trusts(&self, participants: usize) -> Option<String> {
        self.inner.trusts(participants)
    }

    fn grace(&mut self, view: &RoundView<'_>, pays: Duration) -> Duration {
        self.inner.grace(view, pays)
    }

    fn typical(&self, worker: WorkerId) -> Option<f64> {
        self.inner.typical(worker)
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        self.inner.closed(record);
        self.open = false;
    }

    fn study(&mut self) {
        if let Studies::AsTold = self.studies {
            self.inner.study();
        }
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        self.maybe_study();
        self.inner.late(worker, base, run_time, load);
        self.maybe_study();
    }
}

fn rounds(policy: &str, objective: Objective, studies: Studies) -> Vec<RoundOutcome> {
    let spec = "nodes16-stalls:rounds=250".parse().expect("a preset");
    let trace = paceline_trace::generate(&spec, 3);
    let policy: PolicySpec = policy.parse().expect("a policy");
    let inner = policy.build_with(&Model::prior(), objective);
    let studying = Studying { inner, studies, open: false };
    Replay::default().run(&mut Recorded::new(&trace, 0), 250, Box::new(studying)).rounds
}

#[test]
fn studying_at_random_moments_of_a_round_changes_no_decision() {
    for objective in [Objective::Samples, Objective::Progress] {
        for policy in ["auto", "filter", "filter:commit", "bdsgd", "bdsgd:paper", "empirical"] {
            let told = rounds(policy, objective, Studies::AsTold);
            assert_eq!(told, rounds(policy, objective, Studies::Never), "{policy} {objective}");
            for seed in 0..3 {
                let rng = Box::new(ChaCha8Rng::seed_from_u64(seed));
                let random = rounds(policy, objective, Studies::AtRandom(rng));
                let differs = told.iter().zip(&random).position(|(told, random)| told != random);
                assert_eq!(differs, None, "{policy} {objective}, seed {seed}: first such round");
                assert_eq!(told.len(), random.len(), "{policy} {objective}, seed {seed}");
            }
        }
    }
}
