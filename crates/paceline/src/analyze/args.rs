//! The flags of `paceline analyze`.

use std::path::PathBuf;

use clap::Args;
use paceline_analysis::Options;
use paceline_core::Span;

use crate::traces::{TraceArgs, not_negative};

#[derive(Debug, Args)]
pub(crate) struct AnalyzeArgs {
    #[command(flatten)]
    pub(super) traces: TraceArgs,
    /// Length of a run under full sync, to report savings in hours
    #[arg(long, value_name = "TIME", default_value = "100h")]
    run_length: Span,
    /// Time between a close and the next round, in seconds (or the trace's unit)
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = not_negative)]
    overhead: f64,
    /// Gradient noise scale in contributions, for progress per second: with this many, the noise of
    /// their mean is as large as the gradient [default: the number of workers]
    #[arg(long, value_name = "N", value_parser = not_negative)]
    noise_scale: Option<f64>,
    /// Print one JSON object per trace and line
    #[arg(long)]
    pub(super) json: bool,
    /// Write a self-contained HTML page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl AnalyzeArgs {
    pub(super) fn options(&self) -> Options {
        Options {
            overhead: self.overhead,
            noise_scale: self.noise_scale,
            run_hours: self.run_length.0.as_secs_f64() / 3600.0,
        }
    }
}
