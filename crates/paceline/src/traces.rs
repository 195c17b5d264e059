//! Where traces come from: the flags that `analyze` and `simulate` share.

use std::{fmt, path::PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use paceline_trace::{Phases, ReadOptions, SyntheticSpec, Trace, Unit, generate, read, sample};

/// Which traces, and how they are to be read.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// Traces: CSV (plain, gzip, zstd), Parquet, an event log, or the folder of a run; a sample
    /// where none is named
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Draw a trace: a preset or a general form with its parameters, such as nodes158 or
    /// lognormal:n=64,sigma=0.3
    #[arg(long, value_name = "SPEC")]
    synthetic: Vec<SyntheticSpec>,
    /// Seed of drawn traces
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The columns that hold iteration, worker and seconds, where they are called otherwise
    #[arg(long, value_name = "ITER,WORKER,SECONDS", value_parser = columns)]
    columns: Option<[String; 3]>,
    /// What the numbers are; of relative ones, hours are not told
    #[arg(long, value_name = "UNIT")]
    unit: Option<UnitName>,
}

/// What the numbers of a trace are.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnitName {
    /// Seconds
    Seconds,
    /// Multiples of something unknown
    Relative,
}

/// A trace that is not there yet.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// In a file or a run's folder.
    File(PathBuf),
    /// Drawn from a seed.
    Synthetic(SyntheticSpec, u64),
    /// In the program.
    Sample,
}

impl TraceArgs {
    /// Where traces come from, in the order they were named.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let files = self.traces.iter().cloned().map(Source::File);
        let drawn = self.synthetic.iter().map(|spec| Source::Synthetic(spec.clone(), self.seed));
        let named: Vec<Source> = files.chain(drawn).collect();
        if named.is_empty() { vec![Source::Sample] } else { named }
    }

    /// Reads or draws one.
    pub(crate) fn load(&self, source: &Source) -> Result<Trace> {
        let trace = match source {
            Source::File(path) => read(path, &ReadOptions { columns: self.columns.clone() })?,
            Source::Synthetic(spec, seed) => generate(spec, *seed),
            Source::Sample => sample(),
        };
        Ok(match self.unit {
            Some(UnitName::Seconds) => trace.in_unit(Unit::Seconds),
            Some(UnitName::Relative) => trace.in_unit(Unit::Relative),
            None => trace,
        })
    }
}

impl Source {
    /// The generator whose phases pass by the clock, if it is one: what comes then depends on how
    /// long rounds are.
    pub(crate) fn by_the_clock(&self) -> Option<(&SyntheticSpec, u64)> {
        match self {
            Source::Synthetic(spec, seed) if spec.phases() == Phases::WallClock => {
                Some((spec, *seed))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Synthetic(spec, _) => write!(f, "{spec}"),
            Source::Sample => write!(f, "the sample"),
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
