//! Objectives: what a round's contributions are worth.

use std::{fmt, str::FromStr};

use paceline_params::LrScaling;
use serde::{Deserialize, Serialize};

/// What to maximise per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Samples.
    #[default]
    Samples,
    /// Progress: B/(B + 𝓑) for B samples, 𝓑 being the gradient noise scale. This is the progress of
    /// B samples under a learning rate that follows AdaScale's gain.
    Progress,
}

impl Objective {
    /// The learning-rate scaling under which a round's progress is what the objective counts.
    pub fn lr_scaling(self) -> LrScaling {
        match self {
            Objective::Samples => LrScaling::Linear,
            Objective::Progress => LrScaling::AdaScale,
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Objective::Samples => "samples",
            Objective::Progress => "progress",
        })
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "samples" => Ok(Objective::Samples),
            "progress" => Ok(Objective::Progress),
            other => Err(format!("unknown objective `{other}`: use samples or progress")),
        }
    }
}

/// An objective with the current noise scale. It grows with the samples, at most linearly.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gain {
    objective: Objective,
    /// The noise scale, in samples; unknown at first.
    noise: Option<f64>,
}

impl Gain {
    pub(crate) fn new(objective: Objective) -> Gain {
        Gain { objective, noise: None }
    }

    pub(crate) fn learn(&mut self, noise: f64) {
        self.noise = Some(noise);
    }

    /// The gain of a round closed with `weight` samples, in samples of a small round: 𝓑·B/(B + 𝓑).
    pub(crate) fn value(&self, weight: f64) -> f64 {
        match (self.objective, self.noise) {
            (Objective::Progress, Some(noise)) => weight * noise / (weight + noise),
            _ => weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_saturates_at_the_noise_and_samples_do_not() {
        let mut gain = Gain::new(Objective::Progress);
        assert_eq!(gain.value(500.0), 500.0, "the noise scale is not known yet");
        gain.learn(100.0);
        assert_eq!(gain.value(100.0), 50.0);
        assert!(gain.value(1e9) < 100.0 && gain.value(1.0) > 0.98);
        let mut samples = Gain::new(Objective::Samples);
        samples.learn(100.0);
        assert_eq!(samples.value(1e6), 1e6);
    }
}
