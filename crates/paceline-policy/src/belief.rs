//! What `auto` believes about a round, for those who explain it.

use std::fmt;

use paceline_core::Time;

/// The beliefs behind a round of `auto`.
#[derive(Debug, Clone, PartialEq)]
pub struct Belief {
    /// The part that leads, by the name of its policy: `filter`, `static:15`, `full`.
    pub part: String,
    /// What the part expected when it was first asked; `None` if all arrived before that.
    pub forecast: Option<Forecast>,
    /// When the part would have cut, if the round is audited.
    pub cut_was_due: Option<Time>,
    /// Whether full sync is on trial.
    pub tries_full_sync: bool,
}

/// A part's expectation of the rest of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Gain per second that a further wait must exceed to pay.
    pub rate: f64,
    /// Arrivals expected at the cut.
    pub arrivals: f64,
    /// Seconds from the opening to the expected cut; `None` for a fixed count, which predicts no run-times.
    pub cut: Option<f64>,
}

impl fmt::Display for Belief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.part)?;
        match self.cut_was_due {
            _ if self.tries_full_sync => f.write_str(", on trial"),
            Some(_) => f.write_str(", audited"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cut_was_due: Option<Time>, tries_full_sync: bool, expected: &str) {
        let part = "full".to_owned();
        let belief = Belief { part, forecast: None, cut_was_due, tries_full_sync };
        assert_eq!(belief.to_string(), expected);
    }

    #[test]
    fn a_measured_round_says_so() {
        check(None, false, "full");
        check(Some(Time::ZERO), false, "full, audited");
        check(None, true, "full, on trial");
        check(Some(Time::ZERO), true, "full, on trial");
    }
}
