//! A predictor with a stopping rule: most policies are one of these.

use paceline_core::{
    CutReason, Decision, Policy, RoundRecord, RoundView, RunTime, Time, Version, WorkerId,
};

use crate::{
    objective::{Objective, Samples},
    predict::Predictor,
    probe::Probe,
    rate::Rate,
    scene::{Scene, with_pace},
    stop::{Plan, Rule, best_count, best_plan},
};

/// Arrivals below one in so many participants, and times below one in so many of the round's, are
/// not asked about one by one.
const GRAIN: usize = 200;

/// Waits as long as a predictor and a stopping rule say.
pub struct Learned {
    predictor: Box<dyn Predictor>,
    objective: Box<dyn Objective>,
    rule: Rule,
    default_rule: Rule,
    rate: Rate,
    probe: Probe,
    /// Micro-batches that count one by one.
    partial: u32,
    committed: usize,
}

impl Learned {
    /// This rule on this predictor, whose rule by default is `default_rule`.
    pub fn new(predictor: Box<dyn Predictor>, rule: Rule, default_rule: Rule) -> Learned {
        let (rate, probe) = (Rate::default(), Probe::default());
        let objective = Box::new(Samples);
        Learned { predictor, objective, rule, default_rule, rate, probe, partial: 1, committed: 0 }
    }

    fn commit(&mut self, view: &RoundView<'_>, new: bool) -> Decision {
        let all = view.participants();
        if new {
            self.predictor.expect();
            self.committed = match self.rate.typical() > 0.0 {
                true => best_count(
                    &*self.predictor,
                    &Scene::of(view),
                    self.rate.typical(),
                    self.rate.overhead(),
                ),
                // Nothing is known: the first round waits for all, as the paper's profiling does.
                false => all,
            };
        }
        view.wait_for(self.committed)
    }

    fn renewal(&mut self, view: &RoundView<'_>) -> Decision {
        if view.arrivals.is_empty() || view.now <= view.opened {
            return Decision::WAIT;
        }
        let scene = Scene::of(view);
        let rate = self.rate.or_now(self.objective.gain(scene.gained()), scene.elapsed);
        let plan = best_wait(&mut *self.predictor, &*self.objective, &scene, rate);
        if plan.value > 0.0 {
            return follow(&plan, view);
        }
        match self.probe.instead_of_cut(view, rate, self.rate.overhead(), false) {
            Some(until) => Decision::Wait { until: Some(until), arrivals: 1 },
            None => not_worth_waiting(view),
        }
    }
}

/// Looks at a scene and finds the best further wait. A cut must be right under doubt, too.
pub(crate) fn best_wait(
    predictor: &mut dyn Predictor,
    objective: &dyn Objective,
    scene: &Scene,
    rate: f64,
) -> Plan {
    predictor.look(scene);
    let plan = best_plan(predictor, objective, scene, rate);
    if plan.value <= 0.0 && predictor.doubt() {
        return best_plan(predictor, objective, scene, rate);
    }
    plan
}

/// Waits as planned, and asks again half-way through the arrivals that are expected; among many
/// workers not for every single one, nor after moments that are nothing to the round.
pub(crate) fn follow(plan: &Plan, view: &RoundView<'_>) -> Decision {
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
        let name = self.predictor.name();
        match self.rule == self.default_rule {
            true => name.to_owned(),
            false => format!("{name}:{}", self.rule),
        }
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        let new = self.rate.opened(view);
        self.partial = view.partial;
        match self.rule {
            Rule::Commit => self.commit(view, new),
            Rule::Renewal => self.renewal(view),
        }
    }

    fn closed(&mut self, record: &RoundRecord<'_>) {
        self.rate.closed(record, self.objective.gain(record.weight));
        self.probe.closed(record, self.rate.overhead());
        let run_times = &with_pace(record, self.partial);
        self.predictor.learn(&RoundRecord { run_times, ..*record });
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime) {
        self.predictor.late(worker, base, run_time);
    }
}
