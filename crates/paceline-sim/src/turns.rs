//! Who is in which round of a world: all in the same, or everybody at its own pace.

use std::collections::VecDeque;

use paceline_core::Policy;

use crate::World;

/// Who is never seen in so many rounds is not there.
const SOUGHT: usize = 1_000;

/// A world as those who work in it meet it. In synchronous rounds all are in the same round of it.
/// Where every arrival makes a round (`async`, `stale`), a worker's k-th piece of work takes as long
/// as in its k-th round there: of 64 workers, each begins 64 rounds while it does one piece, and what
/// a world does to it in those would be over before it was felt. Rounds in which it is absent are
/// left out then.
pub struct Turns<'a> {
    world: &'a mut dyn World,
    own: Option<Own>,
}

impl<'a> Turns<'a> {
    /// As this policy makes rounds.
    pub fn new(world: &'a mut dyn World, policy: &dyn Policy) -> Turns<'a> {
        let own = (policy.admissible_lag() > 0).then(|| Own::new(world.workers()));
        Turns { world, own }
    }

    /// A worker takes up work in the round that it is in now; its next will be in a later one.
    /// Returns how long a whole portion takes it.
    pub fn take(&mut self, worker: usize) -> Option<f64> {
        let seconds = self.run_time(worker);
        if let Some(own) = &mut self.own {
            own.go_on(worker, self.world);
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

    /// Nobody is cut, and nobody asked for parts, where everybody goes at its own pace.
    fn micro_ends(&self, worker: usize) -> Option<&[f64]> {
        self.own.is_none().then(|| self.world.micro_ends(worker)).flatten()
    }

    fn micro_batches(&self) -> usize {
        self.world.micro_batches()
    }
}

/// The rounds between who is furthest behind and who is furthest ahead.
struct Own {
    rows: VecDeque<Vec<Option<f64>>>,
    /// Rounds that nobody is in any more.
    gone: usize,
    /// The round that each worker is in.
    at: Vec<usize>,
    /// Seconds since the world's last round was begun.
    seconds: f64,
}

impl Own {
    fn new(workers: usize) -> Own {
        Own { rows: VecDeque::new(), gone: 0, at: vec![0; workers], seconds: 0.0 }
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

    fn go_on(&mut self, worker: usize, world: &mut dyn World) {
        self.at[worker] += 1;
        self.seek(worker, world);
        let first = self.at.iter().copied().min().unwrap_or(0);
        while self.gone < first {
            self.rows.pop_front();
            self.gone += 1;
        }
    }

    /// To the first round, from the one that it is in, that it is there in.
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
    fn at_its_own_pace_a_worker_passes_its_own_rounds_and_leaves_out_those_without_it() {
        let trace = trace(&[[1.0, 2.0], [f64::NAN, 4.0], [5.0, 6.0], [7.0, 8.0]]);
        let mut world = Recorded::new(&trace, 0);
        let mut turns = Turns::new(&mut world, &Lag(9));
        turns.next_round(0.0);
        assert_eq!(turns.run_time(1), Some(2.0));
        let first: Vec<Option<f64>> = (0..3).map(|_| turns.take(0)).collect();
        assert_eq!(first, [Some(1.0), Some(5.0), Some(7.0)]);
        // Many updates later, the other is still in its first.
        (0..9).for_each(|_| turns.next_round(0.1));
        let second: Vec<Option<f64>> = (0..5).map(|_| turns.take(1)).collect();
        assert_eq!(second, [Some(2.0), Some(4.0), Some(6.0), Some(8.0), Some(2.0)]);
    }

    #[test]
    fn who_is_never_there_is_not_sought_for_ever() {
        let trace = trace(&[[1.0, f64::NAN], [2.0, f64::NAN]]);
        let mut world = Recorded::new(&trace, 0);
        let mut turns = Turns::new(&mut world, &Lag(9));
        turns.next_round(0.0);
        assert_eq!((turns.run_time(0), turns.run_time(1)), (Some(1.0), None));
        assert_eq!((turns.take(0), turns.take(0)), (Some(1.0), Some(2.0)));
    }
}
