//! `full`: wait for every live worker.

use paceline_core::{Decision, Policy, RoundView};

/// Plain synchronous SGD. The machine itself cuts when no worker is left to wait for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Full;

impl Policy for Full {
    fn name(&self) -> String {
        "full".to_owned()
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        Decision::Wait { until: None, arrivals: view.outstanding_count() }
    }
}
