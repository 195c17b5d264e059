//! The language of `--stragglers`: all faults that a run injects.
//!
//! A worker inflicts some on itself ([`SlownessSpec`]), others are inflicted on its process from outside
//! ([`Disturbance`]), and some concern shards ([`ShardSlowness`]).

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

use paceline_server::ShardFaults;
use thiserror::Error;

use crate::{
    disturbance::{Disturbance, Preemption},
    proxy::Path,
    rate::Rate,
    slow_shard::{ShardSlowness, SlowShard},
    slow_worker::SlownessSpec,
    stall::Stall,
};

const SHARD_FORMS: &str = "shard:SHARD:FACTOR from 1 on (shard:1:5), shard-link:SHARD:RATE \
                           (shard-link:1:100mbit), shard-stop:SHARD:EVERY:FOR, shorter than \
                           EVERY (shard-stop:1:10s:2s)";

/// All faults that a run injects: `slow:3:5,hog:0,stop:1:5s:800ms`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FaultPlan {
    /// The slowness that workers inflict on themselves.
    pub inside: SlownessSpec,
    outside: Vec<Disturbance>,
    /// The slowness of shards, by their number.
    pub shards: BTreeMap<u32, ShardSlowness>,
}

/// A description of faults has an item that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no slowness: write {forms}", forms = forms(.0))]
pub struct FaultPlanError(String);

/// Crowds leave no core to the other workers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "crowd needs a core for every crowd and one more for the others: {needed} where {found} may be used"
)]
pub struct TooFewCores {
    /// Cores that the crowds and the others need.
    needed: usize,
    /// Cores that may be used.
    found: usize,
}

/// How what begins like `item` is written, or else everything.
fn forms(item: &str) -> String {
    let all = format!("{}, {}, {SHARD_FORMS}", SlownessSpec::FORMS, Disturbance::FORMS);
    let kind = item.split_once(':').map_or(item, |(kind, _)| kind);
    // Each ends with an example.
    let of_kind = |form: &&str| form.split_once(':').is_some_and(|(name, _)| name == kind);
    match all.split_inclusive(')').map(|form| form.trim_start_matches(", ")).find(of_kind) {
        Some(form) => form.to_owned(),
        None => format!("{all}, separated by commas"),
    }
}

/// The faults that are inflicted on one worker's process from outside.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessFaults {
    /// A busy loop shares its core.
    pub hog: bool,
    /// How far its nice value is above the run's.
    pub nice: Option<i32>,
    /// The process is stopped while any of these is on.
    pub stalls: Vec<Stall>,
    /// In the order of their rounds.
    pub preemptions: Vec<Preemption>,
    /// The rate of its link to the server.
    pub rate: Option<Rate>,
    /// Delay and loss between the worker and the server.
    pub path: Path,
}

impl FaultPlan {
    /// Workers that it names.
    pub fn workers(&self) -> Vec<u32> {
        let mut workers = self.inside.workers();
        workers.extend(self.outside.iter().map(Disturbance::worker));
        workers
    }

    /// The faults inflicted on one worker's process from outside. Of several links the slowest counts,
    /// delays add up, and a segment has to escape every loss.
    pub fn process(&self, worker: u32) -> ProcessFaults {
        let mut all = ProcessFaults::default();
        for item in self.outside.iter().filter(|item| item.worker() == worker) {
            match *item {
                Disturbance::Crowd { .. } => {}
                Disturbance::Hog { .. } => all.hog = true,
                Disturbance::Nice { more, .. } => all.nice = Some(more),
                Disturbance::Stop { stall, .. } => all.stalls.push(stall),
                Disturbance::Preempt { preemption, .. } => all.preemptions.push(preemption),
                Disturbance::Link { rate, .. } => {
                    all.rate = Some(all.rate.map_or(rate, |other| other.min(rate)));
                }
                Disturbance::Delay { time, .. } => all.path.delay += time,
                Disturbance::Loss { share, .. } => {
                    all.path.loss = 1.0 - (1.0 - all.path.loss) * (1.0 - share);
                }
            }
        }
        // Who is killed for good before does not come back.
        let end = self.inside.killed_at(worker).unwrap_or(u64::MAX);
        all.preemptions.retain(|preemption| preemption.round < end);
        all.preemptions.sort_by_key(|preemption| preemption.round);
        all
    }

    /// The one of `cores` that `worker` is kept on, if it is. Each crowd has one, and the others
    /// are spread over the rest; without crowds only those beside a busy loop are kept anywhere.
    pub fn core(&self, worker: u32, cores: &[usize]) -> Result<Option<usize>, TooFewCores> {
        let crowds = self.crowds();
        let (needed, found) = (crowds.len() + 1, cores.len());
        if !crowds.is_empty() && needed > found {
            return Err(TooFewCores { needed, found });
        }
        let crowd = |worker| crowds.iter().position(|&(a, b)| (a..=b).contains(&worker));
        if let Some(crowd) = crowd(worker) {
            return Ok(Some(cores[crowd]));
        }
        let (rest, place) =
            (&cores[crowds.len()..], (0..worker).filter(|&w| crowd(w).is_none()).count());
        let kept = !crowds.is_empty() || self.process(worker).hog;
        Ok(kept.then(|| rest[place % rest.len()]))
    }

    /// The faults of one shard, whose updates are padded to `nominal`; `None` if it bears none. They begin
    /// now.
    pub fn shard(&self, shard: u32, nominal: Option<Duration>) -> Option<Arc<dyn ShardFaults>> {
        let slowness = self.shards.get(&shard).copied();
        let slowness = slowness.or(nominal.map(|_| ShardSlowness::default()))?;
        Some(Arc::new(SlowShard::new(ShardSlowness { nominal, ..slowness })))
    }

    /// Whether it names `shard` or nothing: no worker, and no other shard.
    pub fn concerns_only_shard(&self, shard: u32) -> bool {
        let workers = self.inside != SlownessSpec::default() || !self.outside.is_empty();
        !workers && self.shards.keys().all(|&named| named == shard)
    }

    /// The longest that a worker is stopped without a pause.
    pub fn longest_stop(&self) -> Option<Duration> {
        let stopped = |worker| self.process(worker).stalls.into_iter().map(Stall::lasts).sum();
        let stops = self.outside.iter().filter(|item| matches!(item, Disturbance::Stop { .. }));
        stops.map(|item| stopped(item.worker())).max()
    }

    /// Adds an item that slows a shard; `None` if it is none.
    fn slow_shard(&mut self, item: &str) -> Option<()> {
        let mut words = item.splitn(3, ':');
        let what = words.next()?;
        let shard = words.next()?.parse().ok()?;
        let how = words.next()?;
        let mut slowness = self.shards.get(&shard).copied().unwrap_or_default();
        match what {
            "shard" => {
                let factor = how.parse().ok().filter(|factor| (1.0..=1e6).contains(factor));
                slowness.factor = factor?;
            }
            "shard-link" => slowness.rate = Some(how.parse().ok()?),
            "shard-stop" => slowness.stall = Some(Stall::read(how)?),
            _ => return None,
        }
        self.shards.insert(shard, slowness);
        Some(())
    }

    fn crowds(&self) -> Vec<(u32, u32)> {
        let crowd = |item: &Disturbance| match *item {
            Disturbance::Crowd { first, last } => Some((first, last)),
            _ => None,
        };
        self.outside.iter().filter_map(crowd).collect()
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = FaultPlan::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            if plan.slow_shard(item).is_some() {
                continue;
            }
            match (Disturbance::read(item), item.parse::<SlownessSpec>()) {
                (Some(disturbance), _) => plan.outside.push(disturbance),
                (None, Ok(slowness)) => plan.inside = plan.inside.and(slowness),
                (None, Err(_)) => return Err(FaultPlanError(item.to_owned())),
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> FaultPlan {
        text.parse().unwrap()
    }

    #[test]
    fn inside_and_outside_are_told_apart() {
        let both = plan("slow:3:5,hog:0,stalls:2,delay:2:50ms,kill:1@9,crowd:4-7");
        assert_eq!(both.inside.to_string(), "slow:3:5,stalls:2,kill:1@9");
        assert_eq!(both.workers(), [3, 1, 0, 2, 7]);
        assert!(both.process(0).hog && !both.process(2).hog);
        assert_eq!(both.process(2).path.delay, Duration::from_millis(50));
        assert_eq!(both.process(1), ProcessFaults::default());
        assert_eq!(plan(""), FaultPlan::default());
    }

    #[test]
    fn what_is_done_to_a_shard_adds_up() {
        let secs = Duration::from_secs;
        let both = plan("shard:1:5,slow:0:2,shard-stop:1:10s:2s,shard-link:0:80mbit");
        let stall = Stall::new(secs(10), secs(2));
        let slow = ShardSlowness { factor: 5.0, stall, ..ShardSlowness::default() };
        let narrow = ShardSlowness { rate: "80mbit".parse().ok(), ..ShardSlowness::default() };
        assert_eq!(both.shards, BTreeMap::from([(0, narrow), (1, slow)]));
        for item in [
            "shard:1",
            "shard:x:5",
            "shard:1:0.5",
            "shard:1:5:5",
            "shard-stop:1:2s:3s",
            "shard-stop:1:2s",
            "shard-stop:1:2s:1s:1s",
            "shard-link:1:5",
        ] {
            assert!(item.parse::<FaultPlan>().is_err(), "{item}");
        }
    }

    #[test]
    fn only_named_shards_bear_faults_unless_all_are_padded() {
        let some = plan("shard:1:5,shard-link:2:80mbit");
        let bears = |nominal| [0, 1, 2, 3].map(|shard| some.shard(shard, nominal).is_some());
        assert_eq!(bears(None), [false, true, true, false]);
        assert_eq!(bears(Some(Duration::from_millis(1))), [true; 4]);
        let slows_link = |shard| some.shard(shard, None).is_some_and(|shard| shard.slows_link());
        assert_eq!((slows_link(1), slows_link(2)), (false, true));
    }

    #[test]
    fn a_plan_for_one_shard_names_nobody_else() {
        for text in ["", "shard:1:5,shard-link:1:80mbit"] {
            assert!(plan(text).concerns_only_shard(1), "{text}");
        }
        for text in ["shard:0:5", "shard:1:5,slow:1:2", "shard:1:5,hog:1", "stalls:2"] {
            assert!(!plan(text).concerns_only_shard(1), "{text}");
        }
    }

    #[test]
    fn an_item_that_is_nothing_is_named_with_what_would_do() {
        let error = |item: &str| {
            let error = format!("hog:0,{item},slow:1:2").parse::<FaultPlan>().unwrap_err();
            error.to_string()
        };
        for item in ["lazy:1", "lazy"] {
            let error = error(item);
            assert!(error.contains(&format!("`{item}`")), "{error}");
            for form in ["slow:WORKER:FACTOR", "node:", "crowd:FIRST-LAST", "loss:WORKER:PERCENT"] {
                assert!(error.contains(form), "{error}");
            }
        }
        for (item, form) in [
            ("slow:3", "slow:WORKER:FACTOR from 1 on (slow:3:5)"),
            ("hog:x", "hog:WORKER (hog:0)"),
            ("loss:0:80", "loss:WORKER:PERCENT up to 50 (loss:1:0.5)"),
            ("stop:1:5s", "stop:WORKER:EVERY:FOR, shorter than EVERY (stop:1:5s:800ms)"),
            ("shard:0:0.5", "shard:SHARD:FACTOR from 1 on (shard:1:5)"),
        ] {
            assert_eq!(error(item), format!("`{item}` is no slowness: write {form}"));
        }
    }

    #[test]
    fn what_is_done_twice_adds_up() {
        let both = plan("delay:1:50ms,delay:1:10ms,loss:1:50,loss:1:50,link:1:9mbit,link:1:1mbit")
            .process(1);
        assert_eq!(both.path, Path { delay: Duration::from_millis(60), loss: 0.75 });
        assert_eq!(both.rate, "1mbit".parse().ok());
        let stops = plan("stop:1:5s:1s,stop:1:7s:2s,stop:0:9s:2s");
        assert_eq!(stops.longest_stop(), Some(Duration::from_secs(3)));
        assert_eq!(plan("slow:1:5").longest_stop(), None);
    }

    #[test]
    fn preemptions_come_by_round_and_end_with_a_kill() {
        let rounds = |text: &str| -> Vec<u64> {
            plan(text).process(1).preemptions.iter().map(|preemption| preemption.round).collect()
        };
        assert_eq!(rounds("preempt:1@9:1s,preempt:1@4:2s,preempt:2@1:1s"), [4, 9]);
        assert_eq!(rounds("preempt:1@9:1s,preempt:1@4:2s,kill:1@6"), [4]);
    }

    #[track_caller]
    fn cores(text: &str, cores: &[usize], places: [Option<usize>; 4]) {
        let plan = plan(text);
        let found = [0, 1, 2, 3].map(|worker| plan.core(worker, cores).unwrap());
        assert_eq!(found, places, "{text}");
    }

    #[test]
    fn a_crowd_shares_a_core_and_the_others_have_the_rest() {
        cores("slow:1:2", &[0, 1], [None; 4]);
        cores("hog:3", &[4, 5], [None, None, None, Some(5)]);
        cores("crowd:0-2", &[0, 1], [Some(0), Some(0), Some(0), Some(1)]);
        cores("crowd:1-2", &[0, 1, 2], [Some(1), Some(0), Some(0), Some(2)]);
        cores("crowd:0-1,crowd:2-3", &[3, 5, 7], [Some(3), Some(3), Some(5), Some(5)]);
        let crowded = plan("crowd:0-1").core(0, &[0]).unwrap_err().to_string();
        assert!(crowded.contains("2 where 1 may be used"), "{crowded}");
    }
}
