//! `paceline simulate --explain`: what `auto` believed and did in every round of a trace, and what it lost
//! against the oracle, by cause. docs/explain.md defines the loss.

mod gains;
mod loss;
mod part;
mod text;
mod watched;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use paceline_core::{CutReason, Policy, Straggler};
use paceline_model::Model;
use paceline_policy::{Auto, Objective};
use paceline_report::Usage;
use paceline_sim::{Recorded, Replay, ReplayOutcome, RoundOutcome};
use paceline_trace::Trace;
use serde::Serialize;

use self::{
    gains::Gains,
    loss::{Cut, Cuts, Loss},
    part::Part,
    watched::{BelievedRound, Watched},
};
use super::study::{Bounds, Study};
use crate::traces::TraceSource;

pub(super) use text::text;

/// `auto` on one trace, explained: a line of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Explanation {
    trace: String,
    workers: usize,
    straggler: Straggler,
    /// Seconds between rounds.
    overhead: f64,
    /// Contributions per second.
    rate: f64,
    oracle_rate: f64,
    /// The part with the greatest rate of all that ran alone.
    best_part: String,
    best_part_rate: f64,
    /// Length of the run.
    seconds: f64,
    #[serde(flatten)]
    loss: Loss,
    /// Rounds that each part led.
    led: BTreeMap<String, usize>,
    /// Share of the run-times that are lower bounds.
    censored_share: f64,
    rounds: Vec<ExplainedRound>,
}

/// One round.
#[derive(Debug, Clone, Serialize)]
struct ExplainedRound {
    round: usize,
    /// The part that led, and the same with a remark if the round was measured.
    part: String,
    trusts: String,
    /// Contributions per second that a further wait had to exceed, when the part was first asked.
    pays_above: Option<f64>,
    /// The cut that the part then expected.
    expected_arrivals: Option<f64>,
    expected_seconds: Option<f64>,
    cut: Cut,
    reason: CutReason,
    oracle: Cut,
    #[serde(flatten)]
    loss: Loss,
}

impl ExplainedRound {
    fn new(
        round: usize,
        gains: &Gains,
        closed: &RoundOutcome,
        believed: BelievedRound,
        best: &Part,
        oracle_rate: f64,
    ) -> ExplainedRound {
        let BelievedRound { belief, cut_was_due } = believed;
        let (cut, oracle) = (Cut::from(closed), gains.best(oracle_rate));
        let unmeasured = match cut_was_due {
            _ if belief.tries_full_sync => best.cuts[round],
            Some(seconds) => gains.cut(seconds),
            None => cut,
        };
        let another_led = belief.part != best.name(gains.participants);
        let best_part = another_led.then_some(best.cuts[round]);
        ExplainedRound {
            round,
            trusts: belief.to_string(),
            part: belief.part,
            pays_above: belief.forecast.map(|forecast| forecast.rate),
            expected_arrivals: belief.forecast.map(|forecast| forecast.arrivals),
            expected_seconds: belief.forecast.and_then(|forecast| forecast.cut),
            cut,
            reason: closed.reason,
            oracle,
            loss: Loss::new(Cuts { oracle, made: cut, unmeasured, best_part }, oracle_rate),
        }
    }
}

/// Replays a trace under `auto` and under each of its parts, and compares every round.
pub(super) fn explain(
    source: &TraceSource,
    trace: &Trace,
    study: &Study,
    model: &Arc<Model>,
) -> Result<Explanation> {
    let refused = [
        (study.straggler.keeps_work(), "--straggler finish"),
        (source.by_the_clock().is_some(), "phases=wall-clock"),
    ];
    if let Some((_, what)) = refused.into_iter().find(|(given, _)| *given) {
        return Err(Usage(format!(
            "--explain does not go with {what}, where the run-times of a round depend on earlier cuts"
        ))
        .into());
    }
    let replay = study.replay(trace)?;
    let (auto, beliefs) = Watched::new(Auto::new(model, Objective::Samples));
    let (outcome, best) =
        rayon::join(|| run(&replay, trace, Box::new(auto)), || Part::best(&replay, trace, model));
    let oracle_rate = Bounds::from_trace(trace, &replay).oracle_rate;
    let beliefs = std::mem::take(&mut *beliefs.lock().expect("nobody panicked with it"));
    // Replays leave out rounds without workers.
    let gains = (0..trace.rounds()).filter_map(|round| Gains::new(trace, round, replay.straggler));
    let rounds: Vec<ExplainedRound> = gains
        .zip(outcome.rounds.iter().zip(beliefs))
        .enumerate()
        .map(|(round, (gains, (closed, believed)))| {
            ExplainedRound::new(round, &gains, closed, believed, &best, oracle_rate)
        })
        .collect();
    let mut led = BTreeMap::new();
    rounds.iter().for_each(|round| *led.entry(round.part.clone()).or_default() += 1);
    Ok(Explanation {
        trace: trace.name().to_owned(),
        workers: trace.workers().len(),
        straggler: replay.straggler,
        overhead: replay.overhead,
        rate: outcome.rate(replay.overhead),
        oracle_rate,
        best_part: best.name(trace.workers().len()),
        best_part_rate: best.rate,
        seconds: rounds.iter().map(|round| round.cut.seconds + replay.overhead).sum(),
        loss: rounds.iter().map(|round| round.loss).sum(),
        led,
        censored_share: trace.censored_share(),
        rounds,
    })
}

fn run(replay: &Replay, trace: &Trace, policy: Box<dyn Policy>) -> ReplayOutcome {
    replay.run(&mut Recorded::new(trace, 0), trace.rounds(), policy)
}

#[cfg(test)]
mod tests {
    use paceline_trace::{Unit, generate};

    use super::*;
    use crate::simulate::{Overhead, ReplayedPolicy};

    /// Explains a trace, and checks the sums against the study's own figures.
    #[track_caller]
    fn check(trace: &Trace, straggler: Straggler) -> Explanation {
        let study = Study {
            policies: vec!["auto".parse::<ReplayedPolicy>().expect("a policy")],
            seeds: 1,
            straggler,
            overhead: Overhead::Medians(0.1),
            quorum: 1,
        };
        let model = Model::prior();
        let explained = explain(&TraceSource::Sample, trace, &study, &model).expect("it explains");
        let row = &study.run(trace, None, &model, |_, _| Ok(())).expect("it replays")[0];
        assert_eq!((explained.rate, explained.oracle_rate), (row.rate, row.oracle_rate));
        assert_eq!(explained.rounds.len(), trace.rounds());

        let possible = row.oracle_rate * explained.seconds;
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-8 * possible, "{a} is not {b}");
        near(explained.loss.total, (1.0 - row.of_oracle) * possible);
        for loss in explained.rounds.iter().map(|round| round.loss).chain([explained.loss]) {
            near(loss.causes().iter().map(|(_, lost)| lost).sum(), loss.total);
        }
        for ExplainedRound { loss, .. } in &explained.rounds {
            let least = loss.total.min(loss.too_long).min(loss.too_early).min(loss.wrong_part);
            assert!(least > -1e-6, "no round beats the oracle: {loss:?}");
        }
        assert_eq!(explained.led.values().sum::<usize>(), trace.rounds());
        explained
    }

    #[test]
    fn the_causes_add_up_to_the_loss_against_the_oracle() {
        let spec = "nodes16-stalls:rounds=120".parse().expect("a generator");
        let explained = check(&generate(&spec, 1), Straggler::Abort);
        let audited = |round: &&ExplainedRound| round.trusts.ends_with(", audited");
        let audits: f64 =
            explained.rounds.iter().filter(audited).map(|round| round.loss.audits).sum();
        assert!(audits > 0.0, "stalls make audits expensive");
    }

    #[test]
    fn micro_batches_that_a_cut_salvages_are_gains() {
        let mut trace = Trace::of_size("parts", Unit::Seconds, 4);
        for round in 0..60 {
            let slow = |worker| if (round + worker) % 5 == 0 { 3.0 } else { 1.0 };
            let ends = (0..4).flat_map(|worker| [0.5, 1.0].map(|part| part * slow(worker)));
            trace.push_micro_round(2, &ends.collect::<Vec<f64>>());
        }
        check(&trace, Straggler::Salvage);
    }
}
