//! Factors that drift: AR(1) in the logarithm.

use super::stream::{Component, ComponentStream};

/// Parameters of a drift.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DriftModel {
    /// Autocorrelation after one unit of time, from 0 to below 1.
    pub(super) coefficient: f64,
    /// Its stationary standard deviation.
    pub(super) stationary_sd: f64,
}

impl DriftModel {
    /// The drift with innovations of this standard deviation.
    pub(super) fn of_innovations(coefficient: f64, sd: f64) -> DriftModel {
        DriftModel { coefficient, stationary_sd: sd / (1.0 - coefficient * coefficient).sqrt() }
    }

    /// Its stationary variance.
    pub(super) fn variance(self) -> f64 {
        self.stationary_sd * self.stationary_sd
    }
}

/// One or more independent drifts of the same model; they start in the stationary distribution.
pub(super) struct Drift {
    model: DriftModel,
    stream: ComponentStream,
    values: Vec<f64>,
}

impl Drift {
    pub(super) fn new(model: DriftModel, count: usize, seed: u64, component: Component) -> Drift {
        let mut stream = ComponentStream::new(seed, component);
        let values = (0..count).map(|_| model.stationary_sd * stream.normal()).collect();
        Drift { model, stream, values }
    }

    /// Lets time pass. Any number of steps with the same sum have the same distribution.
    pub(super) fn advance(&mut self, elapsed: f64) {
        let left = self.model.coefficient.powf(elapsed);
        let sd = self.model.stationary_sd * (1.0 - left * left).max(0.0).sqrt();
        for value in &mut self.values {
            *value = left * *value + sd * self.stream.normal();
        }
    }

    /// Their current values.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::statistics::{autocorrelation, sd};

    fn path(model: DriftModel, elapsed: f64) -> Vec<f64> {
        let mut drift = Drift::new(model, 1, 3, Component::Own);
        (0..100_000)
            .map(|_| {
                drift.advance(elapsed);
                drift.values()[0]
            })
            .collect()
    }

    #[test]
    fn the_long_run_is_as_stated() {
        let own = path(DriftModel { coefficient: 0.8, stationary_sd: 0.08 }, 1.0);
        assert!((sd(&own) - 0.08).abs() < 0.002, "{}", sd(&own));
        assert!((autocorrelation(&own, 1) - 0.8).abs() < 0.01);
        assert!((autocorrelation(&own, 3) - 0.512).abs() < 0.02);

        let common = path(DriftModel::of_innovations(0.95, 0.03), 1.0);
        assert!((sd(&common) - 0.03 / (1.0f64 - 0.9025).sqrt()).abs() < 0.004);
        assert!((autocorrelation(&common, 1) - 0.95).abs() < 0.005);
    }

    #[test]
    fn half_a_step_moves_half_as_far() {
        let model = DriftModel { coefficient: 0.8, stationary_sd: 0.08 };
        let halves = path(model, 0.5);
        assert!((sd(&halves) - 0.08).abs() < 0.003);
        assert!((autocorrelation(&halves, 2) - 0.8).abs() < 0.015);
    }

    #[test]
    fn it_starts_in_its_long_run() {
        let model = DriftModel { coefficient: 0.99, stationary_sd: 0.5 };
        let start = Drift::new(model, 20_000, 3, Component::Own);
        assert!((sd(start.values()) - 0.5).abs() < 0.01);
    }
}
