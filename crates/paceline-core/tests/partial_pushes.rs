//! Partial pushes, told as short scripts on simulated time: contributions that arrive shard by shard.

mod script;

use paceline_core::{Coordinator, Ledger, Round, RoundConfig, ShardId, Shards, Version, WorkerId};
use script::{First, Script};

/// Two workers and two shards, of one block and of two; either will do for a contribution, but not for
/// more than two rounds. A round is cut after so many arrivals.
fn partial_pushes(arrivals: usize) -> Script {
    let sizes = [1, 2];
    let mut s = Script::new(0, First(arrivals), RoundConfig::default());
    let config = RoundConfig { batch: 10, expected: 2, ..RoundConfig::default() };
    let (policy, ledger) = (Box::new(First(arrivals)), Ledger::new(1000, None));
    let core = Coordinator::new(config, policy, ledger, Shards::all(2), Round(0));
    let rule = move || Shards::asked_anew(&sizes, Box::new(First(1)), 1, 2);
    s.coordinator = core.with_partial_pushes(&sizes, Box::new(rule));
    s.join(0).join(1).advance();
    s
}

fn done(s: &mut Script, worker: u32, base: u64) {
    s.done(worker, base, 10.0).unwrap();
}

/// A shard reports its part; returns whether that is of use.
fn stage(s: &mut Script, worker: u32, base: u64, shard: u32) -> bool {
    s.stage(worker, base, shard);
    s.advance();
    !s.coordinator.take_discards().contains(&(WorkerId(worker), s.id(worker, base)))
}

fn apply(s: &mut Script) {
    for shard in 0..2 {
        s.coordinator.handle_applied(ShardId(shard), s.now).unwrap();
    }
    s.advance();
}

#[test]
fn a_part_that_always_comes_too_late_is_waited_for_at_the_bound_and_holds_its_round() {
    let mut s = partial_pushes(1);
    for base in 0..2 {
        // Worker 0 is first, the round is over, and shard 1 has its part after that.
        done(&mut s, 0, base);
        stage(&mut s, 0, base, 0);
        assert!(!stage(&mut s, 0, base, 1), "of no use any more");
        s.abort(1, base).unwrap();
        apply(&mut s);
    }
    s.log.clear();
    done(&mut s, 0, 2);
    stage(&mut s, 0, 2, 0);
    s.check(&["shard 1 is awaited after 2"]);
    // One arrival would do for the policy, but then worker 0's part would be late for ever.
    done(&mut s, 1, 2);
    stage(&mut s, 1, 2, 0);
    stage(&mut s, 1, 2, 1);
    s.check(&["arrived w1", "landed w1 on shard 1"]);
    assert!(stage(&mut s, 0, 2, 1));
    assert_eq!(s.log[..2], ["arrived w0", "cut, all arrived:"], "{:?}", s.log);
}

#[test]
fn with_partial_pushes_blocks_close_on_their_own_members() {
    let mut s = partial_pushes(2);
    done(&mut s, 0, 0);
    assert!(stage(&mut s, 0, 0, 1));
    s.check(&["round 0: w0 w1", "arrived w0"]);
    // It may be said after it has come; and what comes in time to the other shard counts there.
    assert!(stage(&mut s, 1, 0, 0));
    s.check(&[]);
    assert!(stage(&mut s, 0, 0, 0));
    done(&mut s, 1, 0);
    s.advance();
    s.check(&[
        "landed w0 on shard 0",
        "arrived w1",
        "cut, all arrived:",
        "closed w0 w1 | w0 (w0=0.000000 w1=0.000000)",
    ]);
    assert!(!stage(&mut s, 1, 0, 1), "its round is closed");
    apply(&mut s);
    // Shard 1 of worker 0 misses two rounds, and is waited for in the third.
    for base in 1..3 {
        done(&mut s, 0, base);
        stage(&mut s, 0, base, 0);
        done(&mut s, 1, base);
        stage(&mut s, 1, base, 0);
        stage(&mut s, 1, base, 1);
        apply(&mut s);
    }
    s.log.clear();
    done(&mut s, 0, 3);
    stage(&mut s, 0, 3, 0);
    s.check(&["shard 1 is awaited after 2"]);
    stage(&mut s, 0, 3, 1);
    s.check(&["arrived w0"]);
    assert!(s.coordinator.report().balanced);
}

#[test]
fn with_partial_pushes_a_worker_may_give_up_what_a_close_has_given_up() {
    let mut s = partial_pushes(1);
    // Announced before the close, or crossing it: either way it waits for permission to push.
    for (base, before) in [(0, true), (1, false)] {
        if before {
            done(&mut s, 1, base);
        }
        done(&mut s, 0, base);
        stage(&mut s, 0, base, 0);
        s.coordinator.give_up_parts(Version(base));
        if !before {
            done(&mut s, 1, base);
        }
        assert!(s.coordinator.take_discards().contains(&(WorkerId(1), s.id(1, base))));
        s.abort(1, base).unwrap();
        apply(&mut s);
    }
}
