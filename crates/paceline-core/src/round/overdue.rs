//! Contributions that take far longer than usual: rounds stop waiting for them, and their samples get a
//! second holder.

use super::{Phase, RoundMachine};
use crate::{Contribution, ContributionId, EventKind, Handout, Time, WorkerId};

impl RoundMachine {
    /// The next time at which a contribution becomes overdue while the round is open.
    pub(super) fn next_overdue(&self) -> Option<Time> {
        self.overdue_check.filter(|_| self.phase == Phase::Open)
    }

    /// Finds the contributions that have become overdue. Rounds that would admit one from an earlier round do
    /// not wait for it any longer.
    pub(crate) fn note_overdue(&mut self, now: Time) {
        if self.next_overdue().is_none_or(|at| at > now) {
            return;
        }
        let Some(patience) = self.patience.duration() else { return };
        for work in self.contributions_mut().working_mut() {
            work.overdue |= work.state().may_arrive() && work.started + patience <= now;
        }
        self.wait.ask_again();
        self.plan_overdue_check();
    }

    pub(super) fn plan_overdue_check(&mut self) {
        let patience = self.patience.duration();
        let waiting = self.contributions().working().values();
        let waiting = waiting.filter(|work| !work.overdue && work.state().may_arrive());
        let first = waiting.map(|work| work.started).min();
        self.overdue_check = first.zip(patience).map(|(started, patience)| started + patience);
    }

    /// Gives `second` the samples of an overdue contribution. Of two holders that are both overdue, the first
    /// one loses them.
    pub(crate) fn take_overdue(&mut self, second: WorkerId, now: Time) -> Option<Handout> {
        let due = self.may_be_doubled().filter(|(at, _)| *at <= now);
        let (_, id) = due.min_by_key(|(_, id)| *id)?;
        if let Some((first, by)) = self.contributions_mut().drop_older_twin(id) {
            let Contribution { id, worker, base, .. } = first;
            self.emit(now, EventKind::Superseded { id, worker, base, by });
        }
        let first = self.contributions().working().values().find(|c| c.id == id)?;
        Some(Handout {
            worker: second,
            ranges: first.ranges.clone(),
            waited_for: false,
            worth: first.worth,
            any_weight: false,
            twin: Some(id),
        })
    }

    /// The next time after `after` at which [`Self::take_overdue`] has samples to give.
    pub(crate) fn next_second_holder(&self, after: Time) -> Option<Time> {
        self.may_be_doubled().map(|(at, _)| at).filter(|at| *at > after).min()
    }

    /// Contributions that have not arrived, with the time from which on their samples may get another holder.
    /// Of two holders this names the younger.
    fn may_be_doubled(&self) -> impl Iterator<Item = (Time, ContributionId)> + '_ {
        let patience = self.patience.for_second_holder();
        let waiting = self.contributions().working().values().filter(|c| {
            let is_youngest = c.twin.is_none_or(|twin| twin < c.id);
            is_youngest && c.state().may_arrive()
        });
        waiting.filter_map(move |c| Some((c.started + patience?, c.id)))
    }
}
