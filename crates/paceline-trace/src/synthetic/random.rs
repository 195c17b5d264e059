//! Random clusters: a distribution over the parameters of `mixed`.

use super::{
    SyntheticSpec,
    features::{FEATURES, Feature},
    stream::ComponentStream,
};

/// A distribution over clusters. Cluster k of a seed is the same however many are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomClusters {
    seed: u64,
}

/// The streams of a seed: one per cluster, and one per neighbour of a cluster.
const CLUSTERS: u64 = 1;
const NEIGHBOURS: u64 = 2;

/// Share of changes to a cluster that are to features it has. Others may add one.
const CHANGES_TO_PRESENT: f64 = 0.8;

/// Standard deviation of a small step of a parameter, as a share of its range.
const STEP: f64 = 0.15;

/// A cluster of the distribution: for each feature that it has, where its parameters lie in their
/// ranges, from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomCluster {
    seed: u64,
    positions: Vec<Option<Vec<f64>>>,
}

impl RandomClusters {
    /// The clusters of a seed.
    pub fn new(seed: u64) -> RandomClusters {
        RandomClusters { seed }
    }

    /// Cluster `number`.
    pub fn cluster(self, number: u64) -> RandomCluster {
        let mut stream = ComponentStream::numbered(self.seed, CLUSTERS, number);
        RandomCluster {
            seed: stream.seed(),
            positions: FEATURES.iter().map(|feature| present(feature, &mut stream)).collect(),
        }
    }

    /// Neighbour `number` of a cluster: one to three features are moved a little, drawn anew, added or
    /// removed, most often those that it has.
    pub fn neighbour(self, cluster: &RandomCluster, number: u64) -> RandomCluster {
        let mut stream = ComponentStream::numbered(self.seed, NEIGHBOURS, number);
        let mut positions = cluster.positions.clone();
        for _ in 0..=stream.below(3) {
            let at = match stream.uniform() < CHANGES_TO_PRESENT {
                true => cluster.feature(&mut stream),
                false => stream.below(FEATURES.len()),
            };
            positions[at] = moved(positions[at].take(), &FEATURES[at], &mut stream);
        }
        RandomCluster { seed: cluster.seed, positions }
    }
}

impl RandomCluster {
    /// Its parameters.
    pub fn spec(&self) -> SyntheticSpec {
        let present = FEATURES.iter().zip(&self.positions);
        let draws = present.flat_map(|(feature, positions)| {
            feature.draws.iter().zip(positions.iter().flatten().copied())
        });
        let (mut workers, mut rounds) = (0.0, 0.0);
        let mut parameters = Vec::new();
        for (draw, position) in draws {
            let value = draw.value(position, workers, rounds);
            match draw.key {
                "n" => workers = value,
                "rounds" => rounds = value,
                _ => {}
            }
            parameters.push(format!("{}={value}", draw.key));
        }
        let text = format!("mixed:{}", parameters.join(","));
        text.parse().expect("the distribution draws parameters of mixed within their ranges")
    }

    /// The seed that its run-times are drawn with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// One of the features that it has.
    fn feature(&self, stream: &mut ComponentStream) -> usize {
        let has: Vec<usize> =
            (0..FEATURES.len()).filter(|&at| self.positions[at].is_some()).collect();
        has[stream.below(has.len())]
    }
}

/// A feature's positions, if a cluster has it. Draws as much in either case.
fn present(feature: &Feature, stream: &mut ComponentStream) -> Option<Vec<f64>> {
    let chance = stream.uniform();
    let positions = drawn(feature, stream);
    (chance < feature.chance).then_some(positions)
}

fn drawn(feature: &Feature, stream: &mut ComponentStream) -> Vec<f64> {
    feature.draws.iter().map(|_| stream.uniform()).collect()
}

fn moved(
    positions: Option<Vec<f64>>,
    feature: &Feature,
    stream: &mut ComponentStream,
) -> Option<Vec<f64>> {
    let Some(mut positions) = positions else { return Some(drawn(feature, stream)) };
    let kind = stream.uniform();
    if kind < 0.2 && feature.chance < 1.0 {
        return None;
    }
    let at = stream.below(positions.len());
    positions[at] = match kind < 0.4 {
        true => stream.uniform(),
        false => (positions[at] + STEP * stream.normal()).clamp(0.0, 1.0),
    };
    Some(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_keeps_its_parameters_and_its_seed() {
        let clusters = RandomClusters::new(1);
        assert_eq!(
            clusters.cluster(0).spec().to_string(),
            "mixed:n=4,rounds=299,unit=0.251,spread=0.0357,slow=0.0263,slow-factor=1.38,\
             to-slow=0.0519,to-fast=0.0265,node-factor=3.94,common=0.34,common-memory=0.807,\
             own=0.0456,own-memory=0.721,clock=0.0126"
        );
        assert_eq!(clusters.cluster(0).seed(), 1489600331);
        assert_ne!(clusters.cluster(1), clusters.cluster(0));
        assert_ne!(RandomClusters::new(2).cluster(0), clusters.cluster(0));
    }

    #[test]
    fn every_cluster_is_a_valid_spec_that_prints_back() {
        for number in 0..2000 {
            let spec = RandomClusters::new(3).cluster(number).spec();
            assert!((2..=300).contains(&spec.workers()), "{spec}");
            assert!((40..=1000).contains(&spec.rounds()), "{spec}");
            assert!((0.2..=100.0).contains(&spec.at("unit")), "{spec}");
            assert_eq!(spec.to_string().parse().as_ref(), Ok(&spec));
        }
    }

    #[test]
    fn features_are_as_frequent_as_stated() {
        let mut counts = vec![0u32; FEATURES.len()];
        for number in 0..4000 {
            let cluster = RandomClusters::new(5).cluster(number);
            for (count, positions) in counts.iter_mut().zip(&cluster.positions) {
                *count += u32::from(positions.is_some());
            }
        }
        for (feature, count) in FEATURES.iter().zip(counts) {
            let share = f64::from(count) / 4000.0;
            assert!((share - feature.chance).abs() < 0.03, "{}: {share}", feature.draws[0].key);
        }
    }

    #[test]
    fn neighbours_differ_in_a_few_features_and_stay_valid() {
        let clusters = RandomClusters::new(7);
        let cluster = clusters.cluster(4);
        for number in 0..2000 {
            let neighbour = clusters.neighbour(&cluster, number);
            let pairs = neighbour.positions.iter().zip(&cluster.positions);
            assert!(pairs.filter(|(a, b)| a != b).count() <= 3);
            assert_eq!(neighbour, clusters.neighbour(&cluster, number));
            assert!(neighbour.spec().workers() >= 2);
        }
    }
}
