//! Slowness that a worker inflicts on itself: real time passes, by seed. [`SlownessSpec`] describes it for
//! all workers of a run, and [`SlowWorker`] is one worker's share.

use std::{
    fmt,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use paceline_core::{Version, WorkerId};
use paceline_worker::{MakeFaults, WorkerFaults};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, LogNormal};
use rustix::process::{Signal, getpid, kill_process};
use thiserror::Error;

/// The 99th percentile of a standard normal, which turns p99/p50 into a lognormal's sigma.
const Z99: f64 = 2.326_347_874;

/// Who is slowed from inside, and how: `slow:3:5,stalls:2,kill:1@40`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SlownessSpec {
    items: Vec<Item>,
    /// A round's work is padded to this long (and slowed from there), so that workers that share
    /// cores do not set each other's pace.
    pub nominal: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Item {
    /// The worker takes this many times as long.
    Slow { worker: u32, factor: f64 },
    /// Every worker's round is stretched by a lognormal draw with this p99/p50.
    Stalls { ratio: f64 },
    /// The worker is killed in the middle of its first work on this version or a later one.
    Kill { worker: u32, at: u64 },
    /// These workers sit on a node that is slow for a while, now and then, all at once.
    Node { first: u32, last: u32, factor: f64 },
}

/// A node is slow or not for so many rounds, and slow for this share of all.
const PHASE: u64 = 10;
const SLOW_PHASES: f64 = 0.25;

/// What is wrong with a description of slowness.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no slowness: write {forms}, separated by commas", forms = SlownessSpec::FORMS)]
pub struct SlownessError(String);

impl SlownessSpec {
    /// How its items are written, for people.
    pub const FORMS: &str = "slow:WORKER:FACTOR from 1 on (slow:3:5), stalls:P99_OVER_P50 from 1 on \
                             (stalls:3), kill:WORKER@ROUND (kill:1@40), node:FIRST-LAST:FACTOR from 1 \
                             on (node:4-7:2)";

    /// All of this and all of `more`.
    pub fn and(mut self, more: SlownessSpec) -> Self {
        self.items.extend(more.items);
        self.nominal = self.nominal.or(more.nominal);
        self
    }

    /// The same, with `worker` killed in its first work on version `at` or a later one.
    pub fn killing(mut self, worker: u32, at: u64) -> Self {
        self.items.push(Item::Kill { worker, at });
        self
    }

    /// The version in whose work `worker` is killed, if it is.
    pub fn killed_at(&self, worker: u32) -> Option<u64> {
        let kill = |item: &Item| match *item {
            Item::Kill { worker: w, at } if w == worker => Some(at),
            _ => None,
        };
        self.items.iter().filter_map(kill).min()
    }

    /// Whether it asks for nothing but kills, which can be inflicted from outside as well.
    pub fn only_kills(&self) -> bool {
        self.nominal.is_none() && self.items.iter().all(|item| matches!(item, Item::Kill { .. }))
    }

    /// Workers that it names.
    pub fn workers(&self) -> Vec<u32> {
        let named = |item: &Item| match *item {
            Item::Slow { worker, .. } | Item::Kill { worker, .. } => Some(worker),
            Item::Node { last, .. } => Some(last),
            Item::Stalls { .. } => None,
        };
        self.items.iter().filter_map(named).collect()
    }

    /// The faults that a worker takes: those of the number that it is given.
    pub fn into_faults(self) -> MakeFaults {
        Arc::new(move |job| Box::new(self.worker(job.worker, job.seed)))
    }

    /// The slowness of one worker; draws depend on `seed`.
    pub fn worker(&self, worker: WorkerId, seed: u64) -> SlowWorker {
        let (kill, nominal) = (self.killed_at(worker.0).map(Version), self.nominal);
        let mut slowness = SlowWorker {
            factor: 1.0,
            stalls: None,
            kill,
            node: None,
            nominal,
            seed,
            worker,
            oversleep: None,
        };
        for item in &self.items {
            match *item {
                Item::Slow { worker: w, factor } if w == worker.0 => slowness.factor *= factor,
                Item::Stalls { ratio } => {
                    slowness.stalls = LogNormal::new(0.0, ratio.ln() / Z99).ok();
                }
                Item::Node { first, last, factor } if (first..=last).contains(&worker.0) => {
                    slowness.node = Some((first, factor));
                }
                _ => {}
            }
        }
        slowness
    }
}

/// The slowness of one worker.
#[derive(Debug, Clone)]
pub struct SlowWorker {
    factor: f64,
    stalls: Option<LogNormal<f64>>,
    kill: Option<Version>,
    /// The first worker of its node, and how slow the node is when it is.
    node: Option<(u32, f64)>,
    nominal: Option<Duration>,
    seed: u64,
    worker: WorkerId,
    /// How late the last sleep in a round ended. The next sleep in that round makes up for it, so that a
    /// round in many micro-batches takes no longer than one in few.
    oversleep: Option<(Version, Duration)>,
}

/// The most that a timer may be late; a longer delay is a stall of the machine, and stays one.
const TIMER: Duration = Duration::from_millis(2);

impl SlowWorker {
    /// By how much the round on `base` takes longer.
    pub fn factor(&self, base: Version) -> f64 {
        self.factor * self.draw(base) * self.node_factor(base)
    }

    /// Whether the worker is killed in its work on `base`.
    fn is_killed(&self, base: Version) -> bool {
        self.kill.is_some_and(|at| base >= at)
    }

    /// The same for the same seed, worker and round, whatever happened before.
    fn draw(&self, base: Version) -> f64 {
        let Some(stalls) = &self.stalls else { return 1.0 };
        let seed = self.seed ^ (u64::from(self.worker.0) << 40) ^ base.0.wrapping_mul(0x9e37_79b9);
        stalls.sample(&mut StdRng::seed_from_u64(seed))
    }

    /// The same for all workers of a node, and for a phase of rounds.
    fn node_factor(&self, base: Version) -> f64 {
        let Some((first, factor)) = self.node else { return 1.0 };
        let phase = (base.0 / PHASE).wrapping_mul(0x9e37_79b9);
        let seed = self.seed ^ 0x6e6f_6465 ^ (u64::from(first) << 40) ^ phase;
        match StdRng::seed_from_u64(seed).random_bool(SLOW_PHASES) {
            true => factor,
            false => 1.0,
        }
    }
}

impl WorkerFaults for SlowWorker {
    fn after_micro_batch(
        &mut self,
        base: Version,
        share: f64,
        began: Instant,
        rest: &dyn Fn(Duration) -> bool,
    ) -> bool {
        if self.is_killed(base) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        let natural = self.nominal.map_or_else(|| began.elapsed(), |round| round.mul_f64(share));
        let overslept = self.oversleep.take().filter(|(round, _)| *round == base);
        let overslept = overslept.map_or(Duration::ZERO, |(_, time)| time);
        let due = natural.mul_f64(self.factor(base)).saturating_sub(overslept);
        if let Some(left) = due.checked_sub(began.elapsed()) {
            if !rest(left) {
                return false;
            }
            self.oversleep = Some((base, began.elapsed().saturating_sub(due).min(TIMER)));
        }
        true
    }
}

impl FromStr for SlownessSpec {
    type Err = SlownessError;

    fn from_str(text: &str) -> Result<Self, SlownessError> {
        let items = text.split(',').filter(|item| !item.is_empty());
        let items = items.map(|item| parse(item).ok_or_else(|| SlownessError(item.to_owned())));
        Ok(SlownessSpec { items: items.collect::<Result<_, _>>()?, nominal: None })
    }
}

fn parse(item: &str) -> Option<Item> {
    let (kind, rest) = item.split_once(':')?;
    let factor =
        |text: &str| text.parse::<f64>().ok().filter(|factor| (1.0..=1e6).contains(factor));
    match kind {
        "slow" => {
            let (worker, by) = rest.split_once(':')?;
            Some(Item::Slow { worker: worker.parse().ok()?, factor: factor(by)? })
        }
        "stalls" => Some(Item::Stalls { ratio: factor(rest)? }),
        "kill" => {
            let (worker, at) = rest.split_once('@')?;
            Some(Item::Kill { worker: worker.parse().ok()?, at: at.parse().ok()? })
        }
        "node" => {
            let (workers, by) = rest.split_once(':')?;
            let (first, last) = workers.split_once('-')?;
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(Item::Node { first, last, factor: factor(by)? })
        }
        _ => None,
    }
}

impl fmt::Display for SlownessSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.items.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match item {
                Item::Slow { worker, factor } => write!(f, "{comma}slow:{worker}:{factor}")?,
                Item::Stalls { ratio } => write!(f, "{comma}stalls:{ratio}")?,
                Item::Kill { worker, at } => write!(f, "{comma}kill:{worker}@{at}")?,
                Item::Node { first, last, factor } => {
                    write!(f, "{comma}node:{first}-{last}:{factor}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[track_caller]
    fn check(text: &str, ok: bool) {
        match text.parse::<SlownessSpec>() {
            Ok(spec) => assert!(ok && spec.to_string() == text, "{text} read as {spec}"),
            Err(error) => assert!(!ok && error.to_string().contains("slow:WORKER:FACTOR")),
        }
    }

    #[test]
    fn specs_read_back_and_nonsense_says_what_would_do() {
        check("", true);
        check("slow:3:5,stalls:2,kill:1@40", true);
        check("slow:3", false);
        check("slow:3:0.5", false);
        check("slow:3:NaN", false);
        check("stalls:", false);
        check("kill:1", false);
        check("lazy:1", false);
        check("hog:0", false);
        check("node:4-7:2,stalls:1.2", true);
        check("node:7-4:2", false);
        check("node:4:2", false);
    }

    #[test]
    fn workers_of_a_node_are_slow_together_a_quarter_of_the_time() {
        let spec: SlownessSpec = "node:0-1:2,node:2-3:2".parse().unwrap();
        let factors = |worker: u32| -> Vec<f64> {
            let slowness = spec.worker(WorkerId(worker), 3);
            (0..2_000).map(|base| slowness.factor(Version(base))).collect()
        };
        assert_eq!(factors(0), factors(1));
        assert_ne!(factors(0), factors(2));
        assert_eq!(factors(4), vec![1.0; 2_000]);
        let slow = factors(0).iter().filter(|factor| **factor == 2.0).count();
        assert!((350..650).contains(&slow), "{slow}");
    }

    #[test]
    fn stalls_have_the_stated_tail_and_repeat_by_seed() {
        let spec: SlownessSpec = "stalls:3".parse().unwrap();
        let draws = |seed| -> Vec<f64> {
            let slowness = spec.worker(WorkerId(1), seed);
            (0..20_000).map(|round| slowness.draw(Version(round))).collect()
        };
        let mut sorted = draws(7);
        assert_eq!(sorted, draws(7));
        assert_ne!(sorted, draws(8));
        sorted.sort_by(f64::total_cmp);
        let ratio = sorted[19_800] / sorted[10_000];
        assert!((2.7..3.3).contains(&ratio), "p99/p50 is {ratio}");
    }

    #[test]
    fn a_worker_that_was_not_there_in_its_round_is_killed_in_the_next() {
        let killed = "kill:2@5".parse::<SlownessSpec>().unwrap().worker(WorkerId(2), 0);
        let rounds: Vec<bool> = (4..7).map(|base| killed.is_killed(Version(base))).collect();
        assert_eq!(rounds, [false, true, true]);
    }

    #[test]
    fn a_micro_batch_lasts_its_share_of_the_nominal_round_and_is_unusable_if_cut() {
        let mut spec: SlownessSpec = "slow:2:3".parse().unwrap();
        spec.nominal = Some(Duration::from_secs(1000));
        let mut slow = spec.worker(WorkerId(2), 0);
        let rested = Cell::new(Duration::ZERO);
        let rest = |passes: bool| {
            let rested = &rested;
            move |time| {
                rested.set(time);
                passes
            }
        };
        let began = Instant::now();
        assert!(slow.after_micro_batch(Version(0), 0.5, began, &rest(true)));
        let (least, most) = (Duration::from_secs(1400), Duration::from_secs(1500));
        assert!(rested.get() > least && rested.get() <= most, "{rested:?}");
        assert!(!slow.after_micro_batch(Version(0), 0.5, began, &rest(false)));
    }

    #[test]
    fn of_several_kills_the_first_counts() {
        let spec: SlownessSpec = "slow:2:5,kill:2@9".parse().unwrap();
        let spec = spec.killing(2, 4).and("stalls:2,kill:1@1".parse().unwrap());
        assert_eq!(spec.to_string(), "slow:2:5,kill:2@9,kill:2@4,stalls:2,kill:1@1");
        assert_eq!((spec.killed_at(0), spec.killed_at(2)), (None, Some(4)));
        assert!(spec.worker(WorkerId(2), 0).is_killed(Version(4)));
        assert!(!spec.worker(WorkerId(2), 0).is_killed(Version(3)));
    }

    #[test]
    fn only_the_named_worker_is_slow() {
        let spec: SlownessSpec = "slow:2:5".parse().unwrap();
        assert_eq!(spec.worker(WorkerId(2), 0).factor(Version(0)), 5.0);
        assert_eq!(spec.worker(WorkerId(1), 0).factor(Version(0)), 1.0);
        assert_eq!("slow:2:5,stalls:3,kill:0@1".parse::<SlownessSpec>().unwrap().workers(), [2, 0]);
    }
}
