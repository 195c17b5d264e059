//! The `paceline` command line: settings, processes, and what a person sees of a run.
//!
//! Decisions are made in `paceline-core`, sums in `paceline-server`, gradients in `paceline-nn`;
//! here they are put together for a user. The Python package uses the same command line, texts and pages.

mod analyze;
mod checks;
mod cli;
mod compare;
mod config;
mod console;
mod descriptors;
mod display;
mod event_log;
mod flags;
mod host;
mod interrupt;
mod launch;
mod member;
mod model;
mod offered;
mod progress;
mod run_dir;
mod server;
mod session;
mod settings;
mod simulate;
mod summary;
mod traces;
mod train;
mod worker;

pub use analyze::{AnalysisReport, analysis_text};
pub use cli::{main, run};
pub use simulate::{Overhead, ReplayRow, ReplayedPolicy, SimulationReport, Study, simulation_text};
