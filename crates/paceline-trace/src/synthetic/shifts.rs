//! Shifts of regime: from one round to the next, some workers take another time.

use super::{
    minority::{Minority, WorkerSets},
    stream::Component,
};

/// When shifts happen, and to how many workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ShiftModel {
    /// The first round of the first shift.
    pub(super) at: u64,
    /// Rounds that a shift lasts, and rounds until the next one, which shifts other workers. 0: the
    /// first shift lasts for good.
    pub(super) every: u64,
    /// The workers, drawn for each shift, and their factor.
    pub(super) shifted: Minority,
}

/// The shifts of a cluster.
pub(super) struct Shifts {
    model: ShiftModel,
    sets: WorkerSets,
    /// The workers of the current shift or, between shifts, of the last one.
    workers: Vec<usize>,
    /// Shifts and pauses before the current one.
    passed: Option<u64>,
}

impl Shifts {
    pub(super) fn new(model: ShiftModel, n: usize, seed: u64) -> Shifts {
        let sets = WorkerSets::new(n, seed, Component::Shift);
        Shifts { model, sets, workers: Vec::new(), passed: None }
    }

    /// Multiplies the run-times of the shifted workers. Rounds come in order.
    pub(super) fn touch(&mut self, round: u64, row: &mut [f64]) {
        let Some(since) = round.checked_sub(self.model.at) else { return };
        let passed = since.checked_div(self.model.every).unwrap_or(0);
        if passed % 2 == 1 {
            return;
        }
        if self.passed != Some(passed) {
            self.passed = Some(passed);
            self.workers = self.sets.draw(self.model.shifted.count(row.len())).to_vec();
        }
        self.workers.iter().for_each(|&i| row[i] *= self.model.shifted.factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workers that each of the first rounds shifts.
    fn shifted(every: u64, rounds: u64) -> Vec<Vec<usize>> {
        let shifted = Minority { share: 0.3, factor: 3.0 };
        let mut shifts = Shifts::new(ShiftModel { at: 5, every, shifted }, 20, 1);
        let round = |round| {
            let mut row = vec![1.0; 20];
            shifts.touch(round, &mut row);
            (0..20).filter(|&i| row[i] == 3.0).collect()
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn a_single_shift_lasts_for_good() {
        let rounds = shifted(0, 50);
        assert!(rounds[..5].iter().all(Vec::is_empty));
        assert!(rounds[5].len() == 6 && rounds[5..].iter().all(|round| *round == rounds[5]));
    }

    #[test]
    fn repeated_shifts_come_and_go_and_take_others() {
        let rounds = shifted(4, 21);
        let lengths: Vec<usize> = rounds.iter().map(Vec::len).collect();
        assert_eq!(lengths, [0, 0, 0, 0, 0, 6, 6, 6, 6, 0, 0, 0, 0, 6, 6, 6, 6, 0, 0, 0, 0]);
        assert_eq!(rounds[5], rounds[8]);
        assert_ne!(rounds[5], rounds[13]);
    }
}
