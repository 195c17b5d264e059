//! Flags that select traces, shared by `analyze`, `simulate` and `model`.

use std::{fmt, path::PathBuf, str::FromStr};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use paceline_trace::{Phases, ReadOptions, SyntheticSpec, Trace, Unit, generate, read, sample};

use crate::console;

/// The warning about a trace whose run-times include waits.
pub(crate) const WAITS_INCLUDED: &str = "run-times include waits for other workers, which the recorder \
                                         could not separate: workers look equally fast, and \
                                         stragglers cost more than these figures say";

/// The traces to read or draw.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// Traces: CSV (plain, gzip, zstd), Parquet, an event log, or the folder of a run or recording
    /// [default: an embedded sample]
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Draw a trace: a preset or a general form with its parameters, such as nodes158 or
    /// lognormal:n=64,sigma=0.3
    #[arg(long, value_name = "SPEC")]
    synthetic: Vec<SyntheticSpec>,
    /// Seed of drawn traces
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Names of the columns for iteration, worker and seconds, if not the usual ones
    #[arg(long, value_name = "ITER,WORKER,SECONDS", value_parser = columns)]
    columns: Option<[String; 3]>,
    /// Only these rounds: FROM..TO, as numbers or as shares (..50%, 50%.., 100..400)
    #[arg(long, value_name = "FROM..TO")]
    rounds: Option<RoundRange>,
    /// Unit of the run-times. With `relative`, savings are reported as ratios only
    #[arg(long, value_name = "UNIT")]
    unit: Option<UnitName>,
}

/// The unit of a trace's run-times.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnitName {
    /// Seconds
    Seconds,
    /// Multiples of an unknown time
    Relative,
}

/// A range of a trace's rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RoundRange {
    from: RoundBound,
    to: RoundBound,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum RoundBound {
    Round(usize),
    Percent(f64),
}

impl RoundBound {
    fn round(self, rounds: usize) -> usize {
        match self {
            RoundBound::Round(round) => round.min(rounds),
            RoundBound::Percent(percent) => (percent / 100.0 * rounds as f64).round() as usize,
        }
    }
}

impl RoundRange {
    fn slice(self, trace: &Trace) -> Result<Trace> {
        let (from, to) = (self.from.round(trace.rounds()), self.to.round(trace.rounds()));
        ensure!(
            from < to,
            "--rounds leaves none of the {} rounds of {}",
            trace.rounds(),
            trace.name()
        );
        Ok(trace.slice(from..to))
    }
}

impl FromStr for RoundRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "write FROM..TO, as numbers or shares: ..50%, 50%.., 100..400".to_owned();
        let bound = |text: &str, default: f64| match text.strip_suffix('%') {
            _ if text.is_empty() => Ok(RoundBound::Percent(default)),
            Some(percent) => match percent.parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(RoundBound::Percent(percent)),
                _ => Err(wanted()),
            },
            None => text.parse().map(RoundBound::Round).map_err(|_| wanted()),
        };
        let (from, to) = text.split_once("..").ok_or_else(wanted)?;
        Ok(RoundRange { from: bound(from, 0.0)?, to: bound(to, 100.0)? })
    }
}

/// Where to get a trace.
#[derive(Debug, Clone)]
pub(crate) enum TraceSource {
    /// In a file or a run's folder.
    File(PathBuf),
    /// Drawn from a seed.
    Synthetic(SyntheticSpec, u64),
    /// In the program.
    Sample,
}

impl TraceArgs {
    /// The sources of all traces, in the order given.
    pub(crate) fn sources(&self) -> Vec<TraceSource> {
        let files = self.traces.iter().cloned().map(TraceSource::File);
        let drawn =
            self.synthetic.iter().map(|spec| TraceSource::Synthetic(spec.clone(), self.seed));
        let named: Vec<TraceSource> = files.chain(drawn).collect();
        if named.is_empty() { vec![TraceSource::Sample] } else { named }
    }

    /// Reads or draws one.
    pub(crate) fn load(&self, source: &TraceSource) -> Result<Trace> {
        let trace = match source {
            TraceSource::File(path) => read(path, &ReadOptions { columns: self.columns.clone() })?,
            TraceSource::Synthetic(spec, seed) => generate(spec, *seed),
            TraceSource::Sample => sample(),
        };
        if trace.waits_included() {
            console::say(format_args!("warning: {}: {WAITS_INCLUDED}", trace.name()));
        }
        let trace = match self.rounds {
            Some(rounds) => rounds.slice(&trace)?,
            None => trace,
        };
        Ok(match self.unit {
            Some(UnitName::Seconds) => trace.in_unit(Unit::Seconds),
            Some(UnitName::Relative) => trace.in_unit(Unit::Relative),
            None => trace,
        })
    }
}

impl TraceSource {
    /// The generator, if its phases advance by the clock: its run-times then depend on how
    /// long rounds are.
    pub(crate) fn by_the_clock(&self) -> Option<(&SyntheticSpec, u64)> {
        match self {
            TraceSource::Synthetic(spec, seed) if spec.phases() == Phases::WallClock => {
                Some((spec, *seed))
            }
            _ => None,
        }
    }
}

impl fmt::Display for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceSource::File(path) => write!(f, "{}", path.display()),
            TraceSource::Synthetic(spec, _) => write!(f, "{spec}"),
            TraceSource::Sample => write!(f, "the sample"),
        }
    }
}

fn columns(text: &str) -> Result<[String; 3], String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let wanted = "name three columns, with commas between: ITER,WORKER,SECONDS";
    match <[String; 3]>::try_from(names) {
        Ok(names) if names.iter().all(|name| !name.is_empty()) => Ok(names),
        _ => Err(wanted.to_owned()),
    }
}

/// For flags: a number that is zero or more.
pub(crate) fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x),
        _ => Err("write a number that is not negative".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_numbers_or_shares() {
        let rounds = |text: &str| {
            text.parse::<RoundRange>().and_then(|r| r.slice(&sample()).map_err(|e| e.to_string()))
        };
        assert_eq!(rounds("..50%").map(|t| t.rounds()), Ok(150));
        assert_eq!(rounds("10..20").map(|t| t.rounds()), Ok(10));
        let (whole, half) = (sample(), rounds("50%..").expect("the second half"));
        assert_eq!((half.rounds(), half.cell(0, 3)), (150, whole.cell(150, 3)));
        for wrong in ["", "5", "..101%", "a..b", "20..10", "300.."] {
            assert!(rounds(wrong).is_err(), "{wrong}");
        }
    }
}
