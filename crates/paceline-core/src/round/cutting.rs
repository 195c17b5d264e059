//! The end of a round: asking the policy, the cut, the close.

use std::time::Duration;

use super::{Phase, RoundMachine, Wake};
use crate::{
    Assignment, CutReason, Decision, EventKind, RoundRecord, Straggler, Time, WorkerId,
    useless::USELESS,
};

/// A policy is not asked again sooner than this without an arrival.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

impl RoundMachine {
    /// Decides what follows from all that was reported. Call after a batch of reports and at
    /// [`Self::next_wake`].
    pub fn decide(&mut self, now: Time) {
        self.catch_up(now);
        self.watch_quorum(now);
        match self.phase {
            Phase::Open if self.roster.outstanding().next().is_none() => self.cut_if_complete(now),
            Phase::Open => self.ask_policy(now),
            Phase::Cut { until } if now >= until || !self.roster.owes_parts() => self.close(now),
            Phase::Cut { .. } | Phase::Closed => {}
        }
    }

    /// Does what was due before now, as of when it was due. A driver may come late to a moment that
    /// the policy asked for (timers do, and so does whoever was busy); what is decided then must not
    /// depend on how late, or a run could not be re-driven from its log.
    pub(crate) fn catch_up(&mut self, now: Time) {
        loop {
            match self.phase {
                Phase::Open => match self.wake.at {
                    Some(at) if at < now && self.roster.outstanding().next().is_some() => {
                        self.ask_policy(at);
                    }
                    _ => return,
                },
                Phase::Cut { until } if until < now => self.close(until),
                Phase::Cut { .. } | Phase::Closed => return,
            }
        }
    }

    /// Nobody is left to wait for. Fewer than the quorum may close a round only if there was no
    /// work for more (whoever was wanted has been enlisted by now), not if the others are dead.
    fn cut_if_complete(&mut self, now: Time) {
        let quorum = self.config.quorum;
        let enough = self.roster.arrivals.len() >= quorum || self.live.len() >= quorum;
        if !self.roster.is_empty() && enough {
            self.cut(CutReason::AllArrived, now);
        }
    }

    fn ask_policy(&mut self, now: Time) {
        let woken = self.wake.at.is_some_and(|at| now >= at);
        if self.wake.arrivals > 0 && !woken {
            return;
        }
        self.asked.push((now, self.roster.arrivals.len() as u32));
        let view = self.roster.view(now);
        match self.policy.decide(&view) {
            Decision::Wait { until, arrivals } => {
                // A moment that is already past would be asked for ever.
                let at = until.map(|at| at.max(now + SHORTEST_WAIT));
                self.wake = Wake { at, arrivals: arrivals.max(1) };
            }
            Decision::Cut { reason } if self.may_cut() => self.cut(reason, now),
            // Held back by those the ledger waits for: only their arrival (or a change of
            // membership) can free it. Short of the quorum, every arrival may.
            Decision::Cut { .. } => {
                let held = self.roster.arrivals.len() >= self.config.quorum;
                let arrivals = if held { usize::MAX } else { 1 };
                self.wake = Wake { at: None, arrivals };
            }
        }
    }

    /// A cut needs the quorum (or everyone there is), and those the ledger waits for.
    fn may_cut(&self) -> bool {
        let participants = self.roster.arrivals.len() + self.roster.outstanding().count();
        self.roster.arrivals.len() >= self.config.quorum.min(participants).max(1)
            && self.roster.outstanding().all(|(_, work)| !work.waited_for)
    }

    fn cut(&mut self, reason: CutReason, now: Time) {
        let stragglers: Vec<WorkerId> =
            self.roster.outstanding().map(|(worker, _)| worker).collect();
        let grace = match stragglers.is_empty() {
            true => Duration::ZERO,
            false => {
                let view = self.roster.view(now);
                let salvages =
                    self.config.straggler == Straggler::Salvage && self.stops_stragglers();
                let pays = if salvages { self.grace.worthwhile(&view) } else { Duration::ZERO };
                self.policy.grace(&view, pays)
            }
        };
        let accepted = self.roster.arrivals.len() as u32;
        self.cut_at = now;
        let trusts = self.policy.trusts(accepted as usize + stragglers.len());
        let round = self.roster.round;
        let asked = std::mem::take(&mut self.asked);
        self.emit(now, EventKind::Cut { round, reason, trusts, accepted, stragglers, asked });
        self.phase = Phase::Cut { until: now + grace };
        if grace.is_zero() {
            self.close(now);
        }
    }

    fn close(&mut self, now: Time) {
        let closes = self.roster.memberships(self.config.blocks);
        let (run_times, loads) = (self.roster.run_times(now), self.roster.loads(now));
        let (arrivals, weight) = (&self.roster.arrivals, self.roster.weight());
        self.grace.closed(weight, self.roster.opened, now);
        let salvaged: Vec<(WorkerId, f64)> = arrivals
            .iter()
            .filter(|arrival| arrival.run_time.is_censored())
            .map(|arrival| (arrival.contribution.worker, arrival.share))
            .collect();
        self.policy.closed(&RoundRecord {
            weight,
            round: self.roster.round,
            opened: self.roster.opened,
            cut: self.cut_at,
            closed: now,
            run_times: &run_times,
            salvaged: &salvaged,
            loads: &loads,
        });
        let took_part = run_times.iter().map(|&(worker, _)| worker);
        let rode_along = self.roster.folded.iter().map(|(late, _)| late.worker);
        let took_part = took_part.chain(rode_along).map(|w| (w, self.roster.holds(w)));
        // Who is still at what a round before was closed without has missed this one, too.
        let base = self.roster.round.base();
        let behind = self.roster.working.iter().filter(|(_, work)| work.base < base);
        let missed = behind.map(|(&worker, _)| (worker, false));
        let missed = missed.filter(|_| self.policy.admissible_lag() == 0);
        let useless = self.useless.closed(took_part.chain(missed));
        self.phase = Phase::Closed;
        self.wake = Wake { at: None, arrivals: 0 };
        let closed = EventKind::Closed { round: self.roster.round, closes, run_times };
        self.roster.round = self.roster.round.next();
        if self.config.straggler != Straggler::Finish {
            let oldest = self.roster.oldest_admissible();
            let working = std::mem::take(&mut self.roster.working);
            for (worker, work) in working {
                match work.base >= oldest {
                    true => drop(self.roster.working.insert(worker, work)),
                    false => {
                        let work = Assignment { cut: Some(self.cut_at), ..work };
                        self.cancelled.insert((worker, work.base), work);
                    }
                }
            }
        }
        self.emit(now, closed);
        for worker in useless {
            let name = self.live.get(&worker).cloned().unwrap_or_default();
            self.emit(now, EventKind::Useless { worker, name, rounds: USELESS });
        }
    }

    /// Closes the open round with whoever has arrived, though the policy would wait.
    pub(crate) fn give_up(&mut self, now: Time) {
        self.catch_up(now);
        if self.phase == Phase::Open {
            self.cut_at = now;
        }
        if self.phase != Phase::Closed {
            self.close(now);
        }
    }
}
