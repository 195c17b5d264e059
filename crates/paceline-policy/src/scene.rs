//! A round as predictors and stopping rules see it: who took how long, who is silent since when.

use std::time::Duration;

use paceline_core::{RoundRecord, RoundView, RunTime, Time, WorkerId};

/// News of a micro-batch may be late by this share of one.
const SLACK: f64 = 0.1;
/// The same for the last, after which comes the push.
const LAST_SLACK: f64 = 0.3;

/// A moment of an open round, or of a closed one looked at again.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// Seconds since the round opened.
    pub elapsed: f64,
    /// Who has arrived, in order of arrival.
    pub arrived: Vec<Arrived>,
    /// Who may still come.
    pub silent: Vec<Silent>,
    /// Micro-batches that count one by one at the cut; 1 where a contribution is all or nothing.
    pub partial: u32,
}

/// A worker that has arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrived {
    /// Who.
    pub worker: WorkerId,
    /// How long it took, in seconds; of one that was given less, what a whole portion would have taken.
    pub run_time: f64,
    /// Samples it brought.
    pub weight: f64,
}

/// A worker that has not. Its times are those of a whole portion, and `load` says what share of one it
/// was given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Silent {
    /// Who.
    pub worker: WorkerId,
    /// Seconds since it could begin.
    pub elapsed: f64,
    /// The share of a whole portion that it was given.
    pub load: f64,
    /// Samples it would bring.
    pub weight: f64,
    /// Micro-batches it has finished, where they count.
    pub done: u32,
    /// The pace that those show, while it is kept.
    pub pace: Option<Pace>,
}

/// When micro-batches are done, by those that are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Seconds after which the last of them was done.
    pub last: f64,
    /// Seconds that each takes.
    pub each: f64,
}

impl Pace {
    /// Seconds after which `more` are done than are now.
    pub(crate) fn end(&self, more: u32) -> f64 {
        self.last + f64::from(more) * self.each
    }
}

impl Silent {
    /// Its elapsed time after a further `wait` of the round, in seconds.
    pub(crate) fn after(&self, wait: f64) -> f64 {
        self.elapsed + wait / self.load
    }

    /// The further wait of the round, in seconds, until its elapsed time is `at`.
    pub(crate) fn wait_until(&self, at: f64) -> f64 {
        (at - self.elapsed) * self.load
    }
}

impl Scene {
    /// What an open round looks like now.
    pub fn from_view(view: &RoundView<'_>) -> Scene {
        let arrived = view.arrivals.iter().map(|arrival| {
            let load = view.load(arrival.contribution.weight / arrival.share);
            Arrived {
                worker: arrival.contribution.worker,
                run_time: seconds(arrival.run_time.per_portion(load)),
                weight: arrival.contribution.weight,
            }
        });
        let silent = view.outstanding().map(|(worker, work)| {
            let load = view.load(f64::from(work.samples));
            let since_start = |at: Time| {
                let at_least = at.since(work.started);
                seconds(RunTime::Censored { at_least }.per_portion(load))
            };
            let elapsed = since_start(view.now);
            let done = if view.partial > 1 { work.done.min(view.partial) } else { 0 };
            // What comes before the first, the pull, is not in the pace if two are known.
            let (from, before) = match work.first {
                Some((first, at)) if first < done => (since_start(at), first),
                _ => (0.0, 0),
            };
            let last = since_start(work.done_at);
            let pace = Pace { last, each: (last - from) / f64::from(done - before) };
            // The last ends with the push, which is not in the pace.
            let slack = if done + 1 < view.partial { SLACK } else { LAST_SLACK };
            let kept = done > 0 && elapsed <= pace.last + (1.0 + slack) * pace.each;
            Silent {
                worker,
                elapsed,
                load,
                weight: f64::from(work.samples),
                done,
                pace: Some(pace).filter(|_| kept),
            }
        });
        Scene {
            elapsed: view.now.since(view.opened).as_secs_f64(),
            arrived: arrived.collect(),
            silent: silent.collect(),
            partial: view.partial,
        }
    }

    /// Those who have arrived and those who may.
    pub fn participants(&self) -> usize {
        self.arrived.len() + self.silent.len()
    }

    /// Samples that a cut now would bring.
    pub fn gained(&self) -> f64 {
        let whole: f64 = self.arrived.iter().map(|a| a.weight).sum();
        whole + self.silent.iter().map(|s| s.weight * self.share_done(s)).sum::<f64>()
    }

    /// Samples that may still come.
    pub fn missing(&self) -> f64 {
        self.silent.iter().map(|s| s.weight * (1.0 - self.share_done(s))).sum()
    }

    /// The share of a silent worker's work that would count now.
    pub(crate) fn share_done(&self, silent: &Silent) -> f64 {
        f64::from(silent.done) / f64::from(self.partial.max(1))
    }
}

/// Seconds of a run-time, or of its lower bound.
pub(crate) fn seconds(time: RunTime) -> f64 {
    time.bound().as_secs_f64()
}

/// The run-times of a closed round, as whole portions take them. The run-time of a salvaged worker is
/// censored like that of any other straggler: it says that the whole takes longer. The pace of its
/// finished micro-batches is no run-time. It foretells the rest only while the worker keeps it
/// ([`Silent::pace`]), and a worker that stalls or hangs in a micro-batch does not.
pub(crate) fn whole_portions(record: &RoundRecord<'_>) -> Vec<(WorkerId, RunTime)> {
    let times = record.run_times.iter();
    times.map(|&(worker, time)| (worker, time.per_portion(record.load(worker)))).collect()
}

/// How long a worker takes that has done a share of its work at `until`, at an even pace: with j of m
/// micro-batches, and on average half of one under way, about `until`·m/(j + ½). Tells how far it was
/// before `until`; nothing is known of it after.
pub(crate) fn pace(until: Duration, share: f64, partial: u32) -> Duration {
    until.div_f64((share + 0.5 / f64::from(partial.max(1))).min(1.0))
}

/// Observed run-times of a closed round in order, then the censored ones.
pub(crate) fn in_order(record: &RoundRecord<'_>) -> Vec<(WorkerId, RunTime)> {
    let mut order = record.run_times.to_vec();
    order.sort_by_key(|&(worker, time)| (time.is_censored(), time.bound(), worker));
    order
}
