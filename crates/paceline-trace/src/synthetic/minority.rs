//! Workers that are faster or slower than the rest: the same ones throughout, or others each round.

use super::stream::{Component, ComponentStream};

/// A share of the workers whose run-times are multiplied by a factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Minority {
    /// From 0 to 1.
    pub(super) share: f64,
    /// Below 1 for fast workers.
    pub(super) factor: f64,
}

impl Minority {
    /// No workers.
    pub(super) const NONE: Minority = Minority { share: 0.0, factor: 1.0 };

    /// The number of its workers: none of a share of 0, else at least one.
    pub(super) fn count(self, n: usize) -> usize {
        match self.share > 0.0 {
            true => ((self.share * n as f64).round() as usize).clamp(1, n),
            false => 0,
        }
    }
}

/// Draws sets of workers without replacement.
pub(super) struct WorkerSets {
    stream: ComponentStream,
    /// All workers; the last set drawn is in front.
    order: Vec<usize>,
}

impl WorkerSets {
    pub(super) fn new(n: usize, seed: u64, component: Component) -> WorkerSets {
        WorkerSets { stream: ComponentStream::new(seed, component), order: (0..n).collect() }
    }

    /// Draws `count` workers, in random order.
    pub(super) fn draw(&mut self, count: usize) -> &[usize] {
        let n = self.order.len();
        for i in 0..count {
            let other = i + self.stream.below(n - i);
            self.order.swap(i, other);
        }
        &self.order[..count]
    }
}

/// Each worker's factor. The two minorities are disjoint if both fit.
pub(super) fn fixed_factors(fast: Minority, slow: Minority, n: usize, seed: u64) -> Vec<f64> {
    let mut sets = WorkerSets::new(n, seed, Component::Minority);
    let order = sets.draw(n);
    let mut factors = vec![1.0; n];
    order[..fast.count(n)].iter().for_each(|&i| factors[i] *= fast.factor);
    order[n - slow.count(n)..].iter().for_each(|&i| factors[i] *= slow.factor);
    factors
}

/// A minority drawn anew each round.
pub(super) struct Roving {
    model: Minority,
    sets: WorkerSets,
}

impl Roving {
    pub(super) fn new(model: Minority, n: usize, seed: u64) -> Roving {
        Roving { model, sets: WorkerSets::new(n, seed, Component::Roving) }
    }

    /// Multiplies the run-times of this round's minority.
    pub(super) fn touch(&mut self, row: &mut [f64]) {
        let count = self.model.count(row.len());
        self.sets.draw(count).iter().for_each(|&i| row[i] *= self.model.factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minority_has_the_stated_size_and_at_least_one_worker() {
        let count = |share, n| Minority { share, factor: 2.0 }.count(n);
        assert_eq!([count(0.0, 9), count(0.01, 9), count(0.1, 25), count(1.0, 9)], [0, 1, 3, 9]);
    }

    #[test]
    fn fixed_minorities_are_disjoint() {
        let (fast, slow) =
            (Minority { share: 0.5, factor: 0.25 }, Minority { share: 0.2, factor: 3.0 });
        let factors = fixed_factors(fast, slow, 10, 7);
        let of = |factor: f64| factors.iter().filter(|&&f| f == factor).count();
        assert_eq!([of(0.25), of(1.0), of(3.0)], [5, 3, 2]);
        // One minority is the same workers with and without the other.
        let alone = fixed_factors(fast, Minority::NONE, 10, 7);
        assert!(alone.iter().zip(&factors).all(|(a, b)| (*a < 1.0) == (*b < 1.0)));
    }

    #[test]
    fn a_roving_minority_comes_to_every_worker_equally_often() {
        let mut roving = Roving::new(Minority { share: 0.1, factor: 0.125 }, 40, 7);
        let (mut seen, mut returned) = (vec![0u32; 40], 0);
        let mut before = vec![1.0; 40];
        for _ in 0..10_000 {
            let mut row = vec![1.0; 40];
            roving.touch(&mut row);
            assert_eq!(row.iter().filter(|&&x| x == 0.125).count(), 4);
            returned += row.iter().zip(&before).filter(|(a, b)| **a < 1.0 && **b < 1.0).count();
            row.iter().zip(&mut seen).for_each(|(x, seen)| *seen += u32::from(*x < 1.0));
            before = row;
        }
        // 1,000 each with a standard deviation of 30; 4 × 0.1 of one round's are in the next.
        assert!(seen.iter().all(|count| count.abs_diff(1000) < 130), "{seen:?}");
        assert!((f64::from(returned as u32) / 4000.0 - 1.0).abs() < 0.1, "{returned}");
    }
}
