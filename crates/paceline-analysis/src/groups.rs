//! Workers that are slow together: on one machine, behind one switch, under one throttle.

use paceline_trace::Trace;
use serde::Serialize;

use crate::{
    correlation::{ResidualSeries, products},
    residual::Residuals,
    what_if::WhatIf,
};

/// Least correlation of a group, however significant smaller ones are.
const LEAST: f64 = 0.3;

/// Groups are joined if the correlation between them is at least this share of that within one.
const ALIKE: f32 = 0.7;

/// Iterations of joining groups and reassigning workers.
const PASSES: usize = 3;

/// Workers that are compared with all leaders at once.
const BLOCK: usize = 32;

/// The groups found, the largest first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerGroups {
    /// Groups of at least two workers.
    pub groups: Vec<WorkerGroup>,
    /// The correlation from which two workers count as moving together.
    pub threshold: f64,
    /// Rounds averaged into one value to bound the work; 1 for no averaging.
    pub rounds_averaged: usize,
}

/// Workers whose run-times move together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerGroup {
    /// Their names, in the trace's order.
    pub workers: Vec<String>,
    /// Mean correlation of a member's run-times with those of the rest of the group.
    pub correlation: f64,
    /// Full sync's time over its time if the group had been as fast as the others.
    pub slowdown: f64,
}

impl WorkerGroups {
    /// Finds groups by the correlation of residuals: run-times in the logarithm less the round's
    /// median and the worker's own level.
    ///
    /// Leader clustering: in the trace's order, a worker joins the group whose first member it is
    /// most correlated with, or founds one. The threshold is the correlation that no pair of independent
    /// workers exceeds by chance ([`ResidualSeries::by_chance`]). Then similar groups are joined, and every
    /// worker goes to the group it fits best, with the threshold for the number of groups. Calls
    /// `progress` with the share done.
    pub(crate) fn find(
        trace: &Trace,
        residuals: &Residuals,
        progress: &mut dyn FnMut(f64),
    ) -> WorkerGroups {
        let n = trace.workers().len();
        let series = ResidualSeries::from_residuals(residuals, n, trace.rounds());
        let threshold = series.by_chance(series.pairs()).max(LEAST);
        let rounds_averaged = series.rounds_per_value;
        let mut clusters = Clusters::led(&series, threshold as f32, progress);
        for _ in 0..PASSES {
            clusters.join_alike();
            let fits = series.by_chance(clusters.sizes.len() as f64).max(LEAST);
            clusters.reassign(fits as f32);
        }
        let mut found: Vec<(Vec<usize>, f64)> = clusters.found();
        found.sort_by_key(|(members, _)| std::cmp::Reverse(members.len()));

        let mut sets: Vec<usize> = (0..n).map(|worker| found.len() + worker).collect();
        for (set, (members, _)) in found.iter().enumerate() {
            members.iter().for_each(|&worker| sets[worker] = set);
        }
        let what_if = WhatIf::for_sets(trace, &sets, found.len() + n);
        let name = |&worker: &usize| trace.workers()[worker].clone();
        let groups = found.iter().enumerate().map(|(set, (members, correlation))| WorkerGroup {
            workers: members.iter().map(name).collect(),
            correlation: *correlation,
            slowdown: what_if.slowdowns[set],
        });
        WorkerGroups { groups: groups.collect(), threshold, rounds_averaged }
    }
}

/// The assignment of series to clusters.
struct Clusters<'a> {
    series: &'a ResidualSeries,
    cluster_of: Vec<Option<usize>>,
    sizes: Vec<usize>,
    /// The sum of a cluster's series, cluster by cluster.
    sums: Vec<f32>,
}

impl<'a> Clusters<'a> {
    fn led(
        series: &'a ResidualSeries,
        threshold: f32,
        progress: &mut dyn FnMut(f64),
    ) -> Clusters<'a> {
        let width = series.width();
        let mut cluster_of = Vec::with_capacity(series.len());
        let (mut leaders, mut near): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
        for first in (0..series.len()).step_by(BLOCK) {
            let block: Vec<f32> = (first..(first + BLOCK).min(series.len()))
                .flat_map(|i| series.at(i).iter().copied())
                .collect();
            let before = leaders.len() / width;
            products(&block, &leaders, width, &mut near);
            let mut fresh = Vec::new();
            for (i, own) in block.chunks_exact(width).enumerate() {
                products(own, &leaders[before * width..], width, &mut fresh);
                let all = near[i * before..(i + 1) * before].iter().chain(&fresh);
                let best = all.enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                cluster_of.push(Some(match best {
                    Some((leader, &r)) if r >= threshold => leader,
                    _ => {
                        leaders.extend_from_slice(own);
                        leaders.len() / width - 1
                    }
                }));
            }
            progress(first as f64 / series.len() as f64);
        }
        let mut clusters =
            Clusters { series, cluster_of, sizes: vec![0; leaders.len() / width], sums: vec![] };
        clusters.recount();
        clusters
    }

    /// Counts and sums again, and drops clusters of one.
    fn recount(&mut self) {
        let mut sizes = vec![0usize; self.sizes.len()];
        self.cluster_of.iter().flatten().for_each(|&cluster| sizes[cluster] += 1);
        let mut kept = 0;
        let number: Vec<Option<usize>> = sizes
            .iter()
            .map(|&size| {
                kept += usize::from(size >= 2);
                (size >= 2).then(|| kept - 1)
            })
            .collect();
        self.sizes = sizes.into_iter().filter(|&size| size >= 2).collect();
        let width = self.series.width();
        self.sums = vec![0.0; kept * width];
        for (i, cluster) in self.cluster_of.iter_mut().enumerate() {
            *cluster = cluster.and_then(|old| number[old]);
            if let Some(cluster) = *cluster {
                let sum = &mut self.sums[cluster * width..(cluster + 1) * width];
                sum.iter_mut().zip(self.series.at(i)).for_each(|(sum, x)| *sum += x);
            }
        }
    }

    /// The clusters' means as series of length 1.
    fn means(&self) -> Vec<f32> {
        let mut means = self.sums.clone();
        for mean in means.chunks_exact_mut(self.series.width()) {
            let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
            mean.iter_mut().for_each(|x| *x /= length);
        }
        means
    }

    /// Joins clusters whose mean correlation with each other is near that within one.
    fn join_alike(&mut self) {
        let width = self.series.width();
        let within: Vec<f32> = self
            .sums
            .chunks_exact(width)
            .zip(&self.sizes)
            .map(|(sum, &size)| {
                let (square, size) = (sum.iter().map(|x| x * x).sum::<f32>(), size as f32);
                ((square - size) / (size * (size - 1.0))).max(0.0)
            })
            .collect();
        let mut into: Vec<usize> = (0..self.sizes.len()).collect();
        let mut near = Vec::new();
        for (cluster, sum) in self.sums.chunks_exact(width).enumerate() {
            products(sum, &self.sums[..cluster * width], width, &mut near);
            let alike = near.iter().enumerate().position(|(other, product)| {
                let between = product / (self.sizes[cluster] * self.sizes[other]) as f32;
                between > 0.0 && between >= ALIKE * (within[cluster] * within[other]).sqrt()
            });
            if let Some(first) = alike {
                into[cluster] = into[first];
            }
        }
        self.cluster_of.iter_mut().flatten().for_each(|cluster| *cluster = into[*cluster]);
        self.recount();
    }

    /// Assigns every series to the cluster it fits best, if any. A member is compared with the others
    /// of its cluster, not with itself.
    fn reassign(&mut self, threshold: f32) {
        let (means, width) = (self.means(), self.series.width());
        let mut near = Vec::new();
        for i in 0..self.series.len() {
            products(self.series.at(i), &means, width, &mut near);
            if let Some(own) = self.cluster_of[i] {
                near[own] = self.fit(i, own);
            }
            let best = near.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            self.cluster_of[i] = best.filter(|(_, r)| **r >= threshold).map(|(cluster, _)| cluster);
        }
        self.recount();
    }

    /// The correlation of a member with the rest of its cluster.
    fn fit(&self, index: usize, cluster: usize) -> f32 {
        let width = self.series.width();
        let sum = &self.sums[cluster * width..(cluster + 1) * width];
        let (mut product, mut square) = (0.0f32, 0.0f32);
        for (x, sum) in self.series.at(index).iter().zip(sum) {
            product += x * (sum - x);
            square += (sum - x) * (sum - x);
        }
        product / square.sqrt().max(1e-12)
    }

    /// The workers of each cluster, with their mean fit.
    fn found(&self) -> Vec<(Vec<usize>, f64)> {
        let mut found = vec![(Vec::new(), 0.0); self.sizes.len()];
        for (i, cluster) in self.cluster_of.iter().enumerate() {
            if let Some(cluster) = *cluster {
                found[cluster].0.push(self.series.workers[i]);
                found[cluster].1 += f64::from(self.fit(i, cluster));
            }
        }
        found
            .into_iter()
            .map(|(members, sum)| (members.clone(), sum / members.len() as f64))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use paceline_trace::generate;

    use super::*;
    use crate::Changes;

    fn groups(spec: &str, seed: u64) -> WorkerGroups {
        let trace = generate(&spec.parse().expect(spec), seed);
        let mut residuals = Residuals::from_trace(&trace);
        Changes::find(&trace, &mut residuals, &mut |_| {});
        WorkerGroups::find(&trace, &residuals, &mut |_| {})
    }

    /// The groups as ranges of worker numbers, none of which may have a hole.
    fn ranges(groups: &WorkerGroups) -> Vec<(usize, usize)> {
        let mut ranges: Vec<(usize, usize)> = groups
            .groups
            .iter()
            .map(|group| {
                let members: Vec<usize> =
                    group.workers.iter().map(|worker| worker.parse().expect("a number")).collect();
                assert!(members.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{members:?}");
                (members[0], members[members.len() - 1])
            })
            .collect();
        ranges.sort_unstable();
        ranges
    }

    #[test]
    fn the_nodes_of_a_cluster_are_its_groups() {
        for seed in 1..6 {
            let found = groups("nodes158", seed);
            assert_eq!(ranges(&found), [(0, 39), (40, 78), (79, 118), (119, 157)], "{seed}");
            assert!(found.groups.iter().all(|group| group.correlation > 0.5));
        }
        let shifted = groups("shift48", 1);
        assert_eq!(ranges(&shifted), [(0, 7), (8, 15), (16, 23), (24, 31), (32, 39), (40, 47)]);
        let with_stalls = groups("nodes16-stalls", 1);
        assert_eq!(ranges(&with_stalls), [(0, 3), (4, 7), (8, 11), (12, 15)]);
    }

    #[test]
    fn independent_workers_make_no_groups() {
        for spec in ["iid-lognormal", "iid-exp", "iid-pareto", "ar:n=64", "stalls:n=64"] {
            for seed in 1..4 {
                assert_eq!(groups(spec, seed).groups, [], "{spec} {seed}");
            }
        }
    }

    #[test]
    fn tiny_traces_make_no_groups() {
        for spec in ["iid-lognormal:n=1", "iid-lognormal:n=2,rounds=2", "nodes158:n=4,rounds=10"] {
            assert_eq!(groups(spec, 1).groups, [], "{spec}");
        }
    }
}
