//! `bdsgd`: the deep generative model of joint run-times ([`paceline_model`]) as a predictor.

use std::sync::Arc;

use paceline_core::{Round, RunTime, Version, WorkerId};
use paceline_model::{Model, Seen, Tracker, TrackerOptions};

use super::{Filter, Predictor, log_seconds};
use crate::scene::Scene;

/// A predictor that tracks the cluster with the model.
pub struct Bdsgd {
    tracker: Tracker,
    /// Predicts the first round, before the model knows anything about this cluster.
    first: Filter,
    /// Log run-time that the model's times are relative to, so that they are exact in any unit: the first
    /// arrival of the first round.
    center: Option<f64>,
}

impl Bdsgd {
    /// This model, from its first round on.
    pub fn new(model: &Arc<Model>, options: TrackerOptions) -> Bdsgd {
        Bdsgd { tracker: Tracker::new(model, options), first: Filter::default(), center: None }
    }

    fn is_new(&self) -> bool {
        self.tracker.rounds() == 0
    }

    /// A log run-time as the model sees it.
    fn relative(&self, log_time: f64) -> f64 {
        log_time - self.center.unwrap_or_default()
    }
}

impl Predictor for Bdsgd {
    fn name(&self) -> &'static str {
        "bdsgd"
    }

    fn knows_beginnings(&self) -> bool {
        true
    }

    fn look(&mut self, scene: &Scene) {
        if self.is_new() {
            return self.first.look(scene);
        }
        let center = self.center.unwrap_or_default();
        let log = |seconds: f64| (seconds.max(1e-9).ln() - center) as f32;
        let arrived = scene.arrived.iter().map(|a| (a.worker.0, log(a.run_time)));
        let silent = scene.silent.iter().filter(|s| s.elapsed > 0.0);
        let silent = silent.map(|s| (s.worker.0, log(s.elapsed)));
        self.tracker.outlook_mut().look(arrived, silent);
    }

    fn expect(&mut self) {
        self.tracker.outlook_mut().expect();
    }

    fn doubt(&mut self) -> bool {
        match self.is_new() {
            true => self.first.doubt(),
            false => self.tracker.outlook_mut().doubt(),
        }
    }

    fn survival(&self, worker: WorkerId, log_elapsed: f64) -> f64 {
        match self.is_new() {
            true => self.first.survival(worker, log_elapsed),
            false => {
                let mut found = [0.0];
                let at = self.relative(log_elapsed);
                self.tracker.outlook().survival(worker.0, &[at], &mut found);
                found[0]
            }
        }
    }

    fn survivals(&self, worker: WorkerId, log_elapsed: &[f64], into: &mut [f64]) {
        match self.is_new() {
            true => self.first.survivals(worker, log_elapsed, into),
            false => {
                let moments: Vec<f64> = log_elapsed.iter().map(|&at| self.relative(at)).collect();
                self.tracker.outlook().survival(worker.0, &moments, into);
            }
        }
    }

    fn draws(&self, workers: &[WorkerId], count: usize) -> Option<Vec<Vec<f32>>> {
        let workers: Vec<u32> = workers.iter().map(|worker| worker.0).collect();
        let (outlook, seed) = (self.tracker.outlook(), self.tracker.rounds());
        let absolute = |draws: Vec<f32>| -> Vec<f32> {
            draws.into_iter().map(|y| y + self.center.unwrap_or_default() as f32).collect()
        };
        let drawn = || outlook.draw(&workers, count, seed).into_iter().map(absolute).collect();
        (!self.is_new()).then(drawn)
    }

    fn learn(&mut self, round: Round, run_times: &[(WorkerId, RunTime)]) {
        let first = run_times.iter().filter(|(_, time)| !time.is_censored());
        if self.center.is_none() {
            self.center = first.map(|&(_, time)| log_seconds(time)).reduce(f64::min);
        }
        let mut seen = Seen::default();
        for &(worker, run_time) in run_times {
            seen.workers.push(worker.0);
            seen.log_times.push(self.relative(log_seconds(run_time)) as f32);
            seen.observed.push(!run_time.is_censored());
        }
        self.tracker.learn(round.base().0, &seen);
    }

    fn late(&mut self, worker: WorkerId, base: Version, run_time: RunTime) {
        if !run_time.is_censored() {
            let at = self.relative(log_seconds(run_time)) as f32;
            self.tracker.late(base.0, worker.0, at);
        }
    }
}
