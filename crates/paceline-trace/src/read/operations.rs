//! Traces of operations in Parquet: every forward and backward pass of every micro-batch.

use std::{collections::BTreeMap, path::Path};

use super::{
    columns::{Columns, Value},
    error::{Problem, TraceError},
    parquet::{iteration, utf8},
};
use crate::{MAX_CELLS, Trace, Unit};

/// The columns by which a file of operations is recognised, in reading order.
const COLUMNS: [&str; 6] = ["step", "dp_rank", "mb_id", "stage", "optype", "duration"];

/// The indices of those columns, if the file has them.
pub(super) fn columns(names: &[String]) -> Option<[usize; 6]> {
    let at = COLUMNS.map(|wanted| names.iter().position(|name| name == wanted));
    at.iter().all(Option::is_some).then(|| at.map(|at| at.unwrap_or_default()))
}

/// One pass of one micro-batch. Ordered as they run: micro-batches by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pass {
    step: i64,
    worker: i64,
    micro_batch: i64,
    backward: bool,
}

/// Reads the trace. A worker is a data-parallel rank. A micro-batch is its forward and backward pass on
/// the stage with the most computation in all, which determines the pipeline's pace. Communication,
/// which is mostly waiting for others, does not count.
pub(super) fn read(
    path: &Path,
    name: &str,
    columns: &Columns<'_>,
    wanted: [usize; 6],
) -> Result<Trace, TraceError> {
    let mut stages: BTreeMap<i64, Vec<(Pass, f64)>> = BTreeMap::new();
    let mut passes = 0;
    columns.scan(wanted, |_, [step, worker, micro_batch, stage, operation, duration]| {
        let Value::Text(operation) = operation else {
            return Err(Problem::Operations("optype is not text".to_owned()));
        };
        let backward = match utf8(&operation)? {
            "forward-compute" => false,
            "backward-compute" => true,
            _ => return Ok(()),
        };
        passes += 1;
        if passes > MAX_CELLS {
            return Err(Problem::Operations(format!("more than {MAX_CELLS} passes")));
        }
        let pass = Pass {
            step: iteration(&step)?,
            worker: iteration(&worker)?,
            micro_batch: iteration(&micro_batch)?,
            backward,
        };
        stages.entry(iteration(&stage)?).or_default().push((pass, seconds(&duration)?));
        Ok(())
    })?;
    let work = |passes: &[(Pass, f64)]| passes.iter().map(|(_, seconds)| seconds).sum::<f64>();
    let slowest = stages.into_values().max_by(|a, b| work(a).total_cmp(&work(b)));
    slowest
        .ok_or(Problem::NoRows)
        .and_then(|passes| trace_of(name, passes))
        .map_err(|problem| TraceError::file(path, problem))
}

fn seconds(value: &Value) -> Result<f64, Problem> {
    match value {
        Value::Float(x) if *x > 0.0 && x.is_finite() => Ok(*x),
        Value::Int(x) if *x > 0 => Ok(*x as f64),
        Value::Float(x) => Err(Problem::RunTime(x.to_string())),
        Value::Int(x) => Err(Problem::RunTime(x.to_string())),
        Value::Null | Value::Text(_) => {
            Err(Problem::Operations("duration is not a number".to_owned()))
        }
    }
}

/// Assembles passes; every worker must have the same micro-batches in every step, each with one forward
/// and one backward pass.
fn trace_of(name: &str, mut passes: Vec<(Pass, f64)>) -> Result<Trace, Problem> {
    passes.sort_unstable_by_key(|(pass, _)| *pass);
    let first_step = passes.chunk_by(|a, b| a.0.step == b.0.step).next().unwrap_or_default();
    let first_worker =
        first_step.chunk_by(|a, b| a.0.worker == b.0.worker).next().unwrap_or_default();
    let (in_step, of_worker) = (first_step.len(), first_worker.len());
    let workers: Vec<i64> = first_step.iter().step_by(of_worker).map(|(p, _)| p.worker).collect();

    let names = workers.iter().map(i64::to_string).collect();
    let mut trace = Trace::new(name, Unit::Seconds, names);
    let mut ends = Vec::with_capacity(in_step / 2);
    for (at, step) in passes.chunks(in_step).enumerate() {
        ends.clear();
        let mut now = 0.0;
        for (i, (pass, seconds)) in step.iter().enumerate() {
            let expected = Pass {
                step: step[0].0.step,
                worker: first_step[i].0.worker,
                micro_batch: first_worker[i % of_worker].0.micro_batch,
                backward: i % 2 == 1,
            };
            let whole = i + 1 < step.len() || step.len() == in_step;
            if *pass != expected || !whole {
                return Err(irregular(pass, at));
            }
            now = if i % of_worker == 0 { *seconds } else { now + seconds };
            if pass.backward {
                ends.push(now);
            }
        }
        trace.push_micro_round(of_worker / 2, &ends);
    }
    Ok(trace)
}

fn irregular(pass: &Pass, step: usize) -> Problem {
    let Pass { step: number, worker, micro_batch, .. } = pass;
    Problem::Operations(format!(
        "step {number} (the {}. in order) is irregular at dp_rank {worker}, mb_id {micro_batch}: \
         every rank needs one forward-compute and one backward-compute of the same micro-batches \
         in every step",
        step + 1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(rows: &[(i64, i64, i64, bool, f64)]) -> Vec<(Pass, f64)> {
        let pass = |&(step, worker, micro_batch, backward, seconds)| {
            (Pass { step, worker, micro_batch, backward }, seconds)
        };
        rows.iter().map(pass).collect()
    }

    fn regular() -> Vec<(Pass, f64)> {
        passes(&[
            (7, 3, 1, true, 4.0),
            (7, 3, 0, false, 1.0),
            (7, 3, 0, true, 2.0),
            (7, 3, 1, false, 3.0),
            (9, 3, 0, false, 1.0),
            (9, 3, 0, true, 1.0),
            (9, 3, 1, false, 1.0),
            (9, 3, 1, true, 1.0),
        ])
    }

    #[test]
    fn passes_add_up_in_the_order_of_micro_batches() {
        let trace = trace_of("it", regular()).expect("regular");
        assert_eq!((trace.rounds(), trace.micro_batches()), (2, 2));
        assert_eq!(trace.workers(), ["3"]);
        assert_eq!(trace.micro_ends(0, 0), Some(&[3.0, 10.0][..]));
        assert_eq!(trace.micro_ends(1, 0), Some(&[2.0, 4.0][..]));
    }

    #[test]
    fn a_missing_or_duplicate_operation_is_named() {
        for at in 0..8 {
            let mut missing = regular();
            missing.remove(at);
            let mut doubled = regular();
            doubled.push(doubled[at]);
            for passes in [missing, doubled] {
                let error = trace_of("it", passes).expect_err("irregular").to_string();
                assert!(error.contains("irregular at dp_rank 3, mb_id"), "{error}");
            }
        }
    }
}
