//! Under what conditions policies are compared.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use anyhow::{Context, Result, ensure};
use paceline_faults::{FaultPlan, SlownessSpec};
use paceline_sim::{Recorded, World};
use paceline_trace::{ReadOptions, SyntheticSpec, Trace, generate, read};
use paceline_virtual::Paced;

use crate::config::Usage;

/// Run-times: as a live run is slowed, as a trace says, or drawn like one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scenario {
    /// In the language of `--stragglers`; nothing is `none`.
    Slowed(SlownessSpec),
    /// Done to real processes: live only, in the same language.
    Disturbed(String),
    /// Recorded.
    Trace(PathBuf),
    /// Drawn.
    Synthetic(SyntheticSpec),
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            _ if text == "none" => Ok(Scenario::Slowed(SlownessSpec::default())),
            Some(("trace", path)) => Ok(Scenario::Trace(PathBuf::from(path))),
            Some(("synthetic", spec)) => {
                spec.parse().map(Scenario::Synthetic).map_err(|error| format!("{error}"))
            }
            _ => match text.parse::<SlownessSpec>() {
                Ok(spec) => Ok(Scenario::Slowed(spec)),
                Err(_) => match text.parse::<FaultPlan>() {
                    Ok(_) => Ok(Scenario::Disturbed(text.to_owned())),
                    Err(error) => Err(format!("{error}; or none, trace:FILE, synthetic:SPEC")),
                },
            },
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scenario::Slowed(spec) if *spec == SlownessSpec::default() => write!(f, "none"),
            Scenario::Slowed(spec) => write!(f, "{spec}"),
            Scenario::Disturbed(text) => write!(f, "{text}"),
            Scenario::Trace(path) => write!(f, "trace:{}", path.display()),
            Scenario::Synthetic(spec) => write!(f, "synthetic:{spec}"),
        }
    }
}

/// A scenario for so many workers, ready to be drawn from under any seed.
#[derive(Debug, Clone)]
pub(super) enum Conditions {
    Slowed(SlownessSpec, u32),
    Recorded(Arc<Trace>),
    /// Nothing that can be foretold.
    Live(u32),
}

impl Conditions {
    pub(super) fn new(scenario: &Scenario, workers: u32, live: bool) -> Result<Conditions> {
        let trace = match scenario {
            Scenario::Slowed(spec) => {
                ensure!(
                    live || (0..workers).all(|worker| spec.killed_at(worker).is_none()),
                    Usage(format!("{scenario}: kill is for live runs; add --live"))
                );
                let most = spec.workers().into_iter().max();
                ensure!(
                    most.is_none_or(|most| most < workers),
                    Usage(format!("{scenario}: there are {workers} workers, numbered from 0"))
                );
                // Who is killed is back after a time that nobody foretells.
                let killed = (0..workers).any(|worker| spec.killed_at(worker).is_some());
                return Ok(match killed {
                    true => Conditions::Live(workers),
                    false => Conditions::Slowed(spec.clone(), workers),
                });
            }
            Scenario::Disturbed(text) => {
                let wrong = format!("{scenario} is done to real processes: it needs --live");
                ensure!(live, Usage(wrong));
                let named = text.parse::<FaultPlan>()?.workers();
                ensure!(
                    named.iter().all(|&worker| worker < workers),
                    Usage(format!("{scenario}: there are {workers} workers, numbered from 0"))
                );
                return Ok(Conditions::Live(workers));
            }
            Scenario::Trace(_) | Scenario::Synthetic(_) if live => {
                return Err(Usage(format!("{scenario}: live runs have no replay")).into());
            }
            Scenario::Trace(path) => read(path, &ReadOptions::default())
                .with_context(|| format!("failed to read {}", path.display()))?,
            Scenario::Synthetic(spec) => generate(spec, 1),
        };
        let there = trace.workers().len();
        ensure!(
            there >= workers as usize,
            Usage(format!("{scenario} has {there} workers, {workers} were asked for"))
        );
        Ok(Conditions::Recorded(Arc::new(first_of(&trace, workers))))
    }

    /// Run-times under a seed; where nothing disturbs a worker it takes a second.
    pub(super) fn world(&self, seed: u64) -> Box<dyn World + '_> {
        match self {
            Conditions::Slowed(spec, workers) => Box::new(Paced::new(spec, *workers, 1.0, seed)),
            Conditions::Recorded(trace) => Box::new(Recorded::new(trace, seed)),
            Conditions::Live(workers) => {
                Box::new(Paced::new(&SlownessSpec::default(), *workers, 1.0, seed))
            }
        }
    }
}

/// The first workers of a trace, its median run-time being one second.
fn first_of(trace: &Trace, workers: u32) -> Trace {
    let median = trace.median();
    let names = trace.workers()[..workers as usize].to_vec();
    let mut some = Trace::new(trace.name(), trace.unit(), names);
    for round in 0..trace.rounds() {
        some.push_round(
            trace.row(round).take(workers as usize).map(|cell| cell.scaled(1.0 / median)),
        );
    }
    some
}
