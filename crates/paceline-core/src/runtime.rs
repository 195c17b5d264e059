//! Run-times: how long a worker took, or a lower bound on it.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// From the version's publication (or the worker's own later start) to its contribution being
/// complete on every shard, on the coordinator's clock: pull, compute, push and queueing are inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunTime {
    /// The contribution arrived after this long.
    Observed(Duration),
    /// The contribution had not arrived when the round stopped waiting: the run-time is longer than this.
    Censored {
        /// The lower bound.
        at_least: Duration,
    },
}

impl RunTime {
    /// The run-time, or its lower bound.
    pub fn bound(self) -> Duration {
        match self {
            RunTime::Observed(d) | RunTime::Censored { at_least: d } => d,
        }
    }

    /// The run-time of a whole portion, where this is the run-time of a share `load` of one. Every
    /// other run-time in the core is as the coordinator's clock measured it; this is the only
    /// conversion.
    pub fn per_portion(self, load: f64) -> RunTime {
        match self {
            RunTime::Observed(time) => RunTime::Observed(time.div_f64(load)),
            RunTime::Censored { at_least } => {
                RunTime::Censored { at_least: at_least.div_f64(load) }
            }
        }
    }

    /// Whether only a lower bound is known.
    pub fn is_censored(self) -> bool {
        matches!(self, RunTime::Censored { .. })
    }
}

impl fmt::Display for RunTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_censored() { ">=" } else { "" };
        write!(f, "{sign}{:.6}", self.bound().as_secs_f64())
    }
}
