//! Cost bias: how far the samples in the updates are cheaper than the samples handed out.

use std::collections::BTreeMap;

use crate::{ContributionId, Costs, EpochOrder, EventKind, OrderSpec, Portion, Work, WorkerId};

/// Compares, from a run's events, the cost of the samples handed out for each update with the cost of the
/// samples in it. A round that is cut early holds the samples of the workers that finished early: the cheap
/// ones.
#[derive(Debug)]
pub struct CostBias {
    orders: OrderSpec,
    costs: Costs,
    order: EpochOrder,
    /// The last work of each worker.
    given: BTreeMap<WorkerId, (ContributionId, Portion)>,
    handed_out: Cost,
    came: Cost,
    sum: f64,
    updates: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    sum: f64,
    samples: usize,
}

impl Cost {
    fn add(&mut self, cost: f64, samples: usize) {
        self.sum += cost;
        self.samples += samples;
    }

    fn mean(self) -> Option<f64> {
        (self.samples > 0 && self.sum > 0.0).then(|| self.sum / self.samples as f64)
    }
}

impl CostBias {
    /// Watches a run that visits its samples in these orders, at these costs.
    pub fn new(orders: OrderSpec, costs: Costs) -> CostBias {
        CostBias {
            orders,
            costs,
            order: EpochOrder::none(),
            given: BTreeMap::new(),
            handed_out: Cost::default(),
            came: Cost::default(),
            sum: 0.0,
            updates: 0,
        }
    }

    /// Takes in the next event. Needs every event of the run, in order.
    pub fn see(&mut self, event: &EventKind) {
        match event {
            EventKind::RoundStarted { work, .. } => work.iter().for_each(|work| self.give(work)),
            EventKind::Enlisted { work, .. } => self.give(work),
            EventKind::Arrived { id, worker, weight, .. } => {
                let given = self.given.remove(worker).filter(|(given, _)| given == id);
                if let Some((_, portion)) = given {
                    // A worker processes its portion from the start.
                    let (cost, samples) = self.cost(&portion, *weight as usize);
                    self.came.add(cost, samples);
                }
            }
            EventKind::WorkerLeft { worker, .. } => drop(self.given.remove(worker)),
            EventKind::Closed { .. } => self.closed(),
            _ => {}
        }
    }

    /// Mean over updates of (cost of a sample in the update / cost of a sample handed out) − 1. Negative
    /// values mean that updates favour cheap samples.
    pub fn mean(&self) -> Option<f64> {
        (self.updates > 0).then(|| self.sum / f64::from(self.updates))
    }

    fn give(&mut self, work: &Work) {
        let (cost, samples) = self.cost(&work.portion, usize::MAX);
        self.handed_out.add(cost, samples);
        self.given.insert(work.worker, (work.id, work.portion.clone()));
    }

    fn cost(&mut self, portion: &Portion, first: usize) -> (f64, usize) {
        if let Some(epoch) = portion.epoch().filter(|&epoch| epoch != self.order.epoch()) {
            self.order = self.orders.epoch(epoch);
        }
        let samples = portion.samples(&self.order).unwrap_or_default();
        let samples = &samples[..first.min(samples.len())];
        (self.costs.share(samples), samples.len())
    }

    fn closed(&mut self) {
        let (handed_out, came) =
            (std::mem::take(&mut self.handed_out), std::mem::take(&mut self.came));
        if let (Some(handed_out), Some(came)) = (handed_out.mean(), came.mean()) {
            self.sum += came / handed_out - 1.0;
            self.updates += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Blocks, Round, RunTime, SampleRange, Version};

    #[test]
    fn an_update_without_the_dear_samples_is_biased_by_what_they_cost() {
        let orders = OrderSpec::new(1, 4);
        let order = orders.epoch(0);
        // The first two positions hold samples that cost 1, the others' cost 3.
        let mut costs = [3.0; 4];
        let position = |range| Portion::new(range).samples(&order).expect("in the epoch");
        let cheap = position(SampleRange { epoch: 0, start: 0, end: 2 });
        cheap.iter().for_each(|&sample| costs[sample as usize] = 1.0);
        let mut bias = CostBias::new(orders, Costs::new(Arc::new(costs), 2));
        assert_eq!(bias.mean(), None);
        let work = |worker: u32| Work {
            id: ContributionId(u64::from(worker)),
            worker: WorkerId(worker),
            portion: Portion::new(SampleRange { epoch: 0, start: 2 * worker, end: 2 * worker + 2 }),
            waited_for: false,
            worth: 1.0,
        };
        let arrived = |worker: u32, base: Version| EventKind::Arrived {
            round: Round(base.0),
            id: ContributionId(u64::from(worker)),
            base,
            worker: WorkerId(worker),
            weight: 2.0,
            share: 1.0,
            loss: None,
            run_time: RunTime::Observed(std::time::Duration::from_secs(1)),
            blocks: Blocks::All,
        };
        let closed = |round| EventKind::Closed { round, closes: vec![], run_times: vec![] };
        bias.see(&EventKind::RoundStarted { round: Round(0), work: vec![work(0), work(1)] });
        bias.see(&arrived(0, Round(0).base()));
        bias.see(&closed(Round(0)));
        assert_eq!(bias.mean(), Some(-0.5));
        // A full round has no bias.
        bias.see(&EventKind::RoundStarted { round: Round(1), work: vec![work(0), work(1)] });
        bias.see(&arrived(0, Round(1).base()));
        bias.see(&arrived(1, Round(1).base()));
        bias.see(&closed(Round(1)));
        assert_eq!(bias.mean(), Some(-0.25));
    }
}
