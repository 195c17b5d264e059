//! The interface between a round and the policy that decides when it stops waiting.

use std::{collections::BTreeMap, time::Duration};

use crate::{Arrival, Contribution, CutReason, Round, RunTime, Time, Version, WorkerId};

/// Decides when a round stops waiting. One file per policy, in `paceline-policy`.
///
/// Laws:
/// - Pure and deterministic: the same calls give the same answers. Time and seeds are handed in.
/// - Asked only while the round is open and some worker is still computing for it. Otherwise the machine cuts
///   by itself; a dead worker never holds up a round.
/// - Run-times are as the coordinator's clock measured them, with each worker's load beside them: the share
///   of a whole portion that it was given ([`RoundView::load`], [`RoundRecord::load`]).
///   [`RunTime::per_portion`] is the only conversion between the two.
/// - A cut is carried out once the quorum is met and every worker that the ledger waits for has arrived.
///   Until then the policy is asked again as they arrive.
pub trait Policy: Send {
    /// The policy as the user writes it: `static:3`.
    fn name(&self) -> String;

    /// Asked after arrivals, when membership changes, and at the times that the policy chose.
    fn decide(&mut self, view: &RoundView<'_>) -> Decision;

    /// The component that the policy currently relies on, if it combines several. For display.
    fn trusts(&self, _participants: usize) -> Option<String> {
        None
    }

    /// How many versions behind the open round a contribution may be and still be admitted: 0 for
    /// synchronous rounds, s for bounded staleness.
    fn admissible_lag(&self) -> u64 {
        0
    }

    /// Asked once, at the cut: how long to wait for the finished work of stragglers. They are admitted within
    /// this grace. The round closes at its end, or once all have answered. `pays` is the wait that is
    /// expected to pay; zero without salvage.
    fn grace(&mut self, _view: &RoundView<'_>, pays: Duration) -> Duration {
        pays
    }

    /// How long a worker takes for a whole portion, in seconds, if known.
    fn typical(&self, _worker: WorkerId) -> Option<f64> {
        None
    }

    /// A round closed, with this record to learn from. The next round waits for this call; expensive work
    /// belongs in [`Policy::study`].
    fn closed(&mut self, _record: &RoundRecord<'_>) {}

    /// A round is open, its workers are computing, and nothing is urgent: the time for expensive learning.
    /// Called only while a round is open. The calls must not change any answer: a policy that was not called
    /// does the same work when it is next asked.
    fn study(&mut self) {}

    /// The gradient noise scale, in samples, as estimated after an update. Called between a close and the
    /// next opening.
    fn noise(&mut self, _scale: f64) {}

    /// How late the system's timers usually fire, as the driver measures it. Called before an opening, when it
    /// has changed; never in a simulation, whose timers are exact.
    fn lateness(&mut self, _usual: Duration) {}

    /// A run-time that was censored when its round closed is now known, or has a better bound. `load` is the
    /// share of a whole portion that the worker was given.
    fn late(&mut self, _worker: WorkerId, _base: Version, _run_time: RunTime, _load: f64) {}
}

/// A policy's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Keep waiting. Asked again at `until` or after `arrivals`, whichever comes first, and at every change
    /// of membership.
    Wait {
        /// Ask again at this time.
        until: Option<Time>,
        /// Ask again after this many more arrivals; 0 counts as 1.
        arrivals: usize,
    },
    /// Stop waiting.
    Cut {
        /// The reason.
        reason: CutReason,
    },
}

impl Decision {
    /// Wait for the next arrival, however long it takes.
    pub const WAIT: Decision = Decision::Wait { until: None, arrivals: 1 };

    /// Stop waiting.
    pub fn cut(reason: CutReason) -> Decision {
        Decision::Cut { reason }
    }
}

/// A policy's view of the open round.
#[derive(Debug, Clone, Copy)]
pub struct RoundView<'a> {
    /// The round.
    pub round: Round,
    /// The current time.
    pub now: Time,
    /// When the round opened.
    pub opened: Time,
    /// The arrivals, in order.
    pub arrivals: &'a [Arrival],
    /// The least number of contributions that a round may close with.
    pub quorum: usize,
    /// Micro-batches of a worker that count one by one at the cut (salvage); 1 where a contribution counts
    /// only as a whole.
    pub partial: u32,
    /// Micro-batches in whose number workers report their progress.
    pub(crate) micro_batches: u32,
    /// Samples of a whole portion; 0 where all portions are equal.
    pub(crate) batch: u32,
    pub(crate) working: &'a BTreeMap<WorkerId, Contribution>,
    pub(crate) oldest: Version,
    pub(crate) outstanding: usize,
}

impl<'a> RoundView<'a> {
    /// Whether the round has just opened. The policy is asked at every opening.
    pub fn is_opening(&self) -> bool {
        self.now == self.opened && self.arrivals.is_empty()
    }

    /// The share of a whole portion that `samples` make up.
    pub fn load(&self, samples: f64) -> f64 {
        match self.batch {
            0 => 1.0,
            batch => (samples / f64::from(batch)).max(f64::MIN_POSITIVE),
        }
    }

    /// How many of [`RoundView::partial`] micro-batches are done when `reported` are.
    pub fn done(&self, reported: u32) -> u32 {
        let (reported, all) = (u64::from(reported), u64::from(self.micro_batches));
        let done = (2 * reported * u64::from(self.partial) + all) / (2 * all);
        (done as u32).min(self.partial)
    }

    /// How many of [`RoundView::partial`] micro-batches of a contribution a cut now could salvage.
    pub(crate) fn finished(&self, work: &Contribution) -> u32 {
        self.done(work.done).max(work.pushed(self.partial))
    }

    /// Workers that may still arrive in this round, in worker order. All are live.
    pub fn outstanding(&self) -> impl Iterator<Item = (WorkerId, &'a Contribution)> + use<'a> {
        let (oldest, round) = (self.oldest, self.round.base());
        self.working
            .iter()
            .filter(move |(_, work)| work.is_outstanding(oldest, round))
            .map(|(&worker, work)| (worker, work))
    }

    /// How many workers may still arrive.
    pub fn outstanding_count(&self) -> usize {
        self.outstanding
    }

    /// The number of workers that have arrived or may still arrive.
    pub fn participants(&self) -> usize {
        self.arrivals.len() + self.outstanding
    }

    /// The answer of a policy that waits for `count` of the participants, at least one and at most all.
    pub fn wait_for(&self, count: usize) -> Decision {
        let wanted = count.clamp(1, self.participants().max(1));
        match wanted.saturating_sub(self.arrivals.len()) {
            0 => Decision::cut(CutReason::Count { wanted: wanted as u32 }),
            missing => Decision::Wait { until: None, arrivals: missing },
        }
    }
}

/// A closed round's record, kept until there is time to learn from it.
#[derive(Debug, Clone)]
pub struct KeptRecord {
    record: RoundRecord<'static>,
    run_times: Vec<(WorkerId, RunTime)>,
    salvaged: Vec<(WorkerId, f64)>,
    loads: Vec<(WorkerId, f64)>,
}

impl KeptRecord {
    /// The record itself.
    pub fn record(&self) -> RoundRecord<'_> {
        let KeptRecord { run_times, salvaged, loads, record } = self;
        RoundRecord { run_times, salvaged, loads, ..*record }
    }
}

impl RoundRecord<'_> {
    /// The share of a whole portion that a worker was given.
    pub fn load(&self, worker: WorkerId) -> f64 {
        let found = self.loads.binary_search_by_key(&worker, |&(worker, _)| worker);
        found.map_or(1.0, |index| self.loads[index].1)
    }

    /// An owned copy.
    pub fn keep(&self) -> KeptRecord {
        KeptRecord {
            record: RoundRecord { run_times: &[], salvaged: &[], loads: &[], ..*self },
            run_times: self.run_times.to_vec(),
            salvaged: self.salvaged.to_vec(),
            loads: self.loads.to_vec(),
        }
    }
}

/// The record of a closed round, from which a policy learns.
#[derive(Debug, Clone, Copy)]
pub struct RoundRecord<'a> {
    /// The round.
    pub round: Round,
    /// When it opened.
    pub opened: Time,
    /// When it stopped waiting.
    pub cut: Time,
    /// When its membership was fixed.
    pub closed: Time,
    /// Samples behind all accepted contributions.
    pub weight: f64,
    /// The run-time of every worker that was given work in this round, in worker order. Censored if the
    /// worker was cut, whether or not its finished part was salvaged.
    pub run_times: &'a [(WorkerId, RunTime)],
    /// For every worker whose finished part was salvaged, the share of its work in that part.
    pub salvaged: &'a [(WorkerId, f64)],
    /// The shares of workers that were given less than a whole portion, in worker order.
    pub loads: &'a [(WorkerId, f64)],
}
