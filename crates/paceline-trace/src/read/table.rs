//! Collects cells in any order into a trace.

use std::collections::HashMap;

use super::error::{MAX_ROUNDS, MAX_TRACE_WORKERS, Position, Problem};
use crate::{Cell, MAX_CELLS, Trace};

/// A collection of at most [`MAX_CELLS`] cells.
#[derive(Default)]
pub(super) struct CellTable {
    workers: Keys<String>,
    iterations: Keys<i64>,
    entries: Vec<Entry>,
}

struct Entry {
    iteration: u32,
    worker: u32,
    /// Line or row, at most 2³².
    place: u32,
    /// Packed, to be small.
    cell: f64,
}

impl CellTable {
    /// The number of a worker, known or new.
    pub(super) fn worker(&mut self, name: &str) -> Result<u32, Problem> {
        let worker = match self.workers.numbers.get(name) {
            Some(&worker) => worker,
            None => self.workers.add(name.to_owned()),
        };
        self.check_size()?;
        Ok(worker)
    }

    /// Adds a cell, found at `place`.
    pub(super) fn put(
        &mut self,
        place: u64,
        iteration: i64,
        worker: u32,
        cell: Cell,
    ) -> Result<(), Problem> {
        let iteration = match self.iterations.numbers.get(&iteration) {
            Some(&number) => number,
            None => self.iterations.add(iteration),
        };
        self.check_size()?;
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        self.entries.push(Entry { iteration, worker, place, cell: cell.pack() });
        Ok(())
    }

    /// Whether nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn check_size(&self) -> Result<(), Problem> {
        let (workers, rounds) = (self.workers.keys.len(), self.iterations.keys.len());
        let fits = workers <= MAX_TRACE_WORKERS
            && rounds <= MAX_ROUNDS
            && workers * rounds <= MAX_CELLS
            && self.entries.len() < MAX_CELLS;
        if fits { Ok(()) } else { Err(Problem::TooLarge { workers, rounds }) }
    }

    /// The trace: iterations by number, workers by number if all are numbers, else in order of first
    /// appearance. Two cells of one worker and iteration are an error at the position of the second.
    pub(super) fn into_trace(
        self,
        name: &str,
        place: fn(u64) -> Position,
    ) -> Result<Trace, (Position, Problem)> {
        let n = self.workers.keys.len();
        let round_of = ranks(&self.iterations.keys);
        let numbers: Option<Vec<i64>> =
            self.workers.keys.iter().map(|worker| worker.parse().ok()).collect();
        let worker_of = numbers.map_or_else(|| (0..n).collect(), |numbers| ranks(&numbers));

        let mut cells = vec![Cell::Absent.pack(); n * round_of.len()];
        let mut places = vec![0u32; cells.len()];
        for entry in &self.entries {
            let at = round_of[entry.iteration as usize] * n + worker_of[entry.worker as usize];
            if places[at] != 0 {
                let duplicate = Problem::Duplicate {
                    iteration: self.iterations.keys[entry.iteration as usize],
                    worker: self.workers.keys[entry.worker as usize].clone(),
                    first: place(places[at].into()),
                };
                return Err((place(entry.place.into()), duplicate));
            }
            places[at] = entry.place;
            cells[at] = entry.cell;
        }
        let mut names = vec![String::new(); n];
        for (worker, name) in self.workers.keys.into_iter().enumerate() {
            names[worker_of[worker]] = name;
        }
        Ok(Trace::of_packed(name, names, cells))
    }
}

/// Keys numbered in order of first appearance.
struct Keys<K> {
    numbers: HashMap<K, u32>,
    keys: Vec<K>,
}

impl<K> Default for Keys<K> {
    fn default() -> Keys<K> {
        Keys { numbers: HashMap::new(), keys: Vec::new() }
    }
}

impl<K: Clone + Eq + std::hash::Hash> Keys<K> {
    fn add(&mut self, key: K) -> u32 {
        let number = self.keys.len() as u32;
        self.numbers.insert(key.clone(), number);
        self.keys.push(key);
        number
    }
}

/// The rank of each key in ascending order; the order is stable.
fn ranks(keys: &[i64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|&i| keys[i]);
    let mut ranks = vec![0; keys.len()];
    for (rank, i) in order.into_iter().enumerate() {
        ranks[i] = rank;
    }
    ranks
}
