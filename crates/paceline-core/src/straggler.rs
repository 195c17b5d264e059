//! Settings for stragglers: their behaviour at the cut, and the use of their late contributions.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A straggler's behaviour at the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Straggler {
    /// Stops as soon as it can and takes the new round; its run-time stays censored.
    #[default]
    Abort,
    /// Completes its work, reports its run-time, and misses the rounds in between.
    Finish,
    /// Pushes its finished micro-batches with their weight at once, and takes the new round.
    Salvage,
}

impl Straggler {
    /// Whether finished micro-batches count one by one at a cut.
    pub fn counts_parts(self) -> bool {
        match self {
            Straggler::Salvage => true,
            Straggler::Abort | Straggler::Finish => false,
        }
    }

    /// Whether a straggler keeps its work beyond the close of its round, and so is not told of cuts.
    pub fn keeps_work(self) -> bool {
        match self {
            Straggler::Finish => true,
            Straggler::Abort | Straggler::Salvage => false,
        }
    }
}

/// The treatment of a contribution that is complete after its round has closed, where stragglers finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Late {
    /// It is dropped; its samples go to other workers.
    #[default]
    Drop,
    /// It enters the open round, or the next, weighted by its staleness ([`Late::share`]).
    Fold,
}

impl Late {
    /// The weight of a gradient that is `age` versions old: 1/(1 + age), as in staleness-aware asynchronous
    /// SGD (Zhang et al. 2016), shifted so that a gradient that is not late has weight 1.
    pub fn share(age: u64) -> f64 {
        1.0 / (1.0 + age as f64)
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Late::Drop => "drop",
            Late::Fold => "fold",
        })
    }
}

impl FromStr for Late {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "drop" => Ok(Late::Drop),
            "fold" => Ok(Late::Fold),
            other => {
                Err(format!("unknown treatment of late gradients `{other}`: use drop or fold"))
            }
        }
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Straggler::Abort => "abort",
            Straggler::Finish => "finish",
            Straggler::Salvage => "salvage",
        })
    }
}

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "abort" => Ok(Straggler::Abort),
            "finish" => Ok(Straggler::Finish),
            "salvage" => Ok(Straggler::Salvage),
            other => {
                Err(format!("unknown straggler behaviour `{other}`: use abort, finish or salvage"))
            }
        }
    }
}
