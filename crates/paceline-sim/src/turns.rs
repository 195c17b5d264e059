//! Which round of a world each worker is in: the same for all, or its own.

use std::collections::VecDeque;

use paceline_core::Policy;

use crate::World;

/// A worker that is absent for this many rounds is taken as gone for good.
const SOUGHT: usize = 1_000;

/// A world as its workers experience it. In synchronous rounds all workers are in the same round of
/// the world. Where every arrival makes a round (`async`, `stale`), a worker's k-th portion of work
/// takes its run-time in the k-th round in which it is present. Otherwise, with 64 workers, 64 rounds
/// would pass during one portion, and a slow phase would end before the worker felt it.
pub struct Turns<'a> {
    world: &'a mut dyn World,
    own: Option<OwnRounds>,
}

impl<'a> Turns<'a> {
    /// Synchronous, or at each worker's own pace, as `policy` makes rounds.
    pub fn new(world: &'a mut dyn World, policy: &dyn Policy) -> Turns<'a> {
        let own = (policy.admissible_lag() > 0).then(|| OwnRounds::new(world.workers()));
        Turns { world, own }
    }

    /// A worker takes up work in its current round; its next work belongs to a later round. Returns
    /// the seconds that a whole portion takes.
    pub fn take(&mut self, worker: usize) -> Option<f64> {
        let seconds = self.run_time(worker);
        if let Some(own) = &mut self.own {
            own.advance(worker, self.world);
        }
        seconds
    }
}

impl World for Turns<'_> {
    fn workers(&self) -> usize {
        self.world.workers()
    }

    fn next_round(&mut self, seconds: f64) {
        match &mut self.own {
            None => self.world.next_round(seconds),
            Some(own) => own.passed(seconds, self.world),
        }
    }

    fn run_time(&self, worker: usize) -> Option<f64> {
        match &self.own {
            None => self.world.run_time(worker),
            Some(own) => own.run_time(worker),
        }
    }

    /// None if workers go at their own pace: they are never cut, so nothing is salvaged.
    fn micro_ends(&self, worker: usize) -> Option<&[f64]> {
        self.own.is_none().then(|| self.world.micro_ends(worker)).flatten()
    }

    fn micro_batches(&self) -> usize {
        self.world.micro_batches()
    }
}

/// The rounds between the worker furthest behind and the worker furthest ahead.
struct OwnRounds {
    rows: VecDeque<Vec<Option<f64>>>,
    /// Rounds that every worker has left behind.
    gone: usize,
    /// The round that each worker is in.
    at: Vec<usize>,
    /// Seconds since the world's last round began.
    seconds: f64,
}

impl OwnRounds {
    fn new(workers: usize) -> OwnRounds {
        OwnRounds { rows: VecDeque::new(), gone: 0, at: vec![0; workers], seconds: 0.0 }
    }

    fn passed(&mut self, seconds: f64, world: &mut dyn World) {
        self.seconds += seconds;
        if self.rows.is_empty() {
            (0..self.at.len()).for_each(|worker| self.seek(worker, world));
        }
    }

    fn run_time(&self, worker: usize) -> Option<f64> {
        let row = self.rows.get(self.at[worker].checked_sub(self.gone)?)?;
        row[worker]
    }

    fn advance(&mut self, worker: usize, world: &mut dyn World) {
        self.at[worker] += 1;
        self.seek(worker, world);
        let first = self.at.iter().copied().min().unwrap_or(0);
        while self.gone < first {
            self.rows.pop_front();
            self.gone += 1;
        }
    }

    /// Moves a worker to the first round, from its current one on, in which it is present.
    fn seek(&mut self, worker: usize, world: &mut dyn World) {
        for at in self.at[worker]..self.at[worker] + SOUGHT {
            while self.gone + self.rows.len() <= at {
                world.next_round(std::mem::take(&mut self.seconds));
                self.rows.push_back((0..self.at.len()).map(|w| world.run_time(w)).collect());
            }
            if self.rows[at - self.gone][worker].is_some() {
                self.at[worker] = at;
                return;
            }
        }
        self.at[worker] = usize::MAX;
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::{CutReason, Decision, RoundView};
    use paceline_trace::{Cell, Trace, Unit};

    use super::*;
    use crate::Recorded;

    struct Lag(u64);

    impl Policy for Lag {
        fn name(&self) -> String {
            "lag".to_owned()
        }

        fn decide(&mut self, _view: &RoundView<'_>) -> Decision {
            Decision::cut(CutReason::AllArrived)
        }

        fn admissible_lag(&self) -> u64 {
            self.0
        }
    }

    fn trace(rows: &[[f64; 2]]) -> Trace {
        let mut trace = Trace::of_size("t", Unit::Relative, 2);
        let cell = |&x: &f64| if x.is_nan() { Cell::Absent } else { Cell::Observed(x) };
        rows.iter().for_each(|row| trace.push_round(row.iter().map(cell)));
        trace
    }

    #[test]
    fn in_synchronous_rounds_all_are_in_the_same() {
        let trace = trace(&[[1.0, 2.0], [3.0, 4.0]]);
        let mut world = Recorded::new(&trace, 0);
        let mut turns = Turns::new(&mut world, &Lag(0));
        turns.next_round(0.0);
        assert_eq!(
            (turns.take(0), turns.take(0), turns.take(1)),
            (Some(1.0), Some(1.0), Some(2.0))
        );
        turns.next_round(2.0);
        assert_eq!((turns.take(0), turns.take(1)), (Some(3.0), Some(4.0)));
    }

    #[test]
    fn at_its_own_pace_a_worker_skips_rounds_in_which_it_is_absent() {
        let trace = trace(&[[1.0, 2.0], [f64::NAN, 4.0], [5.0, 6.0], [7.0, 8.0]]);
        let mut world = Recorded::new(&trace, 0);
        let mut turns = Turns::new(&mut world, &Lag(9));
        turns.next_round(0.0);
        assert_eq!(turns.run_time(1), Some(2.0));
        let first: Vec<Option<f64>> = (0..3).map(|_| turns.take(0)).collect();
        assert_eq!(first, [Some(1.0), Some(5.0), Some(7.0)]);
        // Many updates later, the other worker is still in its first round.
        (0..9).for_each(|_| turns.next_round(0.1));
        let second: Vec<Option<f64>> = (0..5).map(|_| turns.take(1)).collect();
        assert_eq!(second, [Some(2.0), Some(4.0), Some(6.0), Some(8.0), Some(2.0)]);
    }

    #[test]
    fn the_search_for_an_absent_worker_ends() {
        let trace = trace(&[[1.0, f64::NAN], [2.0, f64::NAN]]);
        let mut world = Recorded::new(&trace, 0);
        let mut turns = Turns::new(&mut world, &Lag(9));
        turns.next_round(0.0);
        assert_eq!((turns.run_time(0), turns.run_time(1)), (Some(1.0), None));
        assert_eq!((turns.take(0), turns.take(0)), (Some(1.0), Some(2.0)));
    }
}
