//! The order in which an epoch visits the samples: a permutation determined by seed and epoch alone.

use std::{ops::Range, sync::Arc};

/// Generates the orders of a run. The ledger works with positions in them, so a range of positions is a
/// random subset of the samples, and every holder of this spec knows which.
///
/// The algorithms are part of the protocol: workers of different builds must agree on them.
#[derive(Debug, Clone)]
pub struct OrderSpec {
    /// The run's seed.
    pub seed: u64,
    /// Samples in an epoch.
    pub samples: u32,
    /// Equal parts of the data, each of which keeps its positions ([`home`]); 1 where all workers share the
    /// data.
    pub homes: u32,
    /// The costs by which batches are balanced, if they are.
    pub balance: Option<Costs>,
}

/// The cost of each sample: its relative compute time.
#[derive(Debug, Clone)]
pub struct Costs {
    of: Arc<[f32]>,
    batch: u32,
    /// The cost of a mean batch.
    whole: f64,
}

impl Costs {
    /// `of` is the cost of every sample, in any unit (its length, say); `batch` is the number of samples per
    /// batch.
    pub fn new(of: Arc<[f32]>, batch: u32) -> Costs {
        let sum: f64 = of.iter().copied().map(f64::from).sum();
        let whole = f64::from(batch) * sum / of.len().max(1) as f64;
        Costs { of, batch, whole }
    }

    /// A hash of all costs: the order of an epoch depends on every one of them.
    pub fn fingerprint(of: &[f32]) -> u64 {
        of.iter().fold(of.len() as u64, |hash, cost| mix(hash ^ u64::from(cost.to_bits())))
    }

    /// The cost of these samples, relative to a mean batch.
    pub fn share(&self, samples: &[u32]) -> f64 {
        let cost = |&sample: &u32| self.of.get(sample as usize).copied().map_or(0.0, f64::from);
        samples.iter().map(cost).sum::<f64>() / self.whole
    }
}

/// The positions of part `home` of `homes`, and its samples: both are this range.
pub fn home(samples: u32, home: u32, homes: u32) -> Range<u32> {
    let start = |home: u32| (u64::from(samples) * u64::from(home) / u64::from(homes)) as u32;
    start(home)..start(home + 1)
}

impl OrderSpec {
    /// Orders of all samples, with neither homes nor balancing.
    pub fn new(seed: u64, samples: u32) -> OrderSpec {
        OrderSpec { seed, samples, homes: 1, balance: None }
    }

    /// The order of `epoch`.
    pub fn epoch(&self, epoch: u32) -> EpochOrder {
        let mut dice = Dice(mix(self.seed ^ mix(u64::from(epoch))));
        let mut samples: Vec<u32> = (0..self.samples).collect();
        for part in 0..self.homes {
            let Range { start, end } = home(self.samples, part, self.homes);
            let part = &mut samples[start as usize..end as usize];
            dice.shuffle(part);
            if let Some(Costs { of, batch, .. }) = &self.balance {
                let balanced = balanced(part, of, *batch as usize, &mut dice);
                part.copy_from_slice(&balanced);
            }
        }
        EpochOrder { epoch, samples }
    }
}

/// Batches of about equal cost: each has one sample of every stratum of the cost. In the most expensive
/// strata, which differ the most, the batch with the highest cost so far gets the cheapest sample. The other
/// strata are shuffled, so that each epoch has new batches. Micro-batches are balanced as far as possible,
/// too.
fn balanced(shuffled: &[u32], costs: &[f32], batch: usize, dice: &mut Dice) -> Vec<u32> {
    let batches = shuffled.len() / batch.max(1);
    let (whole, rest) = shuffled.split_at(batches * batch);
    let mut sorted = whole.to_vec();
    let cost = |sample: &u32| costs.get(*sample as usize).copied().unwrap_or(0.0);
    // Stable: samples of equal cost stay shuffled.
    sorted.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    let mut sums = vec![0.0; batches];
    for (i, stratum) in sorted.chunks_mut(batches.max(1)).enumerate().rev() {
        if i + 1 == batch || 4 * (i + 1) <= 3 * batch {
            dice.shuffle(stratum);
        } else {
            level(stratum, &sums, cost);
        }
        sums.iter_mut().zip(&*stratum).for_each(|(sum, sample)| *sum += cost(sample));
    }
    let mut order = Vec::with_capacity(shuffled.len());
    // In bit-reversed order, neighbours are far apart in cost, so every run of them is a representative
    // sample.
    let mut strata: Vec<usize> = (0..batch).collect();
    strata.sort_by_key(|stratum| stratum.reverse_bits());
    for i in 0..batches {
        // If each batch began with the same strata, salvage would always get those.
        strata.rotate_left(dice.below(batch));
        order.extend(strata.iter().map(|stratum| sorted[stratum * batches + i]));
    }
    order.extend(rest);
    order
}

/// Gives the most expensive sample of a stratum, which is sorted by cost, to the batch with the lowest cost
/// so far, and so on.
fn level(stratum: &mut [u32], sums: &[f32], cost: impl Fn(&u32) -> f32) {
    debug_assert!(
        stratum.is_sorted_by(|a, b| cost(a) <= cost(b)),
        "strata are cut from what is sorted"
    );
    let mut poorest: Vec<usize> = (0..sums.len()).collect();
    poorest.sort_by(|&a, &b| sums[a].total_cmp(&sums[b]));
    let cheapest_first = stratum.to_vec();
    for (&batch, &sample) in poorest.iter().zip(cheapest_first.iter().rev()) {
        stratum[batch] = sample;
    }
}

/// A permutation of the samples.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    epoch: u32,
    samples: Vec<u32>,
}

impl EpochOrder {
    /// Placeholder before the first epoch.
    pub fn none() -> Self {
        EpochOrder { epoch: u32::MAX, samples: Vec::new() }
    }

    /// Its epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The samples at positions `start..end`; `None` where the range leaves the epoch.
    pub fn samples(&self, start: u32, end: u32) -> Option<&[u32]> {
        self.samples.get(start as usize..end as usize)
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    /// Fisher–Yates.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// Multiply-shift maps 64 random bits to `0..n` with bias below 2⁻³².
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(GOLDEN);
        ((u128::from(mix(self.0)) * n as u128) >> 64) as usize
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut samples: Vec<u32>) -> Vec<u32> {
        samples.sort_unstable();
        samples
    }

    #[test]
    fn an_order_is_a_permutation_and_differs_by_seed_and_epoch() {
        let order = |seed, epoch| OrderSpec::new(seed, 1000).epoch(epoch).samples;
        assert_eq!(sorted(order(1, 0)), (0..1000).collect::<Vec<_>>());
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn the_order_is_value_stable() {
        let order = OrderSpec::new(7, 10).epoch(3);
        assert_eq!(order.samples(0, 10), Some([1, 7, 8, 2, 6, 5, 3, 9, 4, 0].as_slice()));
        assert_eq!(order.samples(5, 11), None);
    }

    #[test]
    fn what_lives_somewhere_stays_there() {
        let order = OrderSpec { homes: 3, ..OrderSpec::new(7, 100) }.epoch(0);
        for part in 0..3 {
            let Range { start, end } = home(100, part, 3);
            let there = order.samples(start, end).unwrap().to_vec();
            assert_ne!(there, (start..end).collect::<Vec<_>>());
            assert_eq!(sorted(there), (start..end).collect::<Vec<_>>());
        }
    }

    #[test]
    fn batches_and_micro_batches_balanced_by_cost_are_alike_and_still_random() {
        // A few samples cost a hundred times as much as most.
        let costs: Arc<[f32]> = (0..1_003).map(|i| (f64::from(i) / 200.0).exp() as f32).collect();
        let plain = OrderSpec::new(7, 1_003);
        let balance = Some(Costs::new(Arc::clone(&costs), 32));
        let even = OrderSpec { balance, ..plain.clone() };
        let spread = |spec: &OrderSpec, size: usize| {
            let order = spec.epoch(0).samples;
            let sum = |of: &[u32]| of.iter().map(|&s| f64::from(costs[s as usize])).sum::<f64>();
            let sums: Vec<f64> = order.chunks_exact(size).map(sum).collect();
            let most = sums.iter().copied().fold(0.0, f64::max);
            most * sums.len() as f64 / sums.iter().sum::<f64>()
        };
        assert!(spread(&plain, 32) > 1.25, "{}", spread(&plain, 32));
        assert!(spread(&even, 32) < 1.05, "{}", spread(&even, 32));
        assert!(spread(&even, 8) < 0.8 * spread(&plain, 8), "{}", spread(&even, 8));
        let order = even.epoch(0).samples;
        assert_eq!(sorted(order.clone()), (0..1_003).collect::<Vec<_>>());
        assert_ne!(order, even.epoch(1).samples);
    }
}
