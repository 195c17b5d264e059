//! `static:N` and `static:FRACTION`: wait for the first N (backup workers, Chen et al. 2016).

use std::fmt;

use paceline_core::{Decision, Policy, RoundView};

/// How many contributions a round waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cutoff {
    /// This many, or all participants if they are fewer. At least 1.
    Count(u32),
    /// This share of the participants, rounded up, so that 0.9 of 4 is 4. In (0, 1].
    Fraction(f64),
}

impl Cutoff {
    /// The count for a number of participants; at least 1.
    pub fn count(self, participants: usize) -> usize {
        let wanted = match self {
            Cutoff::Count(n) => n as usize,
            // 0.9 × 10 is 9.000…02 in binary: a value within rounding of a whole number is that number.
            Cutoff::Fraction(f) => (f * participants as f64 - 1e-9).ceil() as usize,
        };
        wanted.clamp(1, participants.max(1))
    }
}

impl fmt::Display for Cutoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cutoff::Count(n) => write!(f, "{n}"),
            // A whole fraction must not read as a count.
            Cutoff::Fraction(x) => write!(f, "{x:?}"),
        }
    }
}

/// Waits for a fixed count or share of the round's live workers.
#[derive(Debug, Clone, Copy)]
pub struct Static(pub Cutoff);

impl Policy for Static {
    fn name(&self) -> String {
        format!("static:{}", self.0)
    }

    fn decide(&mut self, view: &RoundView<'_>) -> Decision {
        view.wait_for(self.0.count(view.participants()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cutoff: Cutoff, participants: usize, wanted: usize) {
        assert_eq!(cutoff.count(participants), wanted, "{cutoff} of {participants}");
    }

    #[test]
    fn a_cutoff_never_asks_for_more_than_there_are_or_for_none() {
        check(Cutoff::Count(3), 4, 3);
        check(Cutoff::Count(3), 2, 2);
        check(Cutoff::Count(3), 0, 1);
        check(Cutoff::Fraction(0.9), 10, 9);
        check(Cutoff::Fraction(0.9), 4, 4);
        check(Cutoff::Fraction(0.9), 158, 143);
        check(Cutoff::Fraction(0.3), 10, 3);
        check(Cutoff::Fraction(0.01), 10, 1);
        check(Cutoff::Fraction(1.0), 7, 7);
    }
}
