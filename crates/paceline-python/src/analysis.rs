//! Analyses and replays of traces, as JSON, text and page.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, ensure};
use paceline::{
    AnalysisReport, ReplayedPolicy, SimulationReport, Study, analysis_text, simulation_text,
};
use paceline_analysis::Options;
use paceline_model::Model;
use pyo3::{PyResult, Python, exceptions::PyValueError, pyfunction};

use crate::{interrupt::interruptible, trace::Trace};

/// Analyses a trace; returns the analysis as JSON, as text and as an HTML page.
#[pyfunction]
pub(crate) fn analyze(
    py: Python<'_>,
    trace: &Trace,
    overhead: f64,
    noise_scale: Option<f64>,
    run_hours: f64,
) -> PyResult<(String, String, String)> {
    let trace = Arc::clone(&trace.0);
    let done = interruptible(py, move || -> Result<_> {
        ensure!(trace.median() > 0.0, "no worker is present in any round");
        let options = Options { overhead, noise_scale, run_hours };
        let analysis = paceline_analysis::analyze(&trace, &options, &mut |_| {});
        let mut report = AnalysisReport::new();
        report.add(&trace, &analysis);
        let json = serde_json::to_string(&analysis)?;
        Ok((json, analysis_text(&analysis), report.page().html()))
    })?;
    done.map_err(refused)
}

/// Replays a trace under policies; returns each replay as JSON, and all as text and as an HTML page.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    trace: &Trace,
    policies: Vec<String>,
    seeds: u64,
    straggler: &str,
    overhead: &str,
    quorum: u32,
) -> PyResult<(Vec<String>, String, String)> {
    let policies: std::result::Result<Vec<ReplayedPolicy>, _> =
        policies.iter().map(|policy| policy.parse()).collect();
    let study = Study {
        policies: policies.map_err(|error| PyValueError::new_err(error.to_string()))?,
        seeds,
        straggler: straggler.parse().map_err(PyValueError::new_err)?,
        overhead: overhead.parse().map_err(PyValueError::new_err)?,
        quorum,
    };
    let trace = Arc::clone(&trace.0);
    let stopped = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stopped);
    let done = interruptible(py, move || -> Result<_> {
        ensure!(trace.median() > 0.0, "no worker is present in any round");
        let rows = study.run(&trace, None, &Model::prior(), |_, _| {
            ensure!(!asked.load(Ordering::Relaxed), "interrupted");
            Ok(())
        })?;
        let mut report = SimulationReport::new();
        report.add(&rows);
        let json: std::result::Result<Vec<String>, _> =
            rows.iter().map(serde_json::to_string).collect();
        Ok((json?, simulation_text(&rows, trace.censored_share()), report.page().html()))
    });
    if done.is_err() {
        stopped.store(true, Ordering::Relaxed);
    }
    done?.map_err(refused)
}

fn refused(error: anyhow::Error) -> pyo3::PyErr {
    PyValueError::new_err(error.to_string())
}
