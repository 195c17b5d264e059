//! What is done to worker processes from outside, by whoever started them.

use std::{str::FromStr, time::Duration};

use paceline_core::parse_duration;

use crate::{rate::Rate, stall::Stall};

/// One thing that is done to one worker, or to several.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Disturbance {
    /// A busy loop shares the worker's core.
    Hog { worker: u32 },
    /// These workers share one core, as on a shared node; the others have the other cores.
    Crowd { first: u32, last: u32 },
    /// The worker lets others go first: its nice value is so much above the run's, 1 to 19.
    Nice { worker: u32, more: i32 },
    /// The worker's process is stopped and continued by signals.
    Stop { worker: u32, stall: Stall },
    /// The worker is killed and comes back.
    Preempt { worker: u32, preemption: Preemption },
    /// The worker is behind a link of this rate, each way.
    Link { worker: u32, rate: Rate },
    /// What the worker says and hears is under way for so much longer, each way.
    Delay { worker: u32, time: Duration },
    /// This share of the worker's segments is lost, each way: above 0, at most ½.
    Loss { worker: u32, share: f64 },
}

/// A worker killed in its first work on version `round` or a later one, and started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preemption {
    /// The first version in whose work it may be killed.
    pub round: u64,
    /// From its end to its new start.
    pub away: Duration,
}

/// The most that may be lost; with more, connections hardly come about.
const MOST_LOST: f64 = 0.5;

impl Disturbance {
    /// How they are written, for people.
    pub(crate) const FORMS: &str = "hog:WORKER (hog:0), crowd:FIRST-LAST (crowd:0-2), \
                                    nice:WORKER:1..19 (nice:1:10), stop:WORKER:EVERY:FOR, shorter than EVERY \
                                    (stop:1:5s:800ms), preempt:WORKER@ROUND:FOR (preempt:1@40:3s), \
                                    link:WORKER:RATE (link:1:10mbit), delay:WORKER:TIME \
                                    (delay:1:50ms), loss:WORKER:PERCENT up to 50 (loss:1:0.5)";

    /// Reads one item; `None` if it is none of these.
    pub(crate) fn read(item: &str) -> Option<Self> {
        let (kind, rest) = item.split_once(':')?;
        match kind {
            "hog" => Some(Disturbance::Hog { worker: rest.parse().ok()? }),
            "crowd" => {
                let (first, last) = halves(rest, '-')?;
                (first < last).then_some(Disturbance::Crowd { first, last })
            }
            "nice" => {
                let (worker, more) = halves(rest, ':')?;
                (1..=19).contains(&more).then_some(Disturbance::Nice { worker, more })
            }
            "stop" => {
                let (worker, cycle) = halves::<u32, String>(rest, ':')?;
                Some(Disturbance::Stop { worker, stall: Stall::read(&cycle)? })
            }
            "preempt" => {
                let (worker, when) = halves::<u32, String>(rest, '@')?;
                let (round, away) = halves::<u64, String>(&when, ':')?;
                let preemption = Preemption { round, away: parse_duration(&away)? };
                Some(Disturbance::Preempt { worker, preemption })
            }
            "link" => {
                let (worker, rate) = halves(rest, ':')?;
                Some(Disturbance::Link { worker, rate })
            }
            "delay" => {
                let (worker, time) = halves::<u32, String>(rest, ':')?;
                Some(Disturbance::Delay { worker, time: parse_duration(&time)? })
            }
            "loss" => {
                let (worker, percent) = halves::<u32, f64>(rest, ':')?;
                let share = percent / 100.0;
                (share > 0.0 && share <= MOST_LOST).then_some(Disturbance::Loss { worker, share })
            }
            _ => None,
        }
    }

    /// The worker that it names; the last of several.
    pub(crate) fn worker(&self) -> u32 {
        match *self {
            Disturbance::Crowd { last, .. } => last,
            Disturbance::Hog { worker }
            | Disturbance::Nice { worker, .. }
            | Disturbance::Stop { worker, .. }
            | Disturbance::Preempt { worker, .. }
            | Disturbance::Link { worker, .. }
            | Disturbance::Delay { worker, .. }
            | Disturbance::Loss { worker, .. } => worker,
        }
    }
}

/// What stands before and after the first `at`.
fn halves<A: FromStr, B: FromStr>(text: &str, at: char) -> Option<(A, B)> {
    let (first, second) = text.split_once(at)?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn disturbances_read_as_they_are_written() {
        let stall = Stall::new(5 * SECOND, SECOND * 4 / 5).unwrap();
        let preemption = Preemption { round: 40, away: 3 * SECOND };
        for (text, meant) in [
            ("hog:0", Disturbance::Hog { worker: 0 }),
            ("crowd:0-2", Disturbance::Crowd { first: 0, last: 2 }),
            ("nice:1:10", Disturbance::Nice { worker: 1, more: 10 }),
            ("stop:1:5s:800ms", Disturbance::Stop { worker: 1, stall }),
            ("preempt:1@40:3s", Disturbance::Preempt { worker: 1, preemption }),
            ("link:1:10mbit", Disturbance::Link { worker: 1, rate: "10mbit".parse().unwrap() }),
            ("delay:1:50ms", Disturbance::Delay { worker: 1, time: SECOND / 20 }),
            ("loss:1:0.5", Disturbance::Loss { worker: 1, share: 0.005 }),
        ] {
            assert_eq!(Disturbance::read(text), Some(meant), "{text}");
            assert!(Disturbance::FORMS.contains(&format!("({text})")), "{text} is an example");
        }
    }

    #[test]
    fn nonsense_is_not_read() {
        for text in [
            "",
            "hog",
            "hog:",
            "hog:-1",
            "crowd:2",
            "crowd:2-2",
            "crowd:3-1",
            "nice:1",
            "nice:1:0",
            "nice:1:20",
            "nice:1:-5",
            "stop:1:5s",
            "stop:1:5s:5s",
            "stop:1:5s:0s",
            "stop:1:5s:soon",
            "stop:1:5s:1s:1s",
            "preempt:1@40",
            "preempt:1:3s",
            "preempt:1@x:3s",
            "link:1",
            "link:1:fast",
            "link:1:10",
            "delay:1",
            "delay:1:-5ms",
            "loss:1",
            "loss:1:0",
            "loss:1:51",
            "loss:1:NaN",
            "slow:1:2",
        ] {
            assert_eq!(Disturbance::read(text), None, "{text}");
        }
    }
}
