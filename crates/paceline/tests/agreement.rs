//! Live and simulated agree: the same code decides, from the same times to the same end.

mod common;

use std::{collections::BTreeMap, sync::Mutex};

use common::Place;
use paceline_core::{
    Announcement, ContributionId, Event, EventKind, Handout, HeldRange, Round, RoundConfig,
    RoundMachine, SampleRange, Straggler, Time, Work, WorkerId,
};
use paceline_policy::PolicySpec;
use paceline_sim::{Recorded, Replay};
use paceline_trace::{Cell, Trace, Unit};

/// Live runs one after the other: two at once would set each other's pace.
static ALONE: Mutex<()> = Mutex::new(());

/// Cuts and closes as one can compare them.
fn outcomes(events: &[Event]) -> Vec<String> {
    let told = |event: &Event| match &event.kind {
        EventKind::Cut { round, reason, accepted, stragglers, trusts, .. } => {
            Some(format!("{} {round} {reason} {accepted} {stragglers:?} {trusts:?}", event.at))
        }
        EventKind::Closed { round, closes, run_times } => {
            Some(format!("{} {round} {closes:?} {run_times:?}", event.at))
        }
        _ => None,
    };
    events.iter().filter_map(told).collect()
}

/// Drives a machine through a log: joins, openings, arrivals and questions as they were.
fn redriven(events: &[Event], policy: &str, config: RoundConfig) -> Vec<Event> {
    let asked: BTreeMap<Round, Vec<(Time, u32)>> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Cut { round, asked, .. } => Some((*round, asked.clone())),
            _ => None,
        })
        .collect();
    let spec: PolicySpec = policy.parse().unwrap();
    let decides = spec.build_with(&paceline_model::Model::prior(), spec.objective());
    let mut machine = RoundMachine::new(config, decides, Round(0));
    let mut given: BTreeMap<WorkerId, ContributionId> = BTreeMap::new();
    let handout = |work: &Work| {
        let range = |&range: &SampleRange| HeldRange { range, returns: 0 };
        let ranges = work.portion.ranges().iter().map(range).collect();
        let &Work { worker, waited_for, worth, .. } = work;
        Handout { worker, ranges, waited_for, worth, any_weight: false, twin: None }
    };
    let (mut questions, mut arrived) = (Vec::<(Time, u32)>::new().into_iter().peekable(), 0);
    for event in events {
        while let Some((at, _)) = questions.next_if(|&(at, n)| n == arrived && at <= event.at) {
            machine.decide(at);
        }
        match event.kind.clone() {
            EventKind::WorkerJoined { worker, name } => {
                machine.handle_join(worker, &name, event.at).unwrap();
            }
            EventKind::WorkerLeft { worker, why } => {
                machine.handle_leave(worker, why, event.at).unwrap();
            }
            EventKind::RoundStarted { round, work } => {
                let ids: Vec<_> = work.iter().map(|work| work.id).collect();
                given.extend(work.iter().map(|work| (work.worker, work.id)));
                let handouts = work.iter().map(handout).collect();
                assert_eq!(machine.open(handouts, event.at), ids, "{round}");
                let these = asked.get(&round).cloned().unwrap_or_default();
                (questions, arrived) = (these.into_iter().peekable(), 0);
            }
            EventKind::Enlisted { work, .. } => {
                given.insert(work.worker, work.id);
                machine.enlist(handout(&work), event.at);
            }
            EventKind::Arrived { worker, id, weight, loss, .. } => {
                arrived += 1;
                let announcement = Announcement { id, weight, loss, square: None };
                machine.handle_arrival(worker, announcement, event.at).unwrap();
            }
            EventKind::Late { worker, id, weight, .. } => {
                let announcement = Announcement { id, weight, loss: None, square: None };
                machine.handle_arrival(worker, announcement, event.at).unwrap();
            }
            EventKind::Aborted { worker, id, done, .. } => {
                machine.handle_aborted(worker, id, done, event.at).unwrap();
            }
            EventKind::Split { worker, parts } => machine.handle_split(worker, parts, event.at),
            EventKind::Progress { worker, done, .. } => {
                machine.handle_progress(worker, given[&worker], done, event.at);
            }
            EventKind::Cut { .. } | EventKind::Closed { .. } => machine.decide(event.at),
            EventKind::Updated { noise_scale: Some(scale), .. } => machine.hear_noise(scale),
            EventKind::TimersLate { usual } => machine.hear_lateness(usual, event.at),
            _ => {}
        }
    }
    std::iter::from_fn(|| machine.poll_event()).collect()
}

#[test]
fn a_live_run_re_driven_from_its_log_makes_the_same_cuts_with_the_same_members() {
    let _alone = ALONE.lock().unwrap_or_else(|held| held.into_inner());
    let place = Place::new();
    let abort = ["auto", "filter", "bdsgd", "bdsgd:paper", "static:3", "deadline:0.06", "bandit"];
    let salvage = ["auto", "static:2", "deadline:0.02"];
    let cases = abort.map(|policy| (policy, Straggler::Abort)).into_iter();
    for (policy, straggler) in cases.chain(salvage.map(|policy| (policy, Straggler::Salvage))) {
        let name = format!("{}-{straggler}", policy.replace([':', '.'], "-"));
        place
            .run(&format!(
                "train --model softmax --workers 4 --shards 2 --rounds 40 --nominal 15ms \
                 --stragglers slow:3:3,stalls:3 --policy {policy} --straggler {straggler} \
                 --name {name}"
            ))
            .ok();
        let events = place.events(&name);
        let late = |event: &Event| matches!(event.kind, EventKind::TimersLate { usual } if !usual.is_zero());
        let wakes = policy != "static:3" && policy != "static:2";
        assert!(!wakes || events.iter().any(late), "{policy}: nothing was measured of the timers");
        let micro_batches = 4;
        let config =
            RoundConfig { expected: 4, straggler, micro_batches, ..RoundConfig::default() };
        let (live, again) = (outcomes(&events), outcomes(&redriven(&events, policy, config)));
        assert!(live.len() >= 80, "{policy}: {} cuts and closes", live.len());
        let differs = live.iter().zip(&again).find(|(live, again)| live != again);
        assert_eq!(differs, None, "{policy} {straggler}");
        assert_eq!(live.len(), again.len(), "{policy} {straggler}");
    }
}

/// Who was accepted in each round, live.
fn accepted_live(
    place: &Place,
    policy: &str,
    rounds: usize,
    stragglers: &str,
) -> Vec<Vec<WorkerId>> {
    let name = policy.replace([':', '.'], "-");
    place
        .run(&format!(
            "train --model softmax --workers 4 --rounds {rounds} --nominal 150ms \
             --straggler abort --stragglers {stragglers} --policy {policy} --name {name}"
        ))
        .ok();
    let members = |event: &Event| match &event.kind {
        EventKind::Closed { closes, .. } => {
            Some(closes[0].members.iter().map(|&(worker, _)| worker).collect())
        }
        _ => None,
    };
    place.events(&name).iter().filter_map(members).collect()
}

/// And by the simulator, from the run-times that the workers were told to take.
fn accepted_simulated(policy: &str, rounds: usize, times: [f64; 4]) -> Vec<Vec<WorkerId>> {
    let mut trace = Trace::of_size("scripted", Unit::Seconds, 4);
    (0..rounds).for_each(|_| trace.push_round(times.map(Cell::Observed)));
    let spec: PolicySpec = policy.parse().unwrap();
    let replay = Replay::default().run(&mut Recorded::new(&trace, 0), rounds, spec.build());
    replay.rounds.into_iter().map(|round| round.members).collect()
}

/// Run-times so far apart that what is accepted does not hang on milliseconds.
#[test]
fn scripted_run_times_over_loopback_give_the_sets_that_the_simulator_gives() {
    let _alone = ALONE.lock().unwrap_or_else(|held| held.into_inner());
    let place = Place::new();
    for policy in ["full", "static:2", "static:0.75", "deadline:0.375"] {
        let live = accepted_live(&place, policy, 6, "slow:1:2,slow:2:3,slow:3:6");
        let simulated = accepted_simulated(policy, 6, [0.15, 0.3, 0.45, 0.9]);
        assert_eq!(live, simulated, "{policy}");
    }
}
