//! The text of an explanation: a line for every round, then the sums.

use std::{cmp::Reverse, fmt::Write};

use paceline_report::short;

use super::{ExplainedRound, Explanation, loss::Cut};
use crate::simulate::text::lower_bounds;

/// Worst rounds shown.
const WORST: usize = 5;

/// The explanation as text.
pub(in crate::simulate) fn text(explained: &Explanation) -> String {
    let mut text = format!(
        "{}: {} workers, {} rounds, stragglers {}\n{}\n",
        explained.trace,
        explained.workers,
        explained.rounds.len(),
        explained.straggler,
        lower_bounds(explained.censored_share),
    );
    let width = explained.rounds.iter().map(|round| round.trusts.len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        text,
        "round  {:width$} {:>10}  {:>16}  {:>16}  {:>16} {:>8} {:>9} {:>9} {:>8} {:>10}  cut because",
        "led by",
        "pays above",
        "expected",
        "cut",
        "oracle",
        "lost",
        "too long",
        "too early",
        "audits",
        "wrong part",
    );
    for round in &explained.rounds {
        line(&mut text, round, width);
    }
    sums(&mut text, explained);
    text
}

fn line(text: &mut String, round: &ExplainedRound, width: usize) {
    let expected = round.expected_arrivals.map(|arrivals| match round.expected_seconds {
        Some(seconds) => at(Cut { accepted: arrivals, seconds }),
        None => short(arrivals),
    });
    let _ = writeln!(
        text,
        "{:>5}  {:width$} {:>10}  {:>16}  {:>16}  {:>16} {:>8} {:>9} {:>9} {:>8} {:>10}  {}",
        round.round,
        round.trusts,
        round.pays_above.map(short).unwrap_or_default(),
        expected.unwrap_or_default(),
        at(round.cut),
        at(round.oracle),
        amount(round.loss.total),
        amount(round.loss.too_long),
        amount(round.loss.too_early),
        amount(round.loss.audits),
        amount(round.loss.wrong_part),
        round.reason,
    );
}

/// The loss by cause, the parts that led, and the worst rounds.
fn sums(text: &mut String, explained: &Explanation) {
    let possible = explained.oracle_rate * explained.seconds;
    let share = |lost: f64| 100.0 * lost / possible;
    let of_oracle = |rate: f64| rate / explained.oracle_rate;
    let _ = writeln!(
        text,
        "\nauto {:.4} of the oracle; best part alone: {}, {:.4}\nlost {} of {} contributions, {:.2} %",
        of_oracle(explained.rate),
        explained.best_part,
        of_oracle(explained.best_part_rate),
        short(explained.loss.total),
        short(possible),
        share(explained.loss.total),
    );
    for (cause, lost) in explained.loss.causes() {
        let _ = writeln!(text, "  {cause:18} {:>8} {:>7.2} %", short(lost), share(lost));
    }
    let rounds = explained.rounds.len();
    let mut led: Vec<(&String, &usize)> = explained.led.iter().collect();
    led.sort_by_key(|(_, count)| Reverse(**count));
    let led = led
        .iter()
        .map(|(part, count)| format!("{part} {:.1} %", 100.0 * **count as f64 / rounds as f64));
    let _ = writeln!(text, "led by {}", led.collect::<Vec<_>>().join(", "));
    let mut worst: Vec<&ExplainedRound> = explained.rounds.iter().collect();
    worst.sort_by(|a, b| b.loss.total.total_cmp(&a.loss.total));
    let worst = worst.iter().take(WORST).map(|round| {
        let causes = round.loss.causes();
        let (cause, _) = causes.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("four");
        format!("{} ({}, mostly {cause})", round.round, short(round.loss.total))
    });
    let _ = writeln!(text, "worst rounds: {}", worst.collect::<Vec<_>>().join(", "));
}

fn at(cut: Cut) -> String {
    format!("{} in {} s", short(cut.accepted), short(cut.seconds))
}

/// A number of contributions; blank if it is next to nothing.
fn amount(lost: f64) -> String {
    if lost.abs() < 0.005 { String::new() } else { format!("{lost:.2}") }
}
