//! The most likely common shift of logistic residuals, censored ones by their survival: the input of
//! the inference networks.

/// A worker's deviation from its prediction, in units of the shift, and the unit over its scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deviation {
    pub(crate) by: f32,
    pub(crate) per_scale: f32,
    pub(crate) observed: bool,
}

impl Deviation {
    /// The slope of its log likelihood at a shift, and the information.
    fn slope(&self, at: f32) -> (f32, f32) {
        let above = crate::math::sigmoid((self.by - at) * self.per_scale);
        let curve = above * (1.0 - above) * self.per_scale * self.per_scale;
        match self.observed {
            true => ((2.0 * above - 1.0) * self.per_scale, 2.0 * curve),
            false => (above * self.per_scale, curve),
        }
    }
}

/// The most likely shift, and the information behind it (one over its variance).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CommonShift {
    pub(crate) at: f32,
    pub(crate) information: f32,
}

impl CommonShift {
    /// Its derivative by a worker's prediction.
    pub(crate) fn moves_with(&self, off: &Deviation) -> f32 {
        -off.slope(self.at).1 / self.information
    }
}

/// Information behind `expected`, so that the shift is defined without data.
const HOLD: f32 = 0.02;
const STEPS: usize = 8;

/// Newton's method from the median of observed deviations, or from `expected`.
pub(crate) fn most_likely(all: &[Deviation], expected: f32) -> CommonShift {
    let mut seen: Vec<f32> = all.iter().filter(|off| off.observed).map(|off| off.by).collect();
    let mut at = expected;
    if !seen.is_empty() {
        let middle = seen.len() / 2;
        at = *seen.select_nth_unstable_by(middle, f32::total_cmp).1;
    }
    let mut information = HOLD;
    for _ in 0..STEPS {
        let mut slope = HOLD * (expected - at);
        information = HOLD;
        for off in all {
            let (slope_of, information_of) = off.slope(at);
            slope += slope_of;
            information += information_of;
        }
        let step = (slope / information).clamp(-1.0, 1.0);
        at += step;
        if step.abs() < 1e-3 {
            break;
        }
    }
    CommonShift { at, information }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_shift_is_found_though_the_slower_half_is_censored() {
        let times: Vec<f32> = (1..200)
            .map(|i| {
                let p = i as f32 / 200.0;
                1.5 + (p / (1.0 - p)).ln()
            })
            .collect();
        let off = |by: f32, observed: bool| Deviation { by, per_scale: 1.0, observed };
        let whole: Vec<Deviation> = times.iter().map(|&x| off(x, true)).collect();
        let found = most_likely(&whole, 0.0);
        assert!((found.at - 1.5).abs() < 0.02, "{found:?}");
        let cut: Vec<Deviation> = times.iter().map(|&x| off(x.min(1.5), x <= 1.5)).collect();
        let found = most_likely(&cut, 0.0);
        assert!((found.at - 1.5).abs() < 0.05, "{found:?}");
    }
}
