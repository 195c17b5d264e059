//! The end of a round: asking the policy, the cut, the close.

use std::time::Duration;

use super::{Phase, RoundMachine};
use crate::{CutReason, EventKind, Time, WorkerId, useless::USELESS};

/// Reasons to hold a round open although the policy would cut it.
enum Hold {
    /// Fewer contributions than the quorum.
    Quorum,
    /// Contributions that must not be cut, until this moment at the latest.
    WaitedFor(Option<Time>),
}

impl RoundMachine {
    /// Makes all decisions that follow from the reports so far. Call it after a batch of reports and at
    /// [`Self::next_wake`].
    pub fn decide(&mut self, now: Time) {
        self.catch_up(now);
        self.quorum.observe(self.live.len(), now);
        self.note_overdue(now);
        match self.phase {
            Phase::Open if !self.wait.roster.is_anyone_outstanding() => self.cut_if_complete(now),
            Phase::Open => self.ask_policy(now),
            Phase::Cut { until } if now >= until || !self.wait.roster.owes_parts() => {
                self.close(now);
            }
            Phase::Cut { .. } | Phase::Closed => {}
        }
    }

    /// Makes overdue decisions as of the time at which they were due. A driver may be late for a time that
    /// the policy chose (timers are, and so is a busy driver). The decision must not depend on how late, or a
    /// run could not be replayed from its log.
    pub(crate) fn catch_up(&mut self, now: Time) {
        loop {
            match self.phase {
                Phase::Open => match self.wait.overdue(now) {
                    Some(at) => self.ask_policy(at),
                    None => return,
                },
                Phase::Cut { until } if until < now => self.close(until),
                Phase::Cut { .. } | Phase::Closed => return,
            }
        }
    }

    /// No worker is left to wait for. A round may close below the quorum only if there was no work for more
    /// workers (every wanted worker has been enlisted by now), not because the others are dead.
    fn cut_if_complete(&mut self, now: Time) {
        let quorum = self.config.quorum;
        let roster = &self.wait.roster;
        let enough = roster.arrivals.len() >= quorum || self.live.len() >= quorum;
        if !roster.contributions.accepted().is_empty() && enough {
            self.cut(CutReason::AllArrived, now);
        }
    }

    fn ask_policy(&mut self, now: Time) {
        let Some(reason) = self.wait.ask(now) else { return };
        match self.hold(now) {
            None => self.cut(reason, now),
            // Every arrival may meet the quorum.
            Some(Hold::Quorum) => self.wait.ask_later(None, 1),
            // Only an arrival of one of these contributions, a change of membership or the end of patience
            // can release the cut.
            Some(Hold::WaitedFor(until)) => self.wait.ask_later(until, usize::MAX),
        }
    }

    /// Whether a cut must wait: for the quorum (or for all participants, if they are fewer), for samples that
    /// were returned too often, or for the parts that a shard at its staleness bound has not received.
    fn hold(&mut self, now: Time) -> Option<Hold> {
        let roster = &mut self.wait.roster;
        let participants = roster.arrivals.len() + roster.outstanding().count();
        if roster.arrivals.len() < self.config.quorum.min(participants).max(1) {
            return Some(Hold::Quorum);
        }
        let (patience, for_shards) = (self.patience.duration(), self.patience.for_shards());
        let mut holds = false;
        let mut until: Option<Time> = None;
        let oldest = roster.oldest_admissible();
        for work in roster.contributions.working_mut() {
            if work.base < oldest || !work.state().may_arrive() {
                continue;
            }
            let end = |patience: Option<Duration>| patience.map(|p| work.started + p);
            let ends =
                [(end(patience), &mut work.waited_for), (end(for_shards), &mut work.awaits_shard)];
            for (end, waits) in ends {
                *waits &= end.is_none_or(|end| end > now);
                if *waits {
                    until = [until, end].into_iter().flatten().min();
                }
                holds |= *waits;
            }
        }
        holds.then_some(Hold::WaitedFor(until))
    }

    fn cut(&mut self, reason: CutReason, now: Time) {
        let roster = &self.wait.roster;
        let stragglers: Vec<WorkerId> = roster.outstanding().map(|work| work.worker).collect();
        let accepted = roster.arrivals.len() as u32;
        let grace = match stragglers.is_empty() {
            true => Duration::ZERO,
            false => {
                let salvages = self.config.straggler.counts_parts() && self.stops_stragglers();
                let pays = match salvages {
                    true => self.grace.worthwhile(&roster.view(now)),
                    false => Duration::ZERO,
                };
                self.wait.grace(now, pays)
            }
        };
        self.cut_at = now;
        let trusts = self.policy().trusts(accepted as usize + stragglers.len());
        let (round, asked) = (self.round(), self.wait.take_asked());
        self.emit(now, EventKind::Cut { round, reason, trusts, accepted, stragglers, asked });
        self.phase = Phase::Cut { until: now + grace };
        if grace.is_zero() {
            self.close(now);
        }
    }

    fn close(&mut self, now: Time) {
        let (round, roster) = (self.round(), &self.wait.roster);
        let (closes, weight) = (roster.memberships(self.blocks), roster.weight());
        self.grace.closed(weight, roster.opened, now);
        let run_times = self.wait.close(self.cut_at, now, weight);
        let useless = self.closed_without(&run_times, round.base());
        self.phase = Phase::Closed;
        self.contributions_mut().use_accepted();
        if !self.config.straggler.keeps_work() {
            let (oldest, cut) = (self.wait.roster.oldest_admissible(), self.cut_at);
            self.contributions_mut().take_older(oldest, cut);
        }
        self.emit(now, EventKind::Closed { round, closes, run_times });
        for worker in useless {
            let name = self.live.get(&worker).cloned().unwrap_or_default();
            self.emit(now, EventKind::Useless { worker, name, rounds: USELESS });
        }
    }

    /// Takes in the participants of a closed round on `base`. Returns the workers to report because their
    /// work has not been used for many rounds.
    fn closed_without(
        &mut self,
        run_times: &[(WorkerId, crate::RunTime)],
        base: crate::Version,
    ) -> Vec<WorkerId> {
        let roster = &self.wait.roster;
        let took_part = run_times.iter().map(|&(worker, _)| worker);
        let folded = roster.contributions.accepted().iter().filter(|c| c.folded);
        let took_part = took_part.chain(folded.map(|late| late.worker));
        let members = roster.members();
        let took_part = took_part.map(|worker| (worker, members.contains(&worker)));
        // A worker that still computes for an earlier round has missed this one, too.
        let behind = roster.contributions.working().values().filter(|work| work.base < base);
        let missed = behind.filter(|_| roster.lag() == 0).map(|work| (work.worker, false));
        self.useless.closed(took_part.chain(missed))
    }
}
