//! `paceline compare`: time to accuracy, policy by policy, on real training.

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use paceline_compare::CompareArgs;

use crate::progress::Progress;

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  paceline compare                                    three policies, with and without stalls
  paceline compare --policies full,auto,auto/samples --scenario slow:0:3 --seeds 5
  paceline compare --policies full,best-static,auto,async,stale:8 --scenario stalls:3 --workers 64 --batch 8
  paceline compare --scenario trace:times.csv.gz --data mnist --target-accuracy 0.98
  paceline compare --sweep 8,4 --scenario stalls:3    how many backup workers
  paceline compare --live 100ms --scenario slow:1:3   real processes, workers padded to 100 ms per round

Training is real; time is virtual unless --live is given: an undisturbed worker takes one second per
round. Every policy chooses among the same number of learning rates. Results are kept in the --out
folder (results.jsonl, page.html); an interrupted comparison resumes from them.
Exit codes: 0 done, 1 a file cannot be read or written, 2 wrong usage.";

pub(crate) fn run(args: CompareArgs, program: &[OsString]) -> Result<ExitCode> {
    let (json, path) = (args.json, args.out.join("page.html"));
    let progress = Progress::new();
    let results = paceline_compare::compare(args, program, &|stage| progress.say(stage))?;
    drop(progress);
    match json {
        true => results.json()?.iter().for_each(|line| println!("{line}")),
        false => print!("{}", results.text()),
    }
    results.page().write(&path)?;
    eprintln!("wrote {}", path.display());
    Ok(ExitCode::SUCCESS)
}
