//! The scenarios under which policies are compared.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use anyhow::{Context, Result, ensure};
use paceline_faults::{FaultPlan, SlownessSpec};
use paceline_report::Usage;
use paceline_sim::{Recorded, World};
use paceline_trace::{ReadOptions, SyntheticSpec, Trace, generate, read};

use crate::virtual_clock::Paced;

/// Where run-times come from: injected slowness, a recorded trace, or a synthetic cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ScenarioSpec {
    /// Slowness in the syntax of `--stragglers`; written `none` if empty.
    Slowed(SlownessSpec),
    /// Disturbances of real processes, in the same syntax; live runs only.
    Disturbed(String),
    Trace(PathBuf),
    Synthetic(SyntheticSpec),
}

impl FromStr for ScenarioSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            _ if text == "none" => Ok(ScenarioSpec::Slowed(SlownessSpec::default())),
            Some(("trace", path)) => Ok(ScenarioSpec::Trace(PathBuf::from(path))),
            Some(("synthetic", spec)) => {
                spec.parse().map(ScenarioSpec::Synthetic).map_err(|error| format!("{error}"))
            }
            _ => match text.parse::<SlownessSpec>() {
                Ok(spec) => Ok(ScenarioSpec::Slowed(spec)),
                Err(_) => match text.parse::<FaultPlan>() {
                    Ok(_) => Ok(ScenarioSpec::Disturbed(text.to_owned())),
                    Err(error) => Err(format!("{error}; or none, trace:FILE, synthetic:SPEC")),
                },
            },
        }
    }
}

impl fmt::Display for ScenarioSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScenarioSpec::Slowed(spec) if *spec == SlownessSpec::default() => write!(f, "none"),
            ScenarioSpec::Slowed(spec) => write!(f, "{spec}"),
            ScenarioSpec::Disturbed(text) => write!(f, "{text}"),
            ScenarioSpec::Trace(path) => write!(f, "trace:{}", path.display()),
            ScenarioSpec::Synthetic(spec) => write!(f, "synthetic:{spec}"),
        }
    }
}

/// A scenario for a number of workers, from which any seed draws run-times.
#[derive(Debug, Clone)]
pub(crate) enum Conditions {
    Slowed(SlownessSpec, u32),
    Recorded(Arc<Trace>),
    /// Run-times are not known in advance.
    Live(u32),
}

impl Conditions {
    pub(crate) fn new(scenario: &ScenarioSpec, workers: u32, live: bool) -> Result<Conditions> {
        let trace = match scenario {
            ScenarioSpec::Slowed(spec) => {
                ensure!(
                    live || (0..workers).all(|worker| spec.killed_at(worker).is_none()),
                    Usage(format!("{scenario}: kill is for live runs; add --live"))
                );
                let most = spec.workers().into_iter().max();
                ensure!(
                    most.is_none_or(|most| most < workers),
                    Usage(format!("{scenario}: there are {workers} workers, numbered from 0"))
                );
                // The time until a killed worker is back is not known in advance.
                let killed = (0..workers).any(|worker| spec.killed_at(worker).is_some());
                return Ok(match killed {
                    true => Conditions::Live(workers),
                    false => Conditions::Slowed(spec.clone(), workers),
                });
            }
            ScenarioSpec::Disturbed(text) => {
                let wrong = format!("{scenario} disturbs real processes: it needs --live");
                ensure!(live, Usage(wrong));
                let named = text.parse::<FaultPlan>()?.workers();
                ensure!(
                    named.iter().all(|&worker| worker < workers),
                    Usage(format!("{scenario}: there are {workers} workers, numbered from 0"))
                );
                return Ok(Conditions::Live(workers));
            }
            ScenarioSpec::Trace(_) | ScenarioSpec::Synthetic(_) if live => {
                return Err(Usage(format!("{scenario}: live runs have no replay")).into());
            }
            ScenarioSpec::Trace(path) => read(path, &ReadOptions::default())
                .with_context(|| format!("failed to read {}", path.display()))?,
            ScenarioSpec::Synthetic(spec) => generate(spec, 1),
        };
        let there = trace.workers().len();
        ensure!(
            there >= workers as usize,
            Usage(format!("{scenario} has {there} workers, {workers} were asked for"))
        );
        Ok(Conditions::Recorded(Arc::new(first_of(&trace, workers))))
    }

    /// Run-times under a seed; an undisturbed worker takes one second.
    pub(crate) fn world(&self, seed: u64) -> Box<dyn World + '_> {
        match self {
            Conditions::Slowed(spec, workers) => Box::new(Paced::new(spec, *workers, 1.0, seed)),
            Conditions::Recorded(trace) => Box::new(Recorded::new(trace, seed)),
            Conditions::Live(workers) => {
                Box::new(Paced::new(&SlownessSpec::default(), *workers, 1.0, seed))
            }
        }
    }
}

/// The first workers of a trace, scaled to a median run-time of one second.
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
