//! A predictor with a stopping rule: most policies are one of these.

use paceline_core::{
    CutReason, Decision, Policy, RoundRecord, RoundView, RunTime, Time, Version, WorkerId,
};

use crate::{
    audit::{Audit, censored_after},
    backlog::{Backlog, Lesson},
    objective::{Gain, Objective},
    patience::Patience,
    predict::Predictor,
    rate::{GainRate, whole},
    scene::{Scene, whole_portions},
    stop::{Rule, WaitPlan, best_count, best_plan},
};

/// The rule is not asked again within 1/[`GRAIN`] of the participants or of the round's time.
const GRAIN: usize = 200;

/// Cuts when a stopping rule says so on the basis of a predictor.
pub struct Learned {
    predictor: Box<dyn Predictor>,
    gain: Gain,
    rule: Rule,
    name: String,
    rate: GainRate,
    audit: Audit,
    patience: Patience,
    backlog: Backlog,
    /// The participants, and the count of them to wait for.
    committed: (Vec<WorkerId>, usize),
}

impl Learned {
    /// This rule on this predictor, for this objective, under this name.
    pub fn new(
        predictor: Box<dyn Predictor>,
        rule: Rule,
        objective: Objective,
        name: impl Into<String>,
    ) -> Learned {
        Learned {
            predictor,
            gain: Gain::new(objective),
            rule,
            name: name.into(),
            rate: GainRate::default(),
            audit: Audit::default(),
            patience: Patience::default(),
            backlog: Backlog::default(),
            committed: (Vec::new(), 0),
        }
    }

    fn commit(&mut self, view: &RoundView<'_>, new: bool) -> Decision {
        if self.rate.typical() == 0.0 && self.predictor.knows_beginnings() {
            // No count has been committed to yet.
            return self.renewal(view);
        }
        if new {
            let arrived = view.arrivals.iter().map(|arrival| arrival.worker);
            let silent = view.outstanding().map(|(worker, _)| worker);
            let mut workers: Vec<WorkerId> = arrived.chain(silent).collect();
            workers.sort_unstable();
            if self.rate.typical() == 0.0 {
                // Without a prediction, the first round waits for all.
                self.committed = (Vec::new(), workers.len());
            } else if workers != self.committed.0 {
                self.commit_to(workers);
            }
        }
        self.patience.limited(view.wait_for(self.committed.1), view, &self.rate)
    }

    fn commit_to(&mut self, workers: Vec<WorkerId>) {
        self.predictor.expect();
        let (typical, overhead) = (self.rate.typical(), self.rate.overhead());
        let count = best_count(&*self.predictor, &workers, typical, overhead, |share| {
            self.gain.value(share * self.rate.whole())
        });
        self.committed = (workers, count);
    }

    fn renewal(&mut self, view: &RoundView<'_>) -> Decision {
        if view.arrivals.is_empty() || view.now <= view.opened {
            return Decision::WAIT;
        }
        let scene = Scene::from_view(view);
        let rate = self.rate.or_now(&self.gain, scene.gained(), scene.elapsed);
        let plan = best_wait(&mut *self.predictor, &self.gain, &scene, rate);
        let decision = match plan.value > 0.0 {
            true => self.patience.bounded(follow(&plan, view), view, &self.rate),
            false => not_worth_waiting(view),
        };
        if let Decision::Wait { .. } = decision {
            return decision;
        }
        match self.audit.instead_of_cut(view, &scene, &self.gain, &self.rate) {
            Some(until) => Decision::Wait { until: Some(until), arrivals: usize::MAX },
            None => decision,
        }
    }

    fn learn(&mut self, record: &RoundRecord<'_>) {
        self.rate.closed(record);
        self.patience.closed(record);
        let all = self.gain.value(whole(record));
        let rate = self.rate.or_now(&self.gain, record.weight, 1.0);
        let worth = self.audit.closed(record, &self.gain, all, rate);
        let mut run_times = whole_portions(record);
        if let Some(until) = worth {
            censored_after(&mut run_times, until);
        }
        self.predictor.learn(record.round, &run_times);
        if self.rule == Rule::Commit {
            // Most likely the same workers take part in the next round.
            self.commit_to(record.run_times.iter().map(|(worker, _)| *worker).collect());
        }
    }
}

/// Shows the predictor a scene and finds the best further wait. A cut must also hold under doubt.
pub(crate) fn best_wait(
    predictor: &mut dyn Predictor,
    gain: &Gain,
    scene: &Scene,
    rate: f64,
) -> WaitPlan {
    predictor.look(scene);
    let plan = best_plan(predictor, gain, scene, rate);
    if plan.value <= 0.0 && predictor.doubt() {
        return best_plan(predictor, gain, scene, rate);
    }
    plan
}

/// Waits as planned, and asks again half-way through the expected arrivals, but not more often than
/// [`GRAIN`] allows.
pub(crate) fn follow(plan: &WaitPlan, view: &RoundView<'_>) -> Decision {
    let least = view.now.since(view.opened) / GRAIN as u32;
    Decision::Wait {
        until: Some(view.now + Time::span(plan.wait).max(least)),
        arrivals: ((plan.arrivals / 2.0) as usize).max(view.participants() / GRAIN),
    }
}

pub(crate) fn not_worth_waiting(view: &RoundView<'_>) -> Decision {
    Decision::cut(CutReason::NotWorthWaiting { missing: view.outstanding_count() as u32 })
}

impl Policy for Learned {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        if view.is_opening() && self.backlog.has_seen_rounds() {
            return Decision::WAIT;
        }
        self.study();
        let new = self.rate.opened(view.round, view.opened);
        match self.rule {
            Rule::Commit => self.commit(view, new),
            Rule::Renewal => self.renewal(view),
        }
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        self.study();
        self.backlog.closed(record);
    }

    fn study(&mut self) {
        for lesson in self.backlog.take() {
            match lesson {
                Lesson::Closed(kept) => self.learn(&kept.record()),
                Lesson::Late { worker, base, run_time } => {
                    self.predictor.late(worker, base, run_time);
                }
            }
        }
    }

    fn typical(&self, worker: WorkerId) -> Option<f64> {
        self.predictor.typical(worker)
    }

    fn noise(&mut self, scale: f64) {
        self.gain.learn(scale);
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime, load: f64) {
        self.backlog.late(worker, base, run_time, load);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    use paceline_core::Round;

    use super::*;

    /// Records the run-times that it is shown.
    #[derive(Clone, Default)]
    struct Shown(Arc<Mutex<Vec<(WorkerId, RunTime)>>>);

    impl Predictor for Shown {
        fn name(&self) -> &'static str {
            "shown"
        }

        fn look(&mut self, _scene: &Scene) {}

        fn survival(&self, _worker: WorkerId, _log_elapsed: f64) -> f64 {
            1.0
        }

        fn learn(&mut self, _round: Round, run_times: &[(WorkerId, RunTime)]) {
            *self.0.lock().unwrap() = run_times.to_vec();
        }
    }

    /// Three workers: whole after 2 s, three quarters salvaged after 2 s, and half a portion after 1 s.
    #[test]
    fn predictors_are_shown_whole_portions_and_a_salvaged_run_time_as_a_lower_bound() {
        let shown = Shown::default();
        let mut learned =
            Learned::new(Box::new(shown.clone()), Rule::Renewal, Objective::Samples, "shown");
        let seconds = Duration::from_secs;
        let run_times = [
            (WorkerId(0), RunTime::Observed(seconds(2))),
            (WorkerId(1), RunTime::Censored { at_least: seconds(2) }),
            (WorkerId(2), RunTime::Observed(seconds(1))),
        ];
        learned.closed(&RoundRecord {
            round: Round(0),
            opened: Time::ZERO,
            cut: Time::ZERO + seconds(2),
            closed: Time::ZERO + seconds(2),
            weight: 9.0,
            run_times: &run_times,
            salvaged: &[(WorkerId(1), 0.75)],
            loads: &[(WorkerId(2), 0.5)],
        });
        learned.study();
        let whole = [
            (WorkerId(0), RunTime::Observed(seconds(2))),
            (WorkerId(1), RunTime::Censored { at_least: seconds(2) }),
            (WorkerId(2), RunTime::Observed(seconds(2))),
        ];
        assert_eq!(*shown.0.lock().unwrap(), whole);
    }
}
