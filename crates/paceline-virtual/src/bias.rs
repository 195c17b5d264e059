//! Whether updates see samples as they are, or rather the cheap ones.

/// Costs of what was handed out for an update and of what came into it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bias {
    handed_out: Cost,
    came: Cost,
    sum: f64,
    updates: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    sum: f64,
    samples: usize,
}

impl Cost {
    fn add(&mut self, cost: f64, samples: usize) {
        self.sum += cost;
        self.samples += samples;
    }

    fn mean(self) -> Option<f64> {
        (self.samples > 0 && self.sum > 0.0).then(|| self.sum / self.samples as f64)
    }
}

impl Bias {
    pub(crate) fn handed_out(&mut self, cost: f64, samples: usize) {
        self.handed_out.add(cost, samples);
    }

    pub(crate) fn came(&mut self, cost: f64, samples: usize) {
        self.came.add(cost, samples);
    }

    pub(crate) fn closed(&mut self) {
        let (handed_out, came) =
            (std::mem::take(&mut self.handed_out), std::mem::take(&mut self.came));
        if let (Some(handed_out), Some(came)) = (handed_out.mean(), came.mean()) {
            self.sum += came / handed_out - 1.0;
            self.updates += 1;
        }
    }

    /// Over all updates.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.updates > 0).then(|| self.sum / f64::from(self.updates))
    }
}
