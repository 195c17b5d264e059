//! `empirical`: all run-times of the last rounds are draws from one distribution, pooled over workers,
//! with survival by product limit (Q10).

use paceline_core::{Round, RunTime, WorkerId};

use super::{Predictor, log_seconds, residuals::ResidualDistribution};
use crate::scene::Scene;

/// Rounds remembered.
const MEMORY: f64 = 20.0;
/// Log run-times are binned in units of this, finest near the centre.
const UNIT: f64 = 0.1;

/// Pooled run-times.
pub struct Empirical {
    pool: ResidualDistribution,
    /// Log run-time that the bins are centred on; fixed by the first round.
    center: Option<f64>,
}

impl Default for Empirical {
    fn default() -> Self {
        Empirical { pool: ResidualDistribution::new(UNIT), center: None }
    }
}

impl Predictor for Empirical {
    fn name(&self) -> &'static str {
        "empirical"
    }

    fn look(&mut self, scene: &Scene) {
        if self.center.is_none()
            && let Some(middle) = scene.arrived.get(scene.arrived.len() / 2)
        {
            self.center = Some(middle.run_time.max(1e-9).ln());
        }
    }

    fn survival(&self, _worker: WorkerId, log_elapsed: f64) -> f64 {
        self.pool.survival((log_elapsed - self.center.unwrap_or(log_elapsed)) / UNIT)
    }

    fn learn(&mut self, _round: Round, run_times: &[(WorkerId, RunTime)]) {
        let Some(first) = run_times.iter().find(|(_, time)| !time.is_censored()) else {
            return;
        };
        let center = *self.center.get_or_insert(log_seconds(first.1));
        for &(_, time) in run_times {
            let u = (log_seconds(time) - center) / UNIT;
            match time.is_censored() {
                true => self.pool.censor(u, 1.0),
                false => self.pool.observe(u, 1.0),
            }
        }
        self.pool.rebuild(1.0 - 1.0 / MEMORY, UNIT);
    }
}
