//! The contenders of a comparison: policies with their options.

use std::{fmt, str::FromStr};

use paceline_core::{Late, Straggler};
use paceline_params::LrScaling;
use paceline_policy::{Cutoff, Objective, PolicySpec};

/// A policy with its options: `auto`, `auto/samples`, `static:6/abort`, `stale:16`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Contender {
    pub(crate) policy: PolicySpec,
    /// A sweep finds the best fixed count.
    pub(crate) sweep: bool,
    pub(crate) straggler: Option<Straggler>,
    pub(crate) late: Late,
    pub(crate) rebalance: bool,
    /// Batches are not balanced by cost.
    pub(crate) unbalanced: bool,
    /// Rounds never wait for returned samples.
    pub(crate) impatient: bool,
    /// Homes whose contributions count rarely get a larger weight.
    pub(crate) reweigh: bool,
    pub(crate) objective: Objective,
    pub(crate) scaling: LrScaling,
}

/// Shares that a sweep for the best fixed count tries after `full`; with 8 workers, every count.
const SHARES: [f64; 11] = [0.95, 0.9, 0.8, 0.7, 0.625, 0.5, 0.375, 0.25, 0.1, 0.05, 0.02];

impl Contender {
    fn from_policy(policy: PolicySpec) -> Contender {
        Contender {
            policy,
            sweep: false,
            straggler: None,
            late: Late::Drop,
            rebalance: false,
            unbalanced: false,
            impatient: false,
            reweigh: false,
            objective: policy.objective(),
            scaling: policy.objective().lr_scaling(),
        }
    }

    /// The objective unless the contender names another.
    fn usual_objective(&self) -> Objective {
        // Weights hide the noise scale.
        if self.reweigh { Objective::Samples } else { self.policy.objective() }
    }

    /// The straggler behaviour for a number of micro-batches.
    pub(crate) fn straggler(&self, micro_batches: u32) -> Straggler {
        self.straggler.unwrap_or(match micro_batches > 1 {
            true => Straggler::Salvage,
            false => Straggler::Abort,
        })
    }

    /// The contenders among which a sweep chooses; the contender itself if it is no sweep.
    pub(crate) fn candidates(&self, workers: u32) -> Vec<Contender> {
        let this = Contender { sweep: false, ..*self };
        if !self.sweep {
            return vec![this];
        }
        let mut shares = SHARES.map(Cutoff::Fraction).to_vec();
        shares.dedup_by_key(|share| share.count(workers as usize));
        shares.retain(|share| share.count(workers as usize) < workers as usize);
        let fixed = |share| Contender { policy: PolicySpec::Static(share), ..this };
        [this].into_iter().chain(shares.into_iter().map(fixed)).collect()
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.trim().split('/');
        let mut contender = match words.next().unwrap_or_default() {
            "best-static" => Contender { sweep: true, ..Contender::from_policy(PolicySpec::Full) },
            policy => Contender::from_policy(policy.parse().map_err(|error| format!("{error}"))?),
        };
        let (mut objective, mut scaling) = (None, None);
        for word in words {
            match word {
                "samples" | "progress" if objective.is_some() => {
                    return Err(format!("`{text}`: two objectives"));
                }
                "samples" => objective = Some(Objective::Samples),
                "progress" => objective = Some(Objective::Progress),
                "rebalance" => contender.rebalance = true,
                "unbalanced" => contender.unbalanced = true,
                "impatient" => contender.impatient = true,
                "reweigh" => contender.reweigh = true,
                "fold" => {
                    contender.straggler = Some(Straggler::Finish);
                    contender.late = Late::Fold;
                }
                word => {
                    let straggler = word.parse().map(|s| contender.straggler = Some(s));
                    let scales = word.parse().map(|s| scaling = Some(s));
                    if straggler.is_err() && scales.is_err() {
                        return Err(format!(
                            "`{word}` in `{text}`: a policy's options are samples, progress, \
                             rebalance, unbalanced, impatient, reweigh, abort, finish, salvage, \
                             fold, or a learning-rate scaling (linear, sqrt, adascale, none)"
                        ));
                    }
                }
            }
        }
        contender.objective = objective.unwrap_or(contender.usual_objective());
        contender.scaling = scaling.unwrap_or(contender.objective.lr_scaling());
        let progress = contender.objective == Objective::Progress;
        let finishes = contender.straggler == Some(Straggler::Finish);
        let wrong = match () {
            () if contender.late == Late::Fold && !finishes => "fold needs stragglers that finish",
            () if contender.rebalance && !contender.policy.foresees() => {
                "rebalance needs auto or filter"
            }
            () if progress && !contender.policy.weighs() => {
                "this policy has no objective, so it cannot use progress"
            }
            () if contender.reweigh && progress => {
                "reweigh and progress do not go together: weights hide the noise scale"
            }
            () => return Ok(contender),
        };
        Err(format!("`{text}`: {wrong}"))
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sweep {
            true => write!(f, "best-static")?,
            false => write!(f, "{}", self.policy)?,
        }
        if self.objective != self.usual_objective() {
            write!(f, "/{}", self.objective)?;
        }
        let words = [
            (self.rebalance, "rebalance"),
            (self.unbalanced, "unbalanced"),
            (self.impatient, "impatient"),
            (self.reweigh, "reweigh"),
        ];
        for (_, word) in words.into_iter().filter(|(set, _)| *set) {
            write!(f, "/{word}")?;
        }
        match (self.late, self.straggler) {
            (Late::Fold, _) => write!(f, "/fold")?,
            (Late::Drop, Some(straggler)) => write!(f, "/{straggler}")?,
            (Late::Drop, None) => {}
        }
        if self.scaling != self.objective.lr_scaling() {
            write!(f, "/{}", self.scaling)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_read_back_as_written_and_errors_list_the_options() {
        for text in [
            "auto",
            "auto/samples",
            "auto/samples/abort/sqrt",
            "auto/linear",
            "auto/reweigh",
            "filter/progress",
            "static:0.9",
            "best-static",
            "best-static/abort",
            "filter/rebalance/fold",
            "static:6/impatient/reweigh/abort",
            "async/none",
            "bdsgd:paper",
        ] {
            assert_eq!(text.parse::<Contender>().unwrap().to_string(), text);
        }
        let error = "auto/quickly".parse::<Contender>().unwrap_err();
        assert!(error.contains("quickly") && error.contains("salvage"), "{error}");
        assert!("fastest".parse::<Contender>().unwrap_err().contains("unknown policy"));
    }

    #[test]
    fn a_sweep_tries_full_and_every_share_once() {
        let sweep: Contender = "best-static".parse().unwrap();
        let tried = |workers: u32| {
            let tried = sweep.candidates(workers);
            tried.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(tried(64)[0], "full");
        assert_eq!(tried(64).len(), 12);
        assert!(tried(64).contains(&"static:0.9".to_owned()));
        // 1 to 8 of 8, none twice.
        assert_eq!(tried(8).len(), 8);
        assert_eq!(tried(1), ["full"]);
        assert_eq!("auto".parse::<Contender>().unwrap().candidates(8).len(), 1);
    }
}
