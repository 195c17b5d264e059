//! The target of a comparison.

use std::fmt;

/// A test accuracy or loss to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    /// At least this share of correct predictions.
    Accuracy(f64),
    /// At most this mean loss.
    Loss(f64),
}

impl Target {
    /// When accuracies or losses, as (seconds, value), first reach the target.
    pub(crate) fn reached(self, accuracies: &[(f64, f64)], losses: &[(f64, f64)]) -> Option<f64> {
        match self {
            Target::Accuracy(accuracy) => crossing(accuracies, accuracy),
            Target::Loss(loss) => {
                let gains: Vec<(f64, f64)> = losses.iter().map(|&(x, y)| (x, -y)).collect();
                crossing(&gains, -loss)
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Accuracy(accuracy) => write!(f, "{:.1} % test accuracy", 100.0 * accuracy),
            Target::Loss(loss) => write!(f, "a test loss of {loss}"),
        }
    }
}

/// When a curve first reaches a height, by linear interpolation.
fn crossing(curve: &[(f64, f64)], height: f64) -> Option<f64> {
    let mut before: Option<(f64, f64)> = None;
    for &(x, y) in curve {
        if y >= height {
            // The curve is assumed to start at zero, or at its first point if that is lower.
            let (x0, y0) = before.unwrap_or((0.0, y.min(0.0)));
            let part = if y > y0 { (height - y0) / (y - y0) } else { 1.0 };
            return Some(x0 + part.clamp(0.0, 1.0) * (x - x0));
        }
        before = Some((x, y));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_crossed_between_two_measurements() {
        let curve = [(1.0, 0.4), (3.0, 0.8), (4.0, 0.9)];
        let near = |height: f64, at: f64| (crossing(&curve, height).unwrap() - at).abs() < 1e-9;
        assert!(near(0.6, 2.0) && near(0.2, 0.5));
        assert_eq!(crossing(&curve, 0.95), None);
    }

    #[test]
    fn a_loss_is_reached_from_above() {
        let losses = [(1.0, 2.0), (2.0, 1.0), (3.0, 0.5)];
        assert_eq!(Target::Loss(1.5).reached(&[], &losses), Some(1.5));
        assert_eq!(Target::Loss(0.4).reached(&[], &losses), None);
    }
}
