//! The loss of a round against the oracle, by cause.

use std::{iter::Sum, ops::Add};

use paceline_sim::RoundOutcome;
use serde::Serialize;

/// A cut: what the round gained by then, in contributions, and when, in seconds since the opening.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Cut {
    pub(super) accepted: f64,
    pub(super) seconds: f64,
}

impl Cut {
    /// Contributions beyond those that the oracle gains in the same time at its mean rate.
    pub(super) fn value(self, oracle_rate: f64) -> f64 {
        self.accepted - oracle_rate * self.seconds
    }
}

impl From<&RoundOutcome> for Cut {
    fn from(round: &RoundOutcome) -> Cut {
        Cut { accepted: round.accepted, seconds: round.seconds }
    }
}

/// The cuts of one round that are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuts {
    /// The oracle's, which has the greatest value.
    pub(super) oracle: Cut,
    /// The cut that was made.
    pub(super) made: Cut,
    /// The cut without an audit or a trial of full sync.
    pub(super) unmeasured: Cut,
    /// The best part's, if another part led.
    pub(super) best_part: Option<Cut>,
}

/// Contributions lost against the oracle: the total, which is the sum of the causes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Loss {
    #[serde(rename = "lost")]
    pub(super) total: f64,
    pub(super) too_long: f64,
    pub(super) too_early: f64,
    /// Negative where the wait paid.
    pub(super) audits: f64,
    pub(super) wrong_part: f64,
}

impl Loss {
    /// Goes from the cut that was made to the oracle's, by way of the others; every step is a cause.
    pub(super) fn new(cuts: Cuts, oracle_rate: f64) -> Loss {
        let value = |cut: Cut| cut.value(oracle_rate);
        let Cuts { oracle, made, unmeasured, best_part } = cuts;
        let better = best_part.filter(|&cut| value(cut) > value(unmeasured));
        let chosen = better.unwrap_or(unmeasured);
        let timing = value(oracle) - value(chosen);
        let late = chosen.seconds > oracle.seconds;
        Loss {
            total: value(oracle) - value(made),
            too_long: if late { timing } else { 0.0 },
            too_early: if late { 0.0 } else { timing },
            audits: value(unmeasured) - value(made),
            wrong_part: value(chosen) - value(unmeasured),
        }
    }

    /// The causes by name.
    pub(super) fn causes(&self) -> [(&'static str, f64); 4] {
        [
            ("waiting too long", self.too_long),
            ("cutting too early", self.too_early),
            ("audits", self.audits),
            ("wrong part", self.wrong_part),
        ]
    }
}

impl Add for Loss {
    type Output = Loss;

    fn add(self, other: Loss) -> Loss {
        Loss {
            total: self.total + other.total,
            too_long: self.too_long + other.too_long,
            too_early: self.too_early + other.too_early,
            audits: self.audits + other.audits,
            wrong_part: self.wrong_part + other.wrong_part,
        }
    }
}

impl Sum for Loss {
    fn sum<I: Iterator<Item = Loss>>(losses: I) -> Loss {
        losses.fold(Loss::default(), Loss::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORACLE: Cut = Cut { accepted: 8.0, seconds: 1.0 };
    const LATE: Cut = Cut { accepted: 10.0, seconds: 3.0 };

    #[track_caller]
    fn check(made: Cut, unmeasured: Cut, best_part: Option<Cut>, causes: [f64; 4]) {
        let loss = Loss::new(Cuts { oracle: ORACLE, made, unmeasured, best_part }, 4.0);
        assert_eq!(loss.causes().map(|(_, lost)| lost), causes);
        assert_eq!(loss.total, causes.iter().sum::<f64>());
    }

    #[test]
    fn every_cause_has_its_share_of_the_loss() {
        let early = Cut { accepted: 2.0, seconds: 0.5 };
        let all = Cut { accepted: 12.0, seconds: 6.0 };
        check(ORACLE, ORACLE, None, [0.0; 4]);
        check(LATE, LATE, None, [6.0, 0.0, 0.0, 0.0]);
        check(early, early, None, [0.0, 4.0, 0.0, 0.0]);
        check(all, LATE, None, [6.0, 0.0, 10.0, 0.0]);
        check(all, LATE, Some(early), [0.0, 4.0, 10.0, 2.0]);
        check(LATE, early, None, [0.0, 4.0, 2.0, 0.0]);
    }

    #[test]
    fn an_audit_that_paid_is_a_gain_and_a_worse_part_no_loss() {
        let early = Cut { accepted: 1.0, seconds: 0.75 };
        check(ORACLE, early, None, [0.0, 6.0, -6.0, 0.0]);
        check(early, early, Some(LATE), [0.0, 6.0, 0.0, 0.0]);
    }
}
