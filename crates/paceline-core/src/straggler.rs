//! What becomes of those who are past the cut.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a straggler does at the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Straggler {
    /// Stops at the next micro-batch and takes the new round; its run-time stays censored.
    #[default]
    Abort,
    /// Completes, reports its run-time, and misses the rounds meanwhile.
    Finish,
    /// Pushes the micro-batches that it has finished, with their weight, and takes the new round.
    Salvage,
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
