//! A closed round in hindsight: what an earlier cut would have gained.

use std::collections::BTreeMap;

use paceline_core::{RoundRecord, RunTime, WorkerId};

use crate::scene::{Arrived, MicroBatchPace, Scene, Silent, in_order, pace, seconds};

/// The arrival times of a round, and the progress of its stragglers. Times are as measured;
/// [`ClosedRound::scene`] converts them to whole portions for predictors.
#[derive(Debug)]
pub(crate) struct ClosedRound {
    /// Observed run-times in order, then the censored ones.
    order: Vec<(WorkerId, RunTime)>,
    /// The share of a whole portion that each worker was given.
    loads: Vec<f64>,
    /// Seconds that each worker takes for all of its work, if known or extrapolated from its pace.
    whole: Vec<Option<f64>>,
    arrived: usize,
    /// Micro-batches per contribution if they count one by one, else 1.
    partial: u32,
    /// Approximate samples per whole portion.
    each: f64,
}

impl ClosedRound {
    pub(crate) fn new(record: &RoundRecord<'_>, partial: u32) -> Self {
        let order = in_order(record);
        let loads: Vec<f64> = order.iter().map(|(worker, _)| record.load(*worker)).collect();
        let arrived = order.iter().filter(|(_, time)| !time.is_censored()).count();
        let shares: BTreeMap<WorkerId, f64> = record.salvaged.iter().copied().collect();
        let whole = order.iter().map(|(worker, time)| match time.is_censored() {
            false => Some(seconds(*time)),
            true => {
                let share = shares.get(worker).filter(|share| **share > 0.0)?;
                Some(pace(time.bound(), *share, partial).as_secs_f64())
            }
        });
        let parts: f64 = shares.iter().map(|(worker, share)| record.load(*worker) * share).sum();
        let came = loads[..arrived].iter().sum::<f64>() + parts;
        let each = if came > 0.0 { record.weight / came } else { record.weight };
        ClosedRound { whole: whole.collect(), order, loads, arrived, partial, each }
    }

    pub(crate) fn participants(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn arrived(&self) -> usize {
        self.arrived
    }

    /// When `count` workers had arrived; `None` if they never did.
    pub(crate) fn arrival(&self, count: usize) -> Option<f64> {
        let place = count.checked_sub(1).filter(|_| count <= self.arrived)?;
        Some(seconds(self.order[place].1))
    }

    /// The last moment that was observed.
    pub(crate) fn end(&self) -> f64 {
        self.order.iter().map(|(_, time)| seconds(*time)).fold(0.0, f64::max)
    }

    /// Samples of the round if all workers finished.
    pub(crate) fn all(&self) -> f64 {
        match self.loads.is_empty() {
            true => self.each,
            false => self.each * self.loads.iter().sum::<f64>(),
        }
    }

    /// Samples gained by a cut at `time` with `count` arrivals, including the others' micro-batches.
    pub(crate) fn brings(&self, count: usize, time: f64) -> f64 {
        let whole: f64 = self.loads[..count].iter().sum();
        let parts: f64 = (count..self.order.len())
            .map(|place| self.loads[place] * f64::from(self.done(place, time)))
            .sum();
        self.each * (whole + parts / f64::from(self.partial.max(1)))
    }

    /// The round as it looked when `count` had arrived, or after `elapsed` seconds, whichever is later.
    pub(crate) fn scene(&self, count: usize, elapsed: f64) -> Scene {
        let elapsed = self.arrival(count.min(self.arrived)).map_or(elapsed, |at| at.max(elapsed));
        let mut scene = Scene { elapsed, partial: self.partial.max(1), ..Scene::default() };
        for (place, &(worker, time)) in self.order.iter().enumerate() {
            let load = self.loads[place];
            let weight = self.each * load;
            match !time.is_censored() && seconds(time) <= elapsed {
                true => {
                    let run_time = seconds(time.per_portion(load));
                    scene.arrived.push(Arrived { worker, run_time, weight });
                }
                false => {
                    let done = self.done(place, elapsed);
                    let pace = self.whole[place].filter(|_| done > 0).map(|whole| {
                        let each = whole / load / f64::from(self.partial);
                        MicroBatchPace { last: each * f64::from(done), each }
                    });
                    let elapsed = elapsed / load;
                    scene.silent.push(Silent { worker, elapsed, load, weight, done, pace });
                }
            }
        }
        scene
    }

    /// Micro-batches that a worker without an arrival had finished by `time`.
    fn done(&self, place: usize, time: f64) -> u32 {
        match self.whole[place] {
            Some(whole) if self.partial > 1 && whole > 0.0 => {
                ((f64::from(self.partial) * time / whole) as u32).min(self.partial)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_core::{Round, Time};

    use super::*;

    /// Workers take 1, 2, 4 and 8 seconds; the round was cut when two were in.
    fn round(partial: u32, salvaged: &[(WorkerId, f64)], weight: f64) -> ClosedRound {
        round_of(partial, salvaged, &[], weight)
    }

    fn round_of(
        partial: u32,
        salvaged: &[(WorkerId, f64)],
        loads: &[(WorkerId, f64)],
        weight: f64,
    ) -> ClosedRound {
        let seconds = Duration::from_secs;
        let run_times = [
            (WorkerId(0), RunTime::Observed(seconds(2))),
            (WorkerId(1), RunTime::Observed(seconds(1))),
            (WorkerId(2), RunTime::Censored { at_least: seconds(2) }),
            (WorkerId(3), RunTime::Censored { at_least: seconds(2) }),
        ];
        let cut = Time::ZERO + seconds(2);
        let record = RoundRecord {
            round: Round(3),
            opened: Time::ZERO,
            cut,
            closed: cut,
            weight,
            run_times: &run_times,
            salvaged,
            loads,
        };
        ClosedRound::new(&record, partial)
    }

    #[test]
    fn parts_of_others_count_where_they_are_salvaged() {
        // Halves and quarters of 8 samples: 2 of 4 micro-batches done, and 1 of 4.
        let round = round(4, &[(WorkerId(2), 0.5), (WorkerId(3), 0.25)], 22.0);
        assert_eq!(round.all(), 32.0);
        assert_eq!(round.brings(2, 2.0), 22.0, "what it brought");
        // At the first arrival the second had done half; the others, by their pace, a quarter and none.
        assert_eq!(round.brings(1, 1.0), 8.0 * (1.0 + 0.5 + 0.25));
        let scene = round.scene(1, 0.0);
        assert_eq!((scene.elapsed, scene.arrived.len(), scene.gained()), (1.0, 1, 14.0));
        assert_eq!(round.scene(9, 0.0).arrived.len(), 2, "no more than came");
    }

    /// Predictors see whole portions; the round's order and end follow the clock.
    #[test]
    fn a_worker_with_half_a_portion_is_shown_at_its_pace_for_a_whole_one() {
        let loads = [(WorkerId(0), 0.5), (WorkerId(3), 0.5)];
        let round = round_of(1, &[], &loads, 12.0);
        assert_eq!((round.arrival(2), round.end(), round.all()), (Some(2.0), 2.0, 24.0));
        assert_eq!([round.brings(1, 1.0), round.brings(2, 2.0)], [8.0, 12.0]);
        let scene = round.scene(2, 0.0);
        let arrived: Vec<(u32, f64, f64)> =
            scene.arrived.iter().map(|a| (a.worker.0, a.run_time, a.weight)).collect();
        assert_eq!(arrived, [(1, 1.0, 8.0), (0, 4.0, 4.0)]);
        let silent: Vec<(u32, f64, f64)> =
            scene.silent.iter().map(|s| (s.worker.0, s.elapsed, s.weight)).collect();
        assert_eq!(silent, [(2, 2.0, 8.0), (3, 4.0, 4.0)]);
        assert_eq!(scene.silent[1].after(1.0), 6.0);
    }

    #[test]
    fn where_all_or_nothing_counts_only_arrivals_do() {
        let round = round(1, &[], 16.0);
        assert_eq!([round.brings(1, 1.0), round.brings(2, 2.0), round.all()], [8.0, 16.0, 32.0]);
        assert_eq!((round.arrival(2), round.arrival(3), round.end()), (Some(2.0), None, 2.0));
        assert_eq!(round.scene(1, 1.5).gained(), 8.0);
    }
}
