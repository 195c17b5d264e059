//! Stopping rules: how a prediction becomes a cut.

mod commit;
mod renewal;

use std::fmt;

pub(crate) use commit::best_count;
pub(crate) use renewal::{WaitPlan, best_plan, break_even};

/// A stopping rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Cut inside the round, when no further wait is worth its time.
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
