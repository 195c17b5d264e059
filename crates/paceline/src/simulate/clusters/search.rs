//! The search of `--hunt`: generations of random clusters and of neighbours of the worst ones so far.

use paceline_trace::{RandomCluster, RandomClusters};
use rayon::prelude::*;

/// Draws of run-times that a cluster is judged on, each with a seed of its own.
const DRAWS: u64 = 3;

/// Clusters of a generation. They are chosen before it begins, so that the search does not depend on
/// the number of threads.
const GENERATION: u64 = 24;

/// Share of a generation that is random clusters, restarts of the search.
const RESTARTS: f64 = 0.25;

/// Share of the evaluations after which neighbours are tried; until then all clusters are random.
const EXPLORATION: f64 = 0.2;

/// Lineages that are followed. Each begins with a random cluster.
const LINEAGES: usize = 12;

/// A search for clusters with the least share. `R` comes with the share of a replay.
pub(super) struct Search<R> {
    clusters: RandomClusters,
    evaluations: u64,
    /// Evaluations done.
    used: u64,
    /// Clusters tried.
    tried: u64,
    /// The worst cluster of each lineage, worst first.
    finds: Vec<Find<R>>,
}

/// A cluster to try.
pub(super) struct Candidate {
    /// Clusters tried before it.
    pub(super) number: u64,
    pub(super) cluster: RandomCluster,
    /// The number of the random cluster that it descends from.
    lineage: u64,
    /// Its shares have to be below this.
    bar: f64,
}

/// A cluster whose share is below that of its ancestors, on every draw of its run-times.
pub(super) struct Find<R> {
    candidate: Candidate,
    /// Its shares and replays, the largest share first.
    pub(super) replays: Vec<(f64, R)>,
}

impl<R> Find<R> {
    /// The largest share of its draws, so that no lucky draw makes a find.
    pub(super) fn share(&self) -> f64 {
        self.replays[0].0
    }
}

impl<R: Send> Search<R> {
    /// A search that replays clusters at most `evaluations` times.
    pub(super) fn new(clusters: RandomClusters, evaluations: u64) -> Search<R> {
        Search { clusters, evaluations, used: 0, tried: 0, finds: Vec::new() }
    }

    /// Whether too few evaluations are left to judge another cluster.
    pub(super) fn is_over(&self) -> bool {
        self.evaluations - self.used < DRAWS
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn tried(&self) -> u64 {
        self.tried
    }

    /// The worst clusters so far, of different lineages, worst first.
    pub(super) fn finds(&self) -> &[Find<R>] {
        &self.finds
    }

    /// Judges a generation. `replay` gives the share of a candidate with run-times of a seed; a
    /// candidate for which it gives none is left out.
    pub(super) fn generation(
        &mut self,
        replay: impl Fn(&Candidate, u64) -> Option<(f64, R)> + Sync,
    ) {
        let candidates = self.candidates();
        self.tried += candidates.len() as u64;
        let judged: Vec<(Candidate, Vec<(f64, R)>)> = candidates
            .into_par_iter()
            .map(|candidate| {
                let replays = candidate.judge(&replay);
                (candidate, replays)
            })
            .collect();
        for (candidate, replays) in judged {
            self.used += replays.len() as u64;
            self.keep(candidate, replays);
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let size = GENERATION.min((self.evaluations - self.used) / DRAWS);
        let explores =
            self.finds.is_empty() || (self.used as f64) < EXPLORATION * self.evaluations as f64;
        let neighbours = if explores { 0 } else { size - (RESTARTS * size as f64) as u64 };
        (0..size)
            .map(|i| match i < neighbours {
                true => self.neighbour(i, i as f64 / neighbours as f64),
                false => self.restart(i),
            })
            .collect()
    }

    /// A random cluster.
    fn restart(&self, i: u64) -> Candidate {
        let number = self.tried + i;
        let bar = self.finds.get(LINEAGES - 1).map_or(f64::INFINITY, Find::share);
        Candidate { number, cluster: self.clusters.cluster(number), lineage: number, bar }
    }

    /// A neighbour of a find, the worse the more often, by a `position` from 0 to 1 among them.
    fn neighbour(&self, i: u64, position: f64) -> Candidate {
        let number = self.tried + i;
        let parent = &self.finds[(position * position * self.finds.len() as f64) as usize];
        let cluster = self.clusters.neighbour(&parent.candidate.cluster, number);
        Candidate { number, cluster, lineage: parent.candidate.lineage, bar: parent.share() }
    }

    /// Keeps a candidate that is below its bar on every draw.
    fn keep(&mut self, candidate: Candidate, mut replays: Vec<(f64, R)>) {
        let is_below = |(share, _): &(f64, R)| *share < candidate.bar;
        if replays.len() < DRAWS as usize || !replays.iter().all(is_below) {
            return;
        }
        replays.sort_by(|a, b| b.0.total_cmp(&a.0));
        let find = Find { candidate, replays };
        match self.finds.iter_mut().find(|known| known.candidate.lineage == find.candidate.lineage)
        {
            Some(known) if find.share() < known.share() => *known = find,
            Some(_) => {}
            None => self.finds.push(find),
        }
        self.finds.sort_by(|a, b| a.share().total_cmp(&b.share()));
        self.finds.truncate(LINEAGES);
    }
}

impl Candidate {
    /// Replays it draw by draw, until one is not below the bar.
    fn judge<R>(&self, replay: impl Fn(&Candidate, u64) -> Option<(f64, R)>) -> Vec<(f64, R)> {
        let mut replays = Vec::new();
        for draw in 0..DRAWS {
            let Some((share, replayed)) = replay(self, self.cluster.seed() + draw) else { break };
            replays.push((share, replayed));
            if share >= self.bar {
                break;
            }
        }
        replays
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::*;

    /// Least with 20 workers, rounds of 30 and a spread of 0.05; the seed adds up to 0.03.
    fn share(cluster: &RandomCluster, seed: u64) -> f64 {
        let spec = cluster.spec();
        let far = |key: &str, best: f64| (spec.parameter(key).unwrap() / best).ln().powi(2);
        let luck = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62) as f64 / 100.0;
        let far = far("n", 20.0) + far("unit", 30.0) + far("spread", 0.05);
        luck + far / (0.02 + far)
    }

    fn searched(evaluations: u64) -> Search<u64> {
        let mut search = Search::new(RandomClusters::new(1), evaluations);
        while !search.is_over() {
            search.generation(|candidate, seed| Some((share(&candidate.cluster, seed), seed)));
        }
        search
    }

    /// What identifies the finds.
    fn marks(search: &Search<u64>) -> Vec<(u64, f64)> {
        search.finds().iter().map(|find| (find.candidate.number, find.share())).collect()
    }

    #[test]
    fn finds_are_worse_than_as_many_random_draws() {
        let random = (0..1000).map(|number| RandomClusters::new(1).cluster(number));
        let worst = random.map(|c| share(&c, c.seed())).fold(f64::INFINITY, f64::min);
        let found = searched(1000).finds()[0].share();
        assert!(found < worst - 0.1, "{found} {worst}");
    }

    #[test]
    fn finds_do_not_depend_on_the_number_of_threads() {
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            marks(&pool.install(|| searched(500)))
        };
        assert_eq!(on(1), on(4));
    }

    #[test]
    fn finds_are_of_different_lineages_and_worst_first() {
        let search = searched(600);
        let lineages: BTreeSet<u64> =
            search.finds().iter().map(|find| find.candidate.lineage).collect();
        assert_eq!((search.finds().len(), lineages.len()), (LINEAGES, LINEAGES));
        assert!(search.finds().is_sorted_by(|a, b| a.share() <= b.share()));
    }

    #[test]
    fn evaluations_are_counted_and_bounded() {
        for evaluations in [3, 4, 100, 333] {
            let (done, mut search) =
                (AtomicU64::new(0), Search::new(RandomClusters::new(2), evaluations));
            while !search.is_over() {
                search.generation(|candidate, seed| {
                    done.fetch_add(1, Ordering::Relaxed);
                    Some((share(&candidate.cluster, seed), seed))
                });
            }
            assert_eq!(search.used(), done.into_inner());
            assert!((evaluations - 2..=evaluations).contains(&search.used()), "{}", search.used());
        }
    }

    #[test]
    fn a_find_is_as_bad_on_every_draw() {
        let mut search = Search::new(RandomClusters::new(3), 90);
        search.generation(|candidate, seed| Some(((seed - candidate.cluster.seed()) as f64, seed)));
        for find in search.finds() {
            assert_eq!(find.share(), 2.0);
            assert_eq!(find.replays[0].1, find.candidate.cluster.seed() + 2);
        }
    }

    #[test]
    fn a_candidate_without_a_replay_is_left_out() {
        let mut search = Search::new(RandomClusters::new(3), 90);
        search.generation(|_, _| None::<(f64, ())>);
        assert_eq!((search.used(), search.finds().len()), (0, 0));
    }
}
