//! Reading of traces from the event logs of runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufRead,
    path::Path,
};

use paceline_core::{Event, EventKind, RunTime, WorkerId};

use super::{
    error::{MAX_NAME, Position, Problem, TraceError},
    lines::{Lines, NumberedLine},
};
use crate::{Cell, MAX_CELLS, Trace, Unit};

/// Reads an event log. Its last line may be incomplete, since the run may be in progress or have been
/// killed.
pub(super) fn read(path: &Path, name: &str, text: impl BufRead) -> Result<Trace, TraceError> {
    let mut lines = Lines::new(path, text);
    let mut rounds = LoggedRounds::default();
    while let Some(line) = lines.next()? {
        let number = line.number;
        rounds
            .line(&line)
            .map_err(|problem| TraceError::at(path, Position::Line(number), problem))?;
    }
    rounds.into_trace(name).map_err(|problem| TraceError::file(path, problem))
}

/// The rounds read so far.
#[derive(Default)]
struct LoggedRounds {
    names: BTreeMap<WorkerId, String>,
    /// The last close of each round: rounds repeated after a resume replace the earlier ones.
    run_times: BTreeMap<u64, BTreeMap<WorkerId, RunTime>>,
    cells: usize,
}

impl LoggedRounds {
    fn line(&mut self, line: &NumberedLine<'_>) -> Result<(), Problem> {
        match serde_json::from_slice(line.text) {
            Ok(event) => self.event(event),
            Err(_) if !line.ended => Ok(()),
            Err(error) => Err(Problem::Event(error.to_string())),
        }
    }

    fn event(&mut self, event: Event) -> Result<(), Problem> {
        match event.kind {
            EventKind::WorkerJoined { worker, name, .. } => {
                self.names.insert(worker, name);
            }
            EventKind::Closed { round, run_times, .. } => {
                let run_times: BTreeMap<_, _> = run_times.into_iter().collect();
                self.cells += run_times.len();
                let before = self.run_times.insert(round.0, run_times);
                self.cells -= before.map_or(0, |before| before.len());
                if self.cells > MAX_CELLS {
                    let (workers, rounds) = (self.workers().len(), self.run_times.len());
                    return Err(Problem::TooLarge { workers, rounds });
                }
            }
            EventKind::Late { base, worker, run_time, .. }
            | EventKind::Arrived { base, worker, run_time, .. } => {
                self.learn(base.0, worker, run_time);
            }
            _ => {}
        }
        Ok(())
    }

    /// A late contribution replaces the lower bound of its run-time.
    fn learn(&mut self, round: u64, worker: WorkerId, run_time: RunTime) {
        let known = self.run_times.get_mut(&round).and_then(|round| round.get_mut(&worker));
        if let Some(known) = known
            && known.is_censored()
            && !run_time.is_censored()
        {
            *known = run_time;
        }
    }

    fn workers(&self) -> BTreeSet<WorkerId> {
        self.run_times.values().flat_map(BTreeMap::keys).copied().collect()
    }

    fn into_trace(self, name: &str) -> Result<Trace, Problem> {
        let ids: Vec<WorkerId> = self.workers().into_iter().collect();
        if ids.is_empty() {
            return Err(Problem::NoRound);
        }
        let (workers, rounds) = (ids.len(), self.run_times.len());
        if workers.saturating_mul(rounds) > MAX_CELLS {
            return Err(Problem::TooLarge { workers, rounds });
        }
        let mut trace = Trace::new(name, Unit::Seconds, self.names_of(&ids));
        for run_times in self.run_times.values() {
            trace.push_round(ids.iter().map(|id| run_times.get(id).map_or(Cell::Absent, cell)));
        }
        Ok(trace)
    }

    /// Workers' names: those of their last join, with their number if two workers share a name, and the
    /// number alone if the name cannot be written.
    fn names_of(&self, ids: &[WorkerId]) -> Vec<String> {
        let name = |id: &WorkerId| {
            let name = self.names.get(id)?;
            let fits = !name.trim().is_empty()
                && name.len() < MAX_NAME - 16
                && !name.contains(char::is_control);
            fits.then_some(name)
        };
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for name in ids.iter().filter_map(name) {
            *uses.entry(name).or_default() += 1;
        }
        let shown = |id: &WorkerId| match name(id) {
            Some(name) if uses[name.as_str()] == 1 => name.clone(),
            Some(name) => format!("{name} ({id})"),
            None => id.to_string(),
        };
        ids.iter().map(shown).collect()
    }
}

fn cell(run_time: &RunTime) -> Cell {
    // A clock may not have moved between two events; a trace holds positive times only.
    let seconds = run_time.bound().as_secs_f64().max(1e-9);
    if run_time.is_censored() { Cell::Censored(seconds) } else { Cell::Observed(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(worker: u32, name: &str) -> String {
        format!(r#"{{"at":1,"event":"worker_joined","worker":{worker},"name":"{name}"}}"#)
    }

    fn observed(secs: u32) -> String {
        format!(r#"{{"observed":{{"secs":{secs},"nanos":0}}}}"#)
    }

    fn censored(secs: u32) -> String {
        format!(r#"{{"censored":{{"at_least":{{"secs":{secs},"nanos":0}}}}}}"#)
    }

    fn closed(round: u32, run_times: &[(u32, String)]) -> String {
        let run_times: Vec<String> =
            run_times.iter().map(|(worker, time)| format!("[{worker},{time}]")).collect();
        format!(
            r#"{{"at":2,"event":"closed","round":{round},"closes":[],"run_times":[{}]}}"#,
            run_times.join(",")
        )
    }

    fn late(base: u32, worker: u32, run_time: &str) -> String {
        format!(
            r#"{{"at":3,"event":"late","base":{base},"worker":{worker},"weight":1.0,"run_time":{run_time}}}"#
        )
    }

    fn trace(lines: &[String]) -> Result<Trace, TraceError> {
        read(Path::new("runs/it/events.jsonl"), "it", lines.join("\n").as_bytes())
    }

    fn rows(trace: &Trace) -> Vec<Vec<Cell>> {
        (0..trace.rounds()).map(|round| trace.row(round).collect()).collect()
    }

    #[test]
    fn closed_rounds_are_the_trace_and_late_arrivals_fill_it_in() {
        let trace = trace(&[
            joined(5, "far:1"),
            joined(2, "near:1"),
            closed(0, &[(5, censored(3)), (2, observed(1))]),
            late(0, 5, &observed(7)),
            closed(1, &[(2, observed(2))]),
            closed(2, &[(2, observed(2)), (5, censored(4))]),
        ])
        .expect("a log");
        assert_eq!(trace.workers(), ["near:1", "far:1"]);
        let expected = [
            [Cell::Observed(1.0), Cell::Observed(7.0)],
            [Cell::Observed(2.0), Cell::Absent],
            [Cell::Observed(2.0), Cell::Censored(4.0)],
        ];
        assert_eq!(rows(&trace), expected);
    }

    #[test]
    fn a_repeated_round_replaces_the_earlier_one() {
        let trace = trace(&[
            closed(0, &[(0, observed(1)), (1, observed(1))]),
            closed(1, &[(0, observed(1)), (1, observed(9))]),
            closed(1, &[(0, observed(3))]),
        ])
        .expect("a log");
        assert_eq!(rows(&trace)[1], [Cell::Observed(3.0), Cell::Absent]);
        assert_eq!(trace.workers(), ["w0", "w1"]);
    }

    #[test]
    fn workers_of_one_name_are_told_apart() {
        let closed = closed(0, &[(0, observed(1)), (1, observed(1)), (2, observed(1))]);
        let trace = trace(&[joined(0, "a"), joined(1, "a"), joined(2, ""), closed]).expect("a log");
        assert_eq!(trace.workers(), ["a (w0)", "a (w1)", "w2"]);
    }

    #[test]
    fn an_incomplete_last_line_is_skipped_and_other_incomplete_lines_are_not() {
        let whole = closed(0, &[(0, observed(1))]);
        let half = whole[..whole.len() / 2].to_owned();
        assert_eq!(trace(&[whole.clone(), half.clone()]).expect("a log").rounds(), 1);
        let error = trace(&[whole, half, String::new()]).expect_err("half a line").to_string();
        assert!(
            error.starts_with("runs/it/events.jsonl, line 2: not an event of a run"),
            "{error}"
        );
        let error = trace(&[joined(0, "a")]).expect_err("no round").to_string();
        assert_eq!(error, "runs/it/events.jsonl: no round was closed in this run");
    }
}
