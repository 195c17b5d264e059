//! The wait of a round: its participants, and the policy that decides how long to wait for them.
//!
//! The round machine waits for workers in this way, and [`crate::Shards`] for shards: participants are sent a
//! request, answers arrive, and the policy is asked after answers and at the times that it chose.

use std::time::Duration;

use crate::{
    Arrival, Contribution, CutReason, Decision, Policy, Round, RoundRecord, RunTime, Time,
    WorkerId,
    roster::{Roster, Terms},
};

/// The shortest time between two questions to a policy without an arrival.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// A round's participants, and the policy that waits for them.
pub(crate) struct Wait {
    policy: Box<dyn Policy>,
    pub(crate) roster: Roster,
    wake: Wake,
    /// When the policy was asked in this round, and how many contributions had arrived.
    asked: Vec<(Time, u32)>,
}

/// When the policy wants to be asked again.
#[derive(Debug, Clone, Copy)]
struct Wake {
    at: Option<Time>,
    arrivals: usize,
}

/// The policy is asked as soon as possible.
const AT_ONCE: Wake = Wake { at: None, arrivals: 0 };

impl Wait {
    /// Starts with round `first`.
    pub(crate) fn new(policy: Box<dyn Policy>, first: Round, terms: Terms) -> Wait {
        Wait { policy, roster: Roster::new(first, terms), wake: AT_ONCE, asked: Vec::new() }
    }

    pub(crate) fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    pub(crate) fn policy_mut(&mut self) -> &mut dyn Policy {
        &mut *self.policy
    }

    /// The round opens.
    pub(crate) fn open(&mut self, now: Time) {
        self.roster.opened = now;
        self.roster.arrivals.clear();
        self.roster.contributions.clear_accepted();
        self.ask_again();
    }

    /// A complete contribution counts in the round.
    pub(crate) fn accept(&mut self, contribution: Contribution, arrival: Arrival) {
        let worth = contribution.worth;
        self.roster.arrivals.push(arrival);
        self.wake.arrivals = self.wake.arrivals.saturating_sub(1);
        self.roster.contributions.accept(contribution, worth);
    }

    /// The policy is to be asked as soon as possible.
    pub(crate) fn ask_again(&mut self) {
        self.wake = AT_ONCE;
    }

    /// The policy is to be asked at this time, or after `arrivals` more arrivals, whatever it answered.
    pub(crate) fn ask_later(&mut self, at: Option<Time>, arrivals: usize) {
        self.wake = Wake { at, arrivals };
    }

    /// Asks the policy, if it is due. Returns the reason to cut the round, if it decides so.
    pub(crate) fn ask(&mut self, now: Time) -> Option<CutReason> {
        let woken = self.wake.at.is_some_and(|at| now >= at);
        if self.wake.arrivals > 0 && !woken {
            return None;
        }
        self.asked.push((now, self.roster.arrivals.len() as u32));
        match self.policy.decide(&self.roster.view(now)) {
            Decision::Wait { until, arrivals } => {
                // A time in the past would be asked again for ever.
                let at = until.map(|at| at.max(now + SHORTEST_WAIT));
                self.wake = Wake { at, arrivals: arrivals.max(1) };
                None
            }
            Decision::Cut { reason } => Some(reason),
        }
    }

    /// How long to wait for stragglers' finished work; `pays` is the wait that is expected to pay.
    pub(crate) fn grace(&mut self, now: Time, pays: Duration) -> Duration {
        self.policy.grace(&self.roster.view(now), pays)
    }

    /// A run-time that was censored when its round closed is now known, or has a better bound.
    pub(crate) fn late(&mut self, late: &Contribution, now: Time) {
        let load = self.roster.view(now).load(f64::from(late.samples));
        self.policy.late(late.worker, late.base, late.run_time(now), load);
    }

    /// The time before `now` at which the policy was due and was not asked.
    pub(crate) fn overdue(&self, now: Time) -> Option<Time> {
        self.next_wake().filter(|&at| at < now)
    }

    /// The next time at which the policy is due, if any worker is outstanding.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.wake.at.filter(|_| self.roster.is_anyone_outstanding())
    }

    /// Takes the times at which the policy was asked in this round, each with the number of arrivals by then.
    pub(crate) fn take_asked(&mut self) -> Vec<(Time, u32)> {
        std::mem::take(&mut self.asked)
    }

    /// The round is closed, with `weight` samples. The policy learns from it, and the next round may open.
    /// Returns the run-times.
    pub(crate) fn close(&mut self, cut: Time, now: Time, weight: f64) -> Vec<(WorkerId, RunTime)> {
        let roster = &self.roster;
        let (run_times, loads) = (roster.run_times(now), roster.loads(now));
        let salvaged = roster.arrivals.iter().filter(|arrival| arrival.run_time.is_censored());
        let salvaged: Vec<_> = salvaged.map(|arrival| (arrival.worker, arrival.share)).collect();
        self.policy.closed(&RoundRecord {
            weight,
            round: roster.round,
            opened: roster.opened,
            cut,
            closed: now,
            run_times: &run_times,
            salvaged: &salvaged,
            loads: &loads,
        });
        self.ask_again();
        self.asked.clear();
        self.roster.round = self.roster.round.next();
        run_times
    }
}
