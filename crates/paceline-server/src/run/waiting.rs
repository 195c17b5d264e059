//! Notices about rounds that wait far longer than usual, with the workers that they wait for.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use paceline_core::{Event, EventKind, Round, Time, WorkerId};

use super::Run;

/// No round shorter than this is long.
const LEAST: Duration = Duration::from_secs(2);

/// A round is long if it takes this many times the median of the recent ones.
const FACTOR: u32 = 5;

/// How many recent rounds the median covers.
const RECENT: usize = 32;

/// Follows the open round through its events. Reports when it has become long, then again whenever its length
/// has doubled.
#[derive(Debug, Default)]
pub(super) struct WaitNotice {
    /// How long each recent round was open, oldest first.
    recent: VecDeque<Duration>,
    open: Option<OpenRound>,
}

#[derive(Debug)]
struct OpenRound {
    round: Round,
    since: Time,
    /// The length at which the next notice is due.
    notice_at: Duration,
    /// Workers that were given work in this round and have not delivered.
    outstanding: BTreeSet<WorkerId>,
}

impl WaitNotice {
    /// Takes in an event.
    pub(super) fn see(&mut self, event: &Event) {
        match (&event.kind, &mut self.open) {
            (EventKind::RoundStarted { round, work }, _) => {
                let outstanding = work.iter().map(|work| work.worker).collect();
                let notice_at = LEAST.max(FACTOR * self.median());
                self.open =
                    Some(OpenRound { round: *round, since: event.at, notice_at, outstanding });
            }
            (EventKind::Enlisted { work, .. }, Some(open)) => {
                open.outstanding.insert(work.worker);
            }
            (
                EventKind::Arrived { worker, .. }
                | EventKind::Aborted { worker, .. }
                | EventKind::Late { worker, .. }
                | EventKind::WorkerLeft { worker, .. },
                Some(open),
            ) => {
                open.outstanding.remove(worker);
            }
            (EventKind::Closed { .. }, open) => {
                if let Some(open) = open.take() {
                    self.recent.push_back(event.at.since(open.since));
                    self.recent.drain(..self.recent.len().saturating_sub(RECENT));
                }
            }
            _ => {}
        }
    }

    /// If a notice is due: the open round, how long it has been open, and the workers that it waits for.
    pub(super) fn due(&mut self, now: Time) -> Option<(Round, Duration, Vec<WorkerId>)> {
        let open = self.open.as_mut()?;
        let waited = now.since(open.since);
        if waited < open.notice_at || open.outstanding.is_empty() {
            return None;
        }
        open.notice_at = 2 * waited;
        Some((open.round, waited, open.outstanding.iter().copied().collect()))
    }

    fn median(&self) -> Duration {
        let mut recent: Vec<Duration> = self.recent.iter().copied().collect();
        recent.sort_unstable();
        recent.get(recent.len() / 2).copied().unwrap_or_default()
    }
}

impl Run {
    /// Reports the workers that the open round waits for, if it has waited long.
    pub(super) fn tell_of_wait(&mut self, now: Time) {
        if self.ending.reason.is_some() {
            return;
        }
        if let Some((round, waited, workers)) = self.wait_notice.due(now) {
            let name = |worker| (worker, self.members.workers.name(worker).to_owned());
            let workers = workers.into_iter().map(name).collect();
            self.emit(EventKind::Waiting { round, waited, workers });
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::{BlockClose, LeaveReason, Work};

    use super::*;

    fn at(millis: u64, kind: EventKind) -> Event {
        Event { at: Time::ZERO + Duration::from_millis(millis), kind }
    }

    fn started(millis: u64, round: u64, workers: &[u32]) -> Event {
        let work = |worker: &u32| -> Work {
            let range = serde_json::json!({"epoch": 0, "start": 0, "end": 1});
            let work = serde_json::json!({"worker": worker, "portion": [range]});
            serde_json::from_value(work).unwrap()
        };
        let work = workers.iter().map(work).collect();
        at(millis, EventKind::RoundStarted { round: Round(round), work })
    }

    fn closed(millis: u64, round: u64) -> Event {
        let closes: Vec<BlockClose> = Vec::new();
        let run_times = Vec::new();
        at(millis, EventKind::Closed { round: Round(round), closes, run_times })
    }

    fn left(millis: u64, worker: u32) -> Event {
        let why = LeaveReason::Finished;
        at(millis, EventKind::WorkerLeft { worker: WorkerId(worker), why })
    }

    #[track_caller]
    fn check(notice: &mut WaitNotice, millis: u64, expected: Option<(u64, &[u32])>) {
        let due = notice.due(Time::ZERO + Duration::from_millis(millis));
        let due = due.map(|(round, _, workers)| (round.0, workers));
        let expected = expected
            .map(|(round, workers)| (round, workers.iter().copied().map(WorkerId).collect()));
        assert_eq!(due, expected, "at {millis} ms");
    }

    #[test]
    fn a_long_round_is_told_at_two_seconds_and_whenever_it_has_doubled() {
        let mut notice = WaitNotice::default();
        notice.see(&started(0, 0, &[0, 1, 2]));
        notice.see(&left(10, 1));
        check(&mut notice, 1_999, None);
        check(&mut notice, 2_000, Some((0, &[0, 2])));
        check(&mut notice, 3_999, None);
        check(&mut notice, 4_500, Some((0, &[0, 2])));
        check(&mut notice, 8_999, None);
        check(&mut notice, 9_000, Some((0, &[0, 2])));
        notice.see(&closed(9_500, 0));
        check(&mut notice, 100_000, None);
    }

    #[test]
    fn where_rounds_are_long_a_long_one_takes_five_times_their_median() {
        let mut notice = WaitNotice::default();
        for round in 0..9 {
            notice.see(&started(1_000 * round, round, &[0]));
            notice.see(&closed(1_000 * round + 900, round));
        }
        notice.see(&started(10_000, 9, &[0]));
        check(&mut notice, 14_499, None);
        check(&mut notice, 14_500, Some((9, &[0])));
    }

    #[test]
    fn a_round_that_waits_for_nobody_is_not_told() {
        let mut notice = WaitNotice::default();
        notice.see(&started(0, 0, &[0]));
        notice.see(&left(10, 0));
        check(&mut notice, 60_000, None);
    }
}
