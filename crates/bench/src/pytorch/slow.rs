//! Something slow: time to the same loss over DDP's, with the same search over learning rates for all.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Result, ensure};

use crate::{
    report::Report,
    stats::{median, paired_ratio},
};

use super::{
    python::{Python, WORKERS, data},
    system::{System, Workload},
};

/// A condition and the goal for DDP's time over ours.
struct Scenario {
    name: &'static str,
    title: &'static str,
    args: &'static str,
    goal: f64,
}

const SCENARIOS: [Scenario; 3] = [
    Scenario { name: "stalls", title: "stalls with p99/p50 = 3", args: "--stalls 3", goal: 1.3 },
    Scenario { name: "slow", title: "one worker three times as slow", args: "--slow 3", goal: 2.0 },
    Scenario { name: "both", title: "both", args: "--stalls 3 --slow 3", goal: 2.0 },
];

/// A training task with a target.
struct Task {
    workload: Workload,
    /// Its data, which the target is for.
    data: &'static str,
    /// Learning rates of the search.
    rates: [f64; 3],
    /// Seconds that a step's computation is padded to: more than four workers need on two cores.
    nominal: f64,
    /// Steps of DDP in a run.
    steps: usize,
    /// Test loss to reach.
    target: f64,
    seeds: usize,
    /// Runs of each learning rate of the search. Their seeds are not among those that are measured.
    search_runs: usize,
    peers: bool,
}

/// Seeds of the races against peers, whose runs take long.
const PEER_SEEDS: usize = 2;

/// Most learning rates that a search tries.
const MOST_RATES: usize = 7;

/// The best learning rate of each system, found under the first scenario and used in all.
type Rates = BTreeMap<&'static str, f64>;

const TASKS: [Task; 3] = [
    Task {
        workload: Workload::CNN,
        data: "mnist",
        rates: [0.02, 0.05, 0.08],
        nominal: 0.06,
        steps: 140,
        target: 0.25,
        seeds: 4,
        search_runs: 2,
        peers: true,
    },
    Task {
        workload: Workload::GPT_SMALL,
        data: "tinyshakespeare",
        rates: [2.5e-4, 5e-4, 1e-3],
        nominal: 0.1,
        steps: 110,
        target: 2.75,
        seeds: 3,
        search_runs: 1,
        peers: false,
    },
    Task {
        workload: Workload::GPT_LARGE,
        data: "tinyshakespeare",
        rates: [1.25e-4, 2.5e-4, 5e-4],
        nominal: 0.4,
        steps: 60,
        target: 3.0,
        seeds: 2,
        search_runs: 1,
        peers: false,
    },
];

/// The systems that race against DDP.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Ours,
    Peers,
}

/// Parts `slow-WORKLOAD-SCENARIO`, and `slow-WORKLOAD-peers-SCENARIO`.
pub(super) fn run(python: &Python, report: &mut Report) -> Result<()> {
    for task in &TASKS {
        let mut rates = Rates::new();
        let name = task.workload.name;
        for scenario in &SCENARIOS {
            if report.wants(&format!("slow-{name}-{}", scenario.name)) {
                task.run(python, report, scenario, Field::Ours, &mut rates)?;
            }
        }
        let with_peers = task.peers && !report.quick();
        for scenario in SCENARIOS.iter().filter(|_| with_peers) {
            if report.wants(&format!("slow-{name}-peers-{}", scenario.name)) {
                task.run(python, report, scenario, Field::Peers, &mut rates)?;
            }
        }
    }
    Ok(())
}

/// One system in one scenario.
struct Row {
    system: System,
    rate: f64,
    /// Seconds to the target, by seed; infinite where it was not reached.
    seconds: Vec<f64>,
}

impl Task {
    fn run(
        &self,
        python: &Python,
        report: &mut Report,
        scenario: &Scenario,
        field: Field,
        rates: &mut Rates,
    ) -> Result<()> {
        let quick = report.quick();
        let why = match quick && (self.workload.name != "cnn" || scenario.name != "stalls") {
            true => Some("takes minutes".to_owned()),
            false if data().join(self.data).exists() => None,
            false => Some(format!("{} is not in ../shared/datasets", self.data)),
        };
        if let Some(why) = why {
            report.skip(&self.figure(scenario, "salvage"), &format!(">= {}", scenario.goal), &why);
            return Ok(());
        }
        let (systems, seeds) = match field {
            Field::Ours => ([System::DDP, System::SALVAGE, System::ABORT], self.seeds),
            Field::Peers => ([System::DDP, System::TORCHFT, System::HIVEMIND], PEER_SEEDS),
        };
        let systems = python.available(&systems);
        for system in &systems {
            if !rates.contains_key(system.name) {
                let rate = if quick { self.rates[1] } else { self.search(python, system)? };
                rates.insert(system.name, rate);
            }
        }
        let rows = systems.iter().map(|&system| Row {
            system,
            rate: rates[system.name],
            seconds: Vec::new(),
        });
        let rows = self.measure(python, scenario, rows.collect(), if quick { 1 } else { seeds })?;
        report.section(self.table(scenario, field, &rows));
        self.figures(report, scenario, &rows);
        report.save()
    }

    /// Fills in the seconds of every system, seed by seed, in alternating order.
    fn measure(
        &self,
        python: &Python,
        scenario: &Scenario,
        mut rows: Vec<Row>,
        seeds: usize,
    ) -> Result<Vec<Row>> {
        for seed in 1..=seeds {
            // There in one seed, back in the next: slow drift of the machine cancels.
            let mut order: Vec<usize> = (0..rows.len()).collect();
            if seed % 2 == 0 {
                order.reverse();
            }
            for who in order {
                let Row { system, rate, .. } = rows[who];
                let seconds = self.seconds(python, scenario, &system, rate, seed)?;
                rows[who].seconds.push(seconds);
            }
        }
        Ok(rows)
    }

    /// The learning rate that reaches the target first, in the mean. While the best is the least or the
    /// greatest rate tried, the search goes on beyond it.
    fn search(&self, python: &Python, system: &System) -> Result<f64> {
        let try_rate = |rate: f64| -> Result<(f64, f64)> {
            let mut seconds = 0.0;
            for run in 0..self.search_runs {
                seconds += self.seconds(python, &SCENARIOS[0], system, rate, 100 + run)?;
            }
            Ok((rate, seconds))
        };
        let mut tried = self.rates.map(try_rate).into_iter().collect::<Result<Vec<_>>>()?;
        loop {
            tried.sort_by(|a, b| a.0.total_cmp(&b.0));
            let best = fastest(&tried);
            let last = tried.len() - 1;
            let beyond = |edge: usize, inner: usize| tried[edge].0.powi(2) / tried[inner].0;
            let next = match best {
                _ if tried.len() >= MOST_RATES => return Ok(tried[best].0),
                0 => beyond(0, 1),
                best if best == last => beyond(last, last - 1),
                best => return Ok(tried[best].0),
            };
            tried.push(try_rate(next)?);
        }
    }

    /// Seconds to the target; infinite if it is not reached.
    fn seconds(
        &self,
        python: &Python,
        scenario: &Scenario,
        system: &System,
        rate: f64,
        seed: usize,
    ) -> Result<f64> {
        let Task { workload, nominal, steps, .. } = self;
        let args = format!(
            "--samples {} --lr {rate} --seed {seed} --nominal {nominal} --target {} --snapshots {} {}",
            steps * workload.batch * WORKERS,
            self.target,
            4.0 * nominal,
            scenario.args
        );
        let workers = python.train(system, workload, &args)?;
        let losses = &workers[0].losses;
        ensure!(!losses.is_empty(), "{} took no snapshot", system.name);
        let seconds = reached(losses, self.target);
        eprintln!(
            "   {}, {}, lr {rate}, seed {seed}: {seconds:.1} s, last loss {:.3}",
            scenario.name,
            system.name,
            losses.last().map_or(f64::NAN, |(_, loss)| *loss)
        );
        Ok(seconds)
    }

    fn figure(&self, scenario: &Scenario, how: &str) -> String {
        format!("{}_{}_{how}_over_ddp", self.workload.name, scenario.name)
    }

    fn figures(&self, report: &mut Report, scenario: &Scenario, rows: &[Row]) {
        let seconds = |system: &System| {
            rows.iter().find(|row| row.system.name == system.name).map(|row| &row.seconds[..])
        };
        let Some(ddp) = seconds(&System::DDP) else { return };
        let title = scenario.title;
        for (system, how) in [
            (System::SALVAGE, "salvage"),
            (System::ABORT, "no-salvage"),
            (System::TORCHFT, "torchft"),
            (System::HIVEMIND, "hivemind"),
        ] {
            let (name, goal) = (self.figure(scenario, how), scenario.goal);
            let Some(other) = seconds(&system) else { continue };
            let found = paired_ratio(other, ddp);
            let note = format!(
                "DDP's time to the loss {} over that of {}, {title}: {found}",
                self.target, system.name
            );
            match how {
                "salvage" => report.at_least(&name, found.mean, goal, note),
                _ => report.tell(&name, found.mean, note),
            }
        }
    }

    fn table(&self, scenario: &Scenario, field: Field, rows: &[Row]) -> String {
        let Task { workload, target, nominal, rates, search_runs, .. } = self;
        let mut text = format!(
            "## Time to loss {target}, {}: {}{}\n\nSteps are padded to {:.0} ms. Learning rates: the best of \
             {rates:?}, and beyond while the best is at an edge, by {search_runs} run(s) each with stalls. {} \
             seeds.\n\n\
             | | learning rate | s, median | best | worst |\n|---|---|---|---|---|\n",
            scenario.title,
            workload.name,
            if field == Field::Peers { ", peers" } else { "" },
            nominal * 1e3,
            rows.first().map_or(0, |row| row.seconds.len()),
        );
        let shown = |seconds: f64| match seconds.is_finite() {
            true => format!("{seconds:.1}"),
            false => "not reached".to_owned(),
        };
        for Row { system, rate, seconds } in rows {
            let end = |pick: fn(f64, f64) -> f64| {
                shown(seconds.iter().copied().reduce(pick).unwrap_or(f64::NAN))
            };
            let _ = writeln!(
                text,
                "| {} | {rate} | {} | {} | {} |",
                system.name,
                shown(median(seconds)),
                end(f64::min),
                end(f64::max)
            );
        }
        text
    }
}

/// The place of the rate with the least seconds.
fn fastest(tried: &[(f64, f64)]) -> usize {
    let places = 0..tried.len();
    places.min_by(|&a, &b| tried[a].1.total_cmp(&tried[b].1)).expect("rates were tried")
}

/// When the loss came down to `target`, between snapshots by linear interpolation. Each loss is the median
/// of three neighbours, so that one lucky snapshot does not count.
fn reached(losses: &[(f64, f64)], target: f64) -> f64 {
    let smooth: Vec<(f64, f64)> = losses
        .windows(3)
        .map(|near| (near[1].0, median(&[near[0].1, near[1].1, near[2].1])))
        .collect();
    let Some(at) = smooth.iter().position(|(_, loss)| *loss <= target) else {
        return f64::INFINITY;
    };
    let (after, low) = smooth[at];
    let Some((before, high)) = at.checked_sub(1).map(|at| smooth[at]) else { return after };
    before + (after - before) * (high - target) / (high - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_reached_between_two_snapshots() {
        let losses = [(1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (4.0, 1.0), (5.0, 0.0)];
        assert_eq!(reached(&losses, 1.5), 3.5);
        assert_eq!(reached(&losses, 3.0), 2.0);
        assert_eq!(reached(&losses, 0.5), f64::INFINITY);
    }

    #[test]
    fn one_lucky_snapshot_does_not_reach_the_target() {
        let losses = [(1.0, 3.0), (2.0, 0.5), (3.0, 3.0), (4.0, 3.0), (5.0, 1.0), (6.0, 1.0)];
        assert_eq!(reached(&losses, 1.0), 5.0);
    }
}
