//! The workers that can be asked for their state, and how fast each is.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use paceline_core::{RunTime, Version, WorkerId};

/// Run-times that a worker's typical run-time averages over.
const MEMORY: f64 = 8.0;

/// What is known of a worker's state and speed.
#[derive(Debug, Default)]
struct Donor {
    /// The version of its last announced contribution, and the order of announcements.
    announced: Option<(Version, u64)>,
    /// Its typical run-time, in seconds.
    run_time: Option<f64>,
    /// Its last announced version when it was asked in vain.
    passed_over: Option<Version>,
}

/// All workers that announced contributions.
#[derive(Debug, Default)]
pub(crate) struct Donors {
    donors: BTreeMap<WorkerId, Donor>,
    announcements: u64,
}

impl Donors {
    /// A worker announced a contribution to the round on `base`: it has the state of that version.
    pub(crate) fn announced(&mut self, worker: WorkerId, base: Version) {
        self.announcements += 1;
        self.donors.entry(worker).or_default().announced = Some((base, self.announcements));
    }

    /// The run-times of a round.
    pub(crate) fn observe(&mut self, run_times: &[(WorkerId, RunTime)]) {
        for (worker, run_time) in run_times {
            let Some(donor) = self.donors.get_mut(worker) else { continue };
            let took = run_time.bound().as_secs_f64();
            let typical = donor.run_time.unwrap_or(took);
            donor.run_time = Some(typical + (took - typical) / MEMORY);
        }
    }

    /// The worker was asked in vain: it is not asked again before its next contribution.
    pub(crate) fn pass_over(&mut self, worker: WorkerId) {
        if let Some(donor) = self.donors.get_mut(&worker) {
            donor.passed_over = donor.announced.map(|(base, _)| base);
        }
    }

    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.donors.remove(&worker);
    }

    /// The fastest of the `eligible` workers that announced a contribution of the newest round; the last to do
    /// so where run-times are unknown.
    pub(crate) fn best(&self, eligible: impl Fn(WorkerId) -> bool) -> Option<WorkerId> {
        let donors = self.donors.iter().filter_map(|(&worker, donor)| {
            let (base, order) = donor.announced?;
            let asked_in_vain = donor.passed_over == Some(base);
            (eligible(worker) && !asked_in_vain).then_some((worker, base, order, donor.run_time))
        });
        let key = |&(_, base, order, run_time): &(WorkerId, Version, u64, Option<f64>)| {
            let run_time = run_time.map_or(Duration::MAX, Duration::from_secs_f64);
            (Reverse(base), run_time, Reverse(order))
        };
        donors.min_by_key(key).map(|(worker, ..)| worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_worker_of_the_newest_round_is_asked() {
        let mut donors = Donors::default();
        assert_eq!(donors.best(|_| true), None);
        for (worker, base) in [(0, 3), (1, 4), (2, 4)] {
            donors.announced(WorkerId(worker), Version(base));
        }
        assert_eq!(donors.best(|_| true), Some(WorkerId(2)), "the last to arrive");
        let took =
            |worker, millis| (WorkerId(worker), RunTime::Observed(Duration::from_millis(millis)));
        donors.observe(&[took(0, 1), took(1, 10), took(2, 20)]);
        assert_eq!(donors.best(|_| true), Some(WorkerId(1)), "the fastest");
        assert_eq!(donors.best(|worker| worker.0 != 1), Some(WorkerId(2)));
        donors.pass_over(WorkerId(1));
        assert_eq!(donors.best(|_| true), Some(WorkerId(2)), "asked in vain");
        donors.announced(WorkerId(1), Version(5));
        assert_eq!(donors.best(|_| true), Some(WorkerId(1)));
        donors.forget(WorkerId(1));
        assert_eq!(donors.best(|_| true), Some(WorkerId(2)));
    }
}
