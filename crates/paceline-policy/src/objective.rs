//! Objectives: what a round's contributions are worth.

/// What a round gains by closing with so many samples. Grows with them, never faster than they do.
pub trait Objective: Send {
    /// As the user would write it.
    fn name(&self) -> &'static str;

    /// The gain of a round closed with `weight` samples.
    fn gain(&self, weight: f64) -> f64;
}

/// Throughput: every sample counts alike.
#[derive(Debug, Clone, Copy, Default)]
pub struct Samples;

impl Objective for Samples {
    fn name(&self) -> &'static str {
        "samples"
    }

    fn gain(&self, weight: f64) -> f64 {
        weight
    }
}
