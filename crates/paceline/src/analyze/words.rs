//! Findings in words, shared by terminal and page.

use paceline_analysis::{Analysis, Change, Ranking, Shift, WorkerSlowness};
use paceline_report::short;

/// A share of one, in per cent.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        x if x != 0.0 && x.abs() < 0.95 => format!("{x:.1} %"),
        x => format!("{x:.0} %"),
    }
}

/// A probability, which is never certainty.
pub(super) fn sure(probability: f64) -> String {
    match probability {
        p if p > 0.99 => "> 99 %".to_owned(),
        p if p < 0.01 => "< 1 %".to_owned(),
        p => percent(p),
    }
}

/// A ratio, as a factor.
pub(super) fn times(ratio: f64) -> String {
    match ratio {
        x if x >= 9.95 => format!("{}×", short(x)),
        x => format!("{x:.2}×"),
    }
}

/// A worker's slowness, with `≥` if some of its run-times are lower bounds.
pub(super) fn slowness(worker: &WorkerSlowness) -> String {
    let least = if worker.censored > 0.0 { "≥ " } else { "" };
    format!("{least}{}", times(worker.factor))
}

/// A time in a suitable unit; a bare number if the unit is relative.
pub(super) fn span(x: f64, unit: &str) -> String {
    if unit != "seconds" {
        return short(x);
    }
    match x {
        x if x < 1e-3 => format!("{} µs", short(x * 1e6)),
        x if x < 1.0 => format!("{} ms", short(x * 1e3)),
        x if x < 600.0 => format!("{} s", short(x)),
        x if x < 36_000.0 => format!("{} min", short(x / 60.0)),
        x => format!("{} h", short(x / 3600.0)),
    }
}

/// A count with its noun.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn hours(x: f64) -> String {
    match x {
        x if x < 9.95 => format!("{x:.1} h"),
        x => format!("{} h", short(x.round())),
    }
}

/// The three summary lines: the cost of waiting, the saving of the best fixed cutoff, and the most that
/// any cutoff can save.
pub(super) fn headline(analysis: &Analysis) -> [String; 3] {
    let Analysis { name, workers, rounds, cost, censoring, .. } = analysis;
    let worst = censoring.as_ref().map(|c| &c.pessimistic);
    let range = |low: String, high: Option<String>| match high {
        Some(high) if high != low => format!("{low} to {high}"),
        _ => low,
    };
    let idle = range(percent(cost.idle), worst.map(|worst| percent(worst.idle)));
    let first = format!(
        "{name}: waiting for the slowest costs {idle} of all worker time ({}, {}).",
        counted(*workers, "worker"),
        counted(*rounds, "round")
    );
    let best = range(times(cost.fixed.gain), worst.map(|worst| times(worst.fixed_gain)));
    let saved = |gain: f64, worst: Option<f64>| match analysis.saving {
        Some(saving) => {
            let hours_of = |gain: f64| hours(saving.run_hours * (1.0 - 1.0 / gain));
            let of = hours(saving.run_hours);
            format!(", saves {} of {of}", range(hours_of(gain), worst.map(hours_of)))
        }
        None => String::new(),
    };
    let second = match cost.fixed.count {
        count if count == *workers && best == "1.00×" => {
            format!("No fixed cutoff is faster than waiting for all {workers}.")
        }
        count => {
            let at_worst = worst.map(|worst| worst.fixed_count);
            let counts = match at_worst.filter(|other| *other != count) {
                Some(other) => format!("{} to {}", count.min(other), count.max(other)),
                None => count.to_string(),
            };
            let saved = saved(cost.fixed.gain, worst.map(|worst| worst.fixed_gain));
            format!("Best fixed cutoff: wait for {counts} of {workers}; {best} as fast{saved}.")
        }
    };
    let most = range(times(cost.oracle.gain), worst.map(|worst| times(worst.oracle_gain)));
    let third = format!(
        "At most (the best cutoff of each round, known afterwards): {most} as fast{}.",
        saved(cost.oracle.gain, worst.map(|worst| worst.oracle_gain))
    );
    [first, second, third]
}

/// The slow workers in a sentence, with at most `most` names.
pub(super) fn slow_workers(ranking: &Ranking, most: usize) -> String {
    let slow = ranking.workers.iter().filter(|worker| worker.slow).count();
    let slow = match slow {
        0 => "no worker is".to_owned(),
        1 => "one worker is".to_owned(),
        slow => format!("{slow} of {} are", ranking.workers.len()),
    };
    let worst = &ranking.worst;
    let who = match &worst.workers[..] {
        [one] => format!("worker {one}"),
        many => format!("the {} most costly ({})", many.len(), names(many, most)),
    };
    let cost = match times(worst.slowdown) {
        none if none == "1.00×" => "full sync is not held up by a few workers".to_owned(),
        longer => format!("{who} made full sync take {longer} as long"),
    };
    format!("{slow} clearly slower than typical; {cost}")
}

/// A change, as a sentence.
pub(super) fn shift(shift: &Shift, most: usize) -> String {
    let who = match &shift.workers[..] {
        [one] => format!("worker {one}"),
        many => format!("{} workers ({})", many.len(), names(many, most)),
    };
    format!("round {}: {who} {}", shift.round, slower(shift.factor))
}

/// A change of the whole cluster, as a sentence.
pub(super) fn change(change: &Change, what: &str) -> String {
    format!("round {}: {what} {}", change.round, slower(change.factor))
}

fn slower(factor: f64) -> String {
    match factor >= 1.0 {
        true => format!("{} as slow as before", times(factor)),
        false => format!("{} as fast as before", times(1.0 / factor)),
    }
}

/// A short list of names: consecutive numbers as ranges, at most `most` ranges.
pub(super) fn names(names: &[String], most: usize) -> String {
    let mut runs: Vec<(&String, &String)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((_, last)) if follows(last, name) => *last = name,
            _ => runs.push((name, name)),
        }
    }
    let shown: Vec<String> = runs
        .iter()
        .take(most)
        .map(|(first, last)| match first == last {
            true => (*first).clone(),
            false => format!("{first}–{last}"),
        })
        .collect();
    let more = if runs.len() > most { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Whether `name` is `before` with the next number at its end.
fn follows(before: &str, name: &str) -> bool {
    let split = |name: &str| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[stem.len()..].parse::<u64>().ok()?;
        Some((stem.len(), number))
    };
    match (split(before), split(name)) {
        (Some((a, i)), Some((b, j))) => before[..a] == name[..b] && i + 1 == j,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_named_as_ranges() {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&list(&["0", "1", "2", "5", "7", "8"]), 9), "0–2, 5, 7–8");
        assert_eq!(names(&list(&["w8", "w9", "w10", "x11"]), 9), "w8–w10, x11");
        assert_eq!(names(&list(&["a", "b", "c"]), 2), "a, b, …");
        assert_eq!(names(&list(&["99999999999999999999999"]), 2), "99999999999999999999999");
    }

    #[test]
    fn figures_have_only_significant_digits() {
        assert_eq!(percent(0.2412), "24 %");
        assert_eq!(percent(0.0041), "0.4 %");
        assert_eq!((times(1.2346), times(27.42)), ("1.23×".into(), "27.4×".into()));
        assert_eq!(
            (span(0.0123, "seconds"), span(0.0123, "relative")),
            ("12.3 ms".into(), "0.0123".into())
        );
        assert_eq!(
            (span(3.5, "seconds"), span(7200.0, "seconds")),
            ("3.5 s".into(), "120 min".into())
        );
        assert_eq!((hours(1.25), hours(17.4)), ("1.2 h".into(), "17 h".into()));
    }
}
