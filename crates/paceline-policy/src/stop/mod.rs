//! Stopping rules: what is done with a prediction.

mod commit;
mod renewal;

use std::fmt;

pub(crate) use commit::best_count;
pub(crate) use renewal::{Plan, best_plan, break_even};

/// What is done with a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Stop inside the round, when no further wait is worth its time.
    Renewal,
    /// Commit to a count before the round (BDSGD).
    Commit,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Renewal => "renewal",
            Rule::Commit => "commit",
        })
    }
}
