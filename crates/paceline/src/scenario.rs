//! What the workers of a run are put through: the language of `--stragglers`.
//!
//! Some of it a worker does to itself ([`SlownessSpec`]); the rest is done to its process from
//! outside ([`Disturbance`]).

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use anyhow::{Result, ensure};
use paceline_wire::message::ShardPace;
use paceline_worker::SlownessSpec;

use crate::{
    disturbance::{Disturbance, Preemption},
    proxy::Path,
    rate::Rate,
    span::Span,
    stall::Stall,
};

const SHARD_FORMS: &str = "shard:SHARD:FACTOR from 1 on (shard:1:5), shard-link:SHARD:RATE \
                           (shard-link:1:100mbit), shard-stop:SHARD:EVERY:FOR, shorter than \
                           EVERY (shard-stop:1:10s:2s)";

/// Everything that is done on purpose: `slow:3:5,hog:0,stop:1:5s:800ms`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Scenario {
    /// What workers do to themselves.
    pub(crate) inside: SlownessSpec,
    outside: Vec<Disturbance>,
    /// What is done to shards.
    pub(crate) shards: BTreeMap<u32, ShardPace>,
}

/// What is wrong with a description of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no slowness: write {forms}", forms = forms(.0))]
pub(crate) struct ScenarioError(String);

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

/// What is done to one worker from outside.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Treatment {
    /// A busy loop shares its core.
    pub(crate) hog: bool,
    /// How far its nice value is above the run's.
    pub(crate) nice: Option<i32>,
    /// It stands still in any of these.
    pub(crate) stalls: Vec<Stall>,
    /// By round.
    pub(crate) preemptions: Vec<Preemption>,
    /// The rate of its link to the server.
    pub(crate) rate: Option<Rate>,
    /// What its words go through.
    pub(crate) path: Path,
}

impl Scenario {
    /// Workers that it names.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let mut workers = self.inside.workers();
        workers.extend(self.outside.iter().map(Disturbance::worker));
        workers
    }

    /// One worker's share of what is done from outside. Slow links take the lowest rate, delays add
    /// up, and a segment has to escape every loss.
    pub(crate) fn of(&self, worker: u32) -> Treatment {
        let mut all = Treatment::default();
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
    pub(crate) fn core(&self, worker: u32, cores: &[usize]) -> Result<Option<usize>> {
        let crowds = self.crowds();
        ensure!(
            crowds.is_empty() || crowds.len() < cores.len(),
            "crowd needs a core for every crowd and one more for the others: {} where {} may be \
             used",
            crowds.len() + 1,
            cores.len()
        );
        let crowd = |worker| crowds.iter().position(|&(a, b)| (a..=b).contains(&worker));
        if let Some(crowd) = crowd(worker) {
            return Ok(Some(cores[crowd]));
        }
        let (rest, place) =
            (&cores[crowds.len()..], (0..worker).filter(|&w| crowd(w).is_none()).count());
        let kept = !crowds.is_empty() || self.of(worker).hog;
        Ok(kept.then(|| rest[place % rest.len()]))
    }

    /// The longest that a worker is stopped without a pause.
    pub(crate) fn longest_stop(&self) -> Option<Duration> {
        let stopped = |worker| self.of(worker).stalls.into_iter().map(Stall::lasts).sum();
        let stops = self.outside.iter().filter(|item| matches!(item, Disturbance::Stop { .. }));
        stops.map(|item| stopped(item.worker())).max()
    }

    /// Takes in what an item says of a shard, if it does.
    fn slow_shard(&mut self, item: &str) -> Option<()> {
        let mut words = item.split(':');
        let what = words.next()?;
        let shard = words.next()?.parse().ok()?;
        let (how, more) = (words.next()?, words.next());
        let mut pace = self.shards.get(&shard).copied().unwrap_or_default();
        match (what, more) {
            ("shard", None) => {
                pace.factor = how.parse().ok().filter(|factor| (1.0..=1e6).contains(factor))?;
            }
            ("shard-link", None) => pace.rate = Some(how.parse::<Rate>().ok()?.bits() / 8),
            ("shard-stop", Some(lasts)) if words.next().is_none() => {
                let (every, lasts) = (how.parse::<Span>().ok()?.0, lasts.parse::<Span>().ok()?.0);
                pace.stop = Stall::new(every, lasts).map(|_| (every, lasts));
                pace.stop?;
            }
            _ => return None,
        }
        self.shards.insert(shard, pace);
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

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario = Scenario::default();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            if scenario.slow_shard(item).is_some() {
                continue;
            }
            match (Disturbance::read(item), item.parse::<SlownessSpec>()) {
                (Some(disturbance), _) => scenario.outside.push(disturbance),
                (None, Ok(slowness)) => scenario.inside = scenario.inside.and(slowness),
                (None, Err(_)) => return Err(ScenarioError(item.to_owned())),
            }
        }
        Ok(scenario)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Scenario {
        text.parse().unwrap()
    }

    #[test]
    fn inside_and_outside_are_told_apart() {
        let both = scenario("slow:3:5,hog:0,stalls:2,delay:2:50ms,kill:1@9,crowd:4-7");
        assert_eq!(both.inside.to_string(), "slow:3:5,stalls:2,kill:1@9");
        assert_eq!(both.workers(), [3, 1, 0, 2, 7]);
        assert!(both.of(0).hog && !both.of(2).hog);
        assert_eq!(both.of(2).path.delay, Duration::from_millis(50));
        assert_eq!(both.of(1), Treatment::default());
        assert_eq!(scenario(""), Scenario::default());
    }

    #[test]
    fn what_is_done_to_a_shard_adds_up() {
        let secs = Duration::from_secs;
        let both = scenario("shard:1:5,slow:0:2,shard-stop:1:10s:2s,shard-link:0:80mbit");
        let slow =
            ShardPace { factor: 5.0, stop: Some((secs(10), secs(2))), ..ShardPace::default() };
        let narrow = ShardPace { rate: Some(10_000_000), ..ShardPace::default() };
        assert_eq!(both.shards, BTreeMap::from([(0, narrow), (1, slow)]));
        for item in ["shard:1", "shard:x:5", "shard:1:0.5", "shard-stop:1:2s:3s", "shard-link:1:5"]
        {
            assert!(item.parse::<Scenario>().is_err(), "{item}");
        }
    }

    #[test]
    fn an_item_that_is_nothing_is_named_with_what_would_do() {
        let error = |item: &str| {
            let error = format!("hog:0,{item},slow:1:2").parse::<Scenario>().unwrap_err();
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
        let both =
            scenario("delay:1:50ms,delay:1:10ms,loss:1:50,loss:1:50,link:1:9mbit,link:1:1mbit")
                .of(1);
        assert_eq!(both.path, Path { delay: Duration::from_millis(60), loss: 0.75 });
        assert_eq!(both.rate, "1mbit".parse().ok());
        let stops = scenario("stop:1:5s:1s,stop:1:7s:2s,stop:0:9s:2s");
        assert_eq!(stops.longest_stop(), Some(Duration::from_secs(3)));
        assert_eq!(scenario("slow:1:5").longest_stop(), None);
    }

    #[test]
    fn preemptions_come_by_round_and_end_with_a_kill() {
        let rounds = |text: &str| -> Vec<u64> {
            scenario(text).of(1).preemptions.iter().map(|preemption| preemption.round).collect()
        };
        assert_eq!(rounds("preempt:1@9:1s,preempt:1@4:2s,preempt:2@1:1s"), [4, 9]);
        assert_eq!(rounds("preempt:1@9:1s,preempt:1@4:2s,kill:1@6"), [4]);
    }

    #[track_caller]
    fn cores(text: &str, cores: &[usize], places: [Option<usize>; 4]) {
        let scenario = scenario(text);
        let found = [0, 1, 2, 3].map(|worker| scenario.core(worker, cores).unwrap());
        assert_eq!(found, places, "{text}");
    }

    #[test]
    fn a_crowd_shares_a_core_and_the_others_have_the_rest() {
        cores("slow:1:2", &[0, 1], [None; 4]);
        cores("hog:3", &[4, 5], [None, None, None, Some(5)]);
        cores("crowd:0-2", &[0, 1], [Some(0), Some(0), Some(0), Some(1)]);
        cores("crowd:1-2", &[0, 1, 2], [Some(1), Some(0), Some(0), Some(2)]);
        cores("crowd:0-1,crowd:2-3", &[3, 5, 7], [Some(3), Some(3), Some(5), Some(5)]);
        let crowded = scenario("crowd:0-1").core(0, &[0]).unwrap_err().to_string();
        assert!(crowded.contains("2 where 1 may be used"), "{crowded}");
    }
}
