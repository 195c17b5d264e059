//! A round as predictors and stopping rules see it: arrivals with run-times, and silent workers.

use std::time::Duration;

use paceline_core::{RoundRecord, RoundView, RunTime, Time, WorkerId};

/// Tolerated delay of a micro-batch's report, as a share of a micro-batch.
const SLACK: f64 = 0.1;
/// The same for the last micro-batch, which the push follows.
const LAST_SLACK: f64 = 0.3;

/// A moment of an open round, or of a closed round in hindsight.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// Seconds since the round opened.
    pub elapsed: f64,
    /// Workers that have arrived, in order of arrival.
    pub arrived: Vec<Arrived>,
    /// Workers that may still arrive.
    pub silent: Vec<Silent>,
    /// Micro-batches that count one by one at the cut; 1 if a contribution is all or nothing.
    pub partial: u32,
}

/// A worker that has arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrived {
    /// The worker.
    pub worker: WorkerId,
    /// Its run-time in seconds, scaled to a whole portion if it was given less.
    pub run_time: f64,
    /// Samples of its contribution.
    pub weight: f64,
}

/// A worker that has not arrived. Its times are scaled to a whole portion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Silent {
    /// The worker.
    pub worker: WorkerId,
    /// Seconds since it could begin.
    pub elapsed: f64,
    /// The share of a whole portion that it was given.
    pub load: f64,
    /// Samples of its contribution, should it arrive.
    pub weight: f64,
    /// Micro-batches it has finished, if they count.
    pub done: u32,
    /// The pace of those micro-batches, as long as the worker keeps it.
    pub pace: Option<MicroBatchPace>,
}

/// A worker's pace by its finished micro-batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MicroBatchPace {
    /// When the last of them finished, in seconds.
    pub last: f64,
    /// Seconds per micro-batch.
    pub each: f64,
}

impl MicroBatchPace {
    /// When `more` further micro-batches will have finished, in seconds.
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
    /// The scene of an open round now.
    pub fn from_view(view: &RoundView<'_>) -> Scene {
        let arrived = view.arrivals.iter().map(|arrival| {
            let load = view.load(arrival.weight / arrival.share);
            Arrived {
                worker: arrival.worker,
                run_time: seconds(arrival.run_time.per_portion(load)),
                weight: arrival.weight,
            }
        });
        let silent = view.outstanding().map(|(worker, work)| {
            let load = view.load(f64::from(work.samples));
            let since_start = |at: Time| {
                let at_least = at.since(work.started);
                seconds(RunTime::Censored { at_least }.per_portion(load))
            };
            let elapsed = since_start(view.now);
            let done = if view.partial > 1 { view.done(work.done) } else { 0 };
            // With two micro-batches known, the pace excludes the pull before the first.
            let first = work.first.map(|(first, at)| (view.done(first), at));
            let (from, before) = match first {
                Some((first, at)) if first < done => (since_start(at), first),
                _ => (0.0, 0),
            };
            let last = since_start(work.done_at);
            let pace = MicroBatchPace { last, each: (last - from) / f64::from(done - before) };
            // The last micro-batch ends with the push, which the pace does not include.
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

    /// Workers that have arrived or may still arrive.
    pub fn participants(&self) -> usize {
        self.arrived.len() + self.silent.len()
    }

    /// Samples that a cut now would gain.
    pub fn gained(&self) -> f64 {
        let whole: f64 = self.arrived.iter().map(|a| a.weight).sum();
        whole + self.silent.iter().map(|s| s.weight * self.share_done(s)).sum::<f64>()
    }

    /// Samples that may still arrive.
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
/// censored like that of any other straggler: the whole portion takes longer. The pace of its finished
/// micro-batches is no run-time. It predicts the rest only while the worker keeps it
/// ([`Silent::pace`]), and a worker that stalls or hangs in a micro-batch does not.
pub(crate) fn whole_portions(record: &RoundRecord<'_>) -> Vec<(WorkerId, RunTime)> {
    let times = record.run_times.iter();
    times.map(|&(worker, time)| (worker, time.per_portion(record.load(worker)))).collect()
}

/// The run-time, at an even pace, of a worker that has done a share of its work at `until`: with j of m
/// micro-batches, and on average half of one under way, about `until`·m/(j + ½). It describes the
/// worker's progress before `until`; nothing is known about it after.
pub(crate) fn pace(until: Duration, share: f64, partial: u32) -> Duration {
    until.div_f64((share + 0.5 / f64::from(partial.max(1))).min(1.0))
}

/// Observed run-times of a closed round in order, then the censored ones.
pub(crate) fn in_order(record: &RoundRecord<'_>) -> Vec<(WorkerId, RunTime)> {
    let mut order = record.run_times.to_vec();
    order.sort_by_key(|&(worker, time)| (time.is_censored(), time.bound(), worker));
    order
}
