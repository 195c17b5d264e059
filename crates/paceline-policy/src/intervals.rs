//! Intervals of order statistics with the promised coverage on any cluster.
//!
//! A prediction's own intervals are as good as its model. Each is widened or narrowed about its median
//! by a factor that follows the outcomes (adaptive conformal inference, Gibbs and Candès 2021): misses
//! widen it and hits narrow it in the ratio that keeps the promised coverage in the long run, whatever
//! the model.

/// Levels of the central intervals.
pub const LEVELS: [f64; 3] = [0.5, 0.9, 0.99];
/// How fast a factor follows, in log time.
const RATE: f64 = 0.1;

/// A central interval of one order statistic at each of [`LEVELS`].
#[derive(Debug, Clone, Default)]
pub struct ConformalInterval {
    /// The logarithm of the factor at each level.
    log_factor: [f64; LEVELS.len()],
}

impl ConformalInterval {
    /// The ends at each level, from draws in ascending order.
    pub fn ends(&self, sorted: &[f64]) -> [(f64, f64); LEVELS.len()] {
        let at = |level: f64| sorted[((sorted.len() - 1) as f64 * level).round() as usize];
        let middle = at(0.5);
        let mut ends = [(0.0, 0.0); LEVELS.len()];
        for ((ends, level), factor) in ends.iter_mut().zip(LEVELS).zip(self.log_factor) {
            let reach = |end: f64| middle + factor.exp() * (end - middle);
            *ends = (reach(at(0.5 - 0.5 * level)), reach(at(0.5 + 0.5 * level)));
        }
        ends
    }

    /// Learns the value `found` that these draws predicted; returns at which levels it lay inside.
    pub fn learn(&mut self, sorted: &[f64], found: f64) -> [bool; LEVELS.len()] {
        let inside = self.ends(sorted).map(|(from, to)| (from..=to).contains(&found));
        for ((factor, level), inside) in self.log_factor.iter_mut().zip(LEVELS).zip(inside) {
            *factor += RATE * if inside { level - 1.0 } else { level };
        }
        inside
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::ChaCha8Rng};
    use rand_distr::{Distribution, Normal};

    use super::*;

    /// Draws that promise half, and twice, the true spread.
    #[test]
    fn intervals_keep_their_coverage_though_the_prediction_does_not() {
        for wrong in [0.5, 2.0] {
            let mut rng = ChaCha8Rng::seed_from_u64(4);
            let (truth, believed) =
                (Normal::new(0.0, 1.0).expect("a normal"), Normal::new(0.0, wrong).expect("too"));
            let (mut interval, mut held) = (ConformalInterval::default(), [0.0; LEVELS.len()]);
            for round in 0..3000 {
                let mut draws: Vec<f64> = (0..200).map(|_| believed.sample(&mut rng)).collect();
                draws.sort_unstable_by(f64::total_cmp);
                let inside = interval.learn(&draws, truth.sample(&mut rng));
                if round >= 500 {
                    held.iter_mut().zip(inside).for_each(|(h, i)| *h += f64::from(u8::from(i)));
                }
            }
            for (held, level) in held.map(|held| held / 2500.0).into_iter().zip(LEVELS) {
                assert!((held - level).abs() < 0.015, "{wrong}: {held} for {level}");
            }
        }
    }
}
