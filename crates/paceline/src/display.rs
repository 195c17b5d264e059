//! The live display of a run: a bar on a terminal, plain lines in a pipe.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Display as Text,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_core::{Event, EventKind, LeaveReason, ShardId, StopReason, Time, WorkerId};

use crate::console::{self, Status, say};

/// Interval between lines in a pipe.
const EVERY: Duration = Duration::from_secs(2);

/// Window over which rates are measured.
const WINDOW: Duration = Duration::from_secs(5);

/// Interval between redraws of the bar.
const REDRAW: Duration = Duration::from_millis(100);

/// The end of a run, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Goal {
    /// Rounds of the run.
    pub(crate) rounds: Option<u64>,
    /// Epochs of the run.
    pub(crate) epochs: Option<u32>,
    /// Samples of a round to which all workers contribute.
    pub(crate) weight: f64,
}

/// Draws a run from its events. It never waits for the reader of standard error ([`console`]).
pub(crate) struct Display {
    /// Standard error is a terminal, so a bar is shown.
    has_bar: bool,
    state: RunState,
    /// When the last line was written, or the bar was drawn.
    drawn: Time,
}

/// The state of the run by its events so far.
#[derive(Default)]
struct RunState {
    rounds: u64,
    goal: Goal,
    /// `None` where workers bring streams of data.
    samples_per_epoch: Option<f64>,
    used: f64,
    loss: Option<f64>,
    accuracy: Option<f64>,
    accepted: u32,
    participants: u32,
    recent: VecDeque<(Time, f64)>,
    late: BTreeMap<WorkerId, u32>,
    /// How often a round waited for each shard that had missed the most updates allowed.
    awaited: BTreeMap<ShardId, u32>,
    /// The gradient noise scale, in samples.
    noise: Option<f64>,
}

impl Display {
    pub(crate) fn new(goal: Goal) -> Self {
        let bar =
            ProgressBar::with_draw_target(goal.rounds, ProgressDrawTarget::stderr_with_hz(10));
        let template = match goal.rounds.is_some() || goal.epochs.is_some() {
            true => "{bar:24} {pos}/{len} {msg}",
            false => "{spinner} {pos} {msg}",
        };
        let bar = bar.with_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let has_bar = !bar.is_hidden();
        if has_bar {
            console::show_bar(bar);
        }
        let state = RunState { goal, ..RunState::default() };
        Display { has_bar, state, drawn: Time::ZERO }
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.state.event(event);
        match &event.kind {
            EventKind::RunStarted {
                name,
                policy,
                workers,
                shards,
                parameters,
                staging_bytes,
                ..
            } => {
                say(format_args!(
                    "{name}: {workers} workers, {shards} shards, {parameters} parameters, policy \
                     {policy}; staging at most {:.1} MiB",
                    *staging_bytes as f64 / f64::from(1 << 20)
                ));
            }
            EventKind::WorkerLeft { worker, why } if *why != LeaveReason::Finished => {
                say(format_args!("{worker} left: {why}; its samples go to others"));
            }
            EventKind::Useless { worker, name, rounds } => say(format_args!(
                "{worker} ({name}): none of its work was used in {rounds} rounds; remove it, or give \
                 it less work (--rebalance true, with auto or filter)"
            )),
            EventKind::Waiting { round, waited, workers } => say(format_args!(
                "round {} has waited {:.1} s for {}",
                round.0,
                waited.as_secs_f64(),
                listed(workers)
            )),
            EventKind::CheckpointFailed { version, error } => say(format_args!(
                "failed to write the checkpoint of round {}, will try again: {error}",
                version.0
            )),
            EventKind::Mismatch { worker, version, tensor, differing } => say(format_args!(
                "{worker} has other parameters than most workers after {version} ({tensor}{}): it takes \
                 the run's state",
                match differing {
                    0 | 1 => String::new(),
                    more => format!(" and {} more", more - 1),
                }
            )),
            EventKind::ConnectionClosed { peer, error } => {
                say(format_args!("closed the connection of {peer}: {error}"));
            }
            EventKind::Evaluated { version, loss, accuracy } => say(format_args!(
                "round {}: test accuracy {:.2} %, test loss {loss:.4}",
                version.0,
                accuracy * 100.0
            )),
            EventKind::Stopped { reason, .. } => self.stop(reason),
            EventKind::Updated { .. } => self.update(event.at),
            _ => {}
        }
    }

    fn update(&mut self, now: Time) {
        let every = if self.has_bar { REDRAW } else { EVERY };
        if now.since(self.drawn) < every {
            return;
        }
        self.drawn = now;
        let (goal, rounds, text) = (self.state.goal(), self.state.rounds, self.state.line());
        if self.has_bar {
            return console::show_status(Status { goal, rounds, text });
        }
        let goal = goal.map(|goal| format!("/{goal}")).unwrap_or_default();
        say(format_args!("round {rounds}{goal} {text}"));
        self.state.late.clear();
        self.state.awaited.clear();
    }

    fn stop(&mut self, reason: &StopReason) {
        console::clear_bar();
        if !reason.is_success() {
            say(format_args!("stopped: {reason}"));
        }
    }
}

impl RunState {
    fn event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::RunStarted { version, samples, used, .. } => {
                self.rounds = version.0;
                self.used = *used as f64;
                self.samples_per_epoch = samples.map(f64::from);
            }
            EventKind::Cut { accepted, stragglers, .. } => {
                self.accepted = *accepted;
                self.participants = accepted + stragglers.len() as u32;
                for worker in stragglers {
                    *self.late.entry(*worker).or_default() += 1;
                }
            }
            EventKind::ShardAwaited { shard, .. } => *self.awaited.entry(*shard).or_default() += 1,
            EventKind::Updated { version, loss, weight, noise_scale, .. } => {
                self.noise = *noise_scale;
                self.rounds = version.0;
                self.used += weight;
                if let Some(loss) = loss {
                    self.loss = Some(self.loss.map_or(*loss, |old| 0.9 * old + 0.1 * loss));
                }
                self.recent.push_back((event.at, *weight));
                while self.recent.front().is_some_and(|(at, _)| event.at.since(*at) > WINDOW) {
                    self.recent.pop_front();
                }
            }
            EventKind::Evaluated { accuracy, .. } => self.accuracy = Some(*accuracy),
            _ => {}
        }
    }

    /// The round at which the run will end at its recent pace: dropped work makes an epoch take more
    /// rounds.
    fn goal(&self) -> Option<u64> {
        let by_epochs = self.goal.epochs.zip(self.samples_per_epoch).map(|(epochs, samples)| {
            let weight = match self.recent.len() {
                0 => self.goal.weight,
                rounds => self.recent.iter().map(|(_, weight)| weight).sum::<f64>() / rounds as f64,
            };
            let left = (f64::from(epochs) * samples - self.used).max(0.0);
            self.rounds + (left / weight.max(1.0)).ceil() as u64
        });
        self.goal.rounds.into_iter().chain(by_epochs).min()
    }

    fn line(&self) -> String {
        let span = match (self.recent.front(), self.recent.back()) {
            (Some((first, _)), Some((last, _))) => last.since(*first).as_secs_f64(),
            _ => 0.0,
        };
        let per_second = |count: f64| if span > 0.0 { count / span } else { 0.0 };
        let rounds = per_second(self.recent.len().saturating_sub(1) as f64);
        let samples = per_second(self.recent.iter().skip(1).map(|(_, weight)| weight).sum());
        let mut line = match self.samples_per_epoch {
            Some(samples) => format!("epoch {:.2}", self.used / samples.max(1.0)),
            None => format!("{:.0} samples", self.used),
        };
        if let Some(loss) = self.loss {
            line += &format!("  loss {loss:.4}");
        }
        if let Some(accuracy) = self.accuracy {
            line += &format!("  test {:.2} %", accuracy * 100.0);
        }
        line += &format!("  {rounds:.1} rounds/s  {samples:.0} samples/s");
        line += &format!("  cut {}/{}", self.accepted, self.participants);
        if let Some(noise) = self.noise {
            line += &format!("  noise scale {noise:.0}");
        }
        line + &most("late", &self.late) + &most("waited for", &self.awaited)
    }
}

/// Workers with their names, at most eight.
fn listed(workers: &[(WorkerId, String)]) -> String {
    const MOST: usize = 8;
    let named = workers.iter().take(MOST).map(|(worker, name)| format!("{worker} ({name})"));
    let named = named.collect::<Vec<_>>().join(", ");
    match workers.len().saturating_sub(MOST) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The keys with the highest counts, at most three.
fn most<T: Ord + Text>(what: &str, counts: &BTreeMap<T, u32>) -> String {
    let mut counts: Vec<(&T, &u32)> = counts.iter().collect();
    counts.sort_by_key(|&(who, times)| (std::cmp::Reverse(*times), who));
    let counts: Vec<String> =
        counts.iter().take(3).map(|(who, times)| format!("{who} {times}×")).collect();
    if counts.is_empty() { String::new() } else { format!("  {what} {}", counts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use paceline_core::{Round, Version};

    use super::*;

    fn updated(round: u64, weight: f64) -> Event {
        let at = Time::ZERO + Duration::from_millis(round);
        let (round, version) = (Round(round), Version(round + 1));
        let (learning_rate, gradient_norm, loss, param_hash) = (0.1, 1.0, Some(1.0), None);
        let kind = EventKind::Updated {
            round,
            version,
            learning_rate,
            gradient_norm,
            noise_scale: None,
            loss,
            weight,
            param_hash,
            shards: Vec::new(),
        };
        Event { at, kind }
    }

    #[test]
    fn the_goal_in_epochs_is_further_off_when_work_is_dropped() {
        let goal = Goal { rounds: None, epochs: Some(2), weight: 20.0 };
        let mut state = RunState { goal, samples_per_epoch: Some(100.0), ..RunState::default() };
        assert_eq!(state.goal(), Some(10));
        (0..4).for_each(|round| state.event(&updated(round, 10.0)));
        assert_eq!(state.goal(), Some(4 + 16));
        state.goal.rounds = Some(12);
        assert_eq!(state.goal(), Some(12));
    }
}
