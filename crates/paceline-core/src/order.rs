//! The order in which an epoch visits the samples: a permutation known from seed and epoch alone.

/// A permutation of `0..samples`. The ledger speaks of positions in it, so a range of positions is
/// a random subset of the samples and every holder of the seed knows which.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    epoch: u32,
    samples: Vec<u32>,
}

impl EpochOrder {
    /// The order of `epoch` in a run with `seed`. The algorithm (Fisher–Yates on SplitMix64) is
    /// part of the protocol: workers of different builds must agree on it.
    pub fn new(seed: u64, epoch: u32, samples: u32) -> Self {
        let mut order: Vec<u32> = (0..samples).collect();
        let mut state = mix(seed ^ mix(u64::from(epoch)));
        for i in (1..order.len()).rev() {
            state = state.wrapping_add(GOLDEN);
            // Multiply-shift maps 64 random bits to 0..=i with bias below 2⁻³².
            let j = ((u128::from(mix(state)) * (i as u128 + 1)) >> 64) as usize;
            order.swap(i, j);
        }
        EpochOrder { epoch, samples: order }
    }

    /// The epoch this is the order of.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The samples at positions `start..end`; `None` where the range leaves the epoch.
    pub fn samples(&self, start: u32, end: u32) -> Option<&[u32]> {
        self.samples.get(start as usize..end as usize)
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

    #[test]
    fn an_order_is_a_permutation_and_differs_by_seed_and_epoch() {
        let order = |seed, epoch| EpochOrder::new(seed, epoch, 1000).samples.clone();
        let mut sorted = order(1, 0);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn the_order_is_value_stable() {
        let order = EpochOrder::new(7, 3, 10);
        assert_eq!(order.samples(0, 10), Some([1, 7, 8, 2, 6, 5, 3, 9, 4, 0].as_slice()));
        assert_eq!(order.samples(5, 11), None);
    }
}
