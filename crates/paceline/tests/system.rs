//! `paceline simulate --system`, as a user meets it.

mod common;

use common::Place;

const RUN: &str = "simulate --synthetic lognormal:n=16,rounds=20 --seeds 1";

#[test]
fn a_line_of_json_has_the_round_split_into_its_parts() {
    let run = |system: &str| {
        Place::new().run(&format!("{RUN} --policy full --system {system} --json")).ok().json()
    };
    let row = run("lan:model=200MB,shards=8");
    assert_eq!(row["system"], "lan:model=200000000B,shards=8");
    assert_eq!(
        (&row["workers"], &row["shards"], &row["rounds"]),
        (&16.into(), &8.into(), &20.into())
    );
    assert_eq!(row["ledger_balanced"], true);
    assert_eq!(row["samples_used"], 320);
    for key in ["trace", "policy", "seed", "rate", "server_utilisation", "accepted_share", "wall_s"]
    {
        assert!(!row[key].is_null(), "{key}");
    }
    let number = |key: &str| row[key].as_f64().unwrap();
    let parts: f64 =
        ["pull_s", "compute_s", "push_s", "wait_s", "overhead_s"].map(number).iter().sum();
    assert!((parts - number("mean_round_s")).abs() < 1e-6, "{parts}");
    assert!(number("decide_us_p99") >= 0.0);
    // 16 workers, each with 25 MB a shard at 1.25 GB/s.
    assert!((number("pull_s") - 0.32).abs() < 0.001, "{}", number("pull_s"));
    assert!(run("high-communication")["rate"].as_f64() < row["rate"].as_f64());
}

#[test]
fn people_get_a_table() {
    let ended = Place::new().run(&format!("{RUN} --policy full,auto --system wan")).ok();
    for part in ["16 workers, 20 rounds", "system wan, 4 shards", "compute", "overhead", "auto"] {
        assert!(ended.stdout.contains(part), "no `{part}` in: {}", ended.stdout);
    }
}

#[test]
fn a_slow_shard_need_not_be_waited_for() {
    let run = |more: &str| {
        let system = "--system lan:shards=4,fold=500MB,slow-fold=5";
        Place::new().run(&format!("{RUN} --policy full {system} {more}")).ok()
    };
    let (all, weak) = (run("--json").json(), run("--pull 0.75 --max-stale 5 --json").json());
    assert_eq!((&weak["pull"], &weak["max_stale"]), (&"0.75".into(), &5.into()));
    assert_eq!((&all["pull"], &all["stale_share"]), (&"all".into(), &0.0.into()));
    assert!(weak["stale_share"].as_f64() > Some(0.05), "{weak}");
    assert!(weak["rounds_per_s"].as_f64() > all["rounds_per_s"].as_f64(), "{weak} {all}");
    assert!(run("--pull auto").stdout.contains("in any case those that have missed 8 updates"));
}

#[test]
fn a_slow_link_need_not_be_waited_for_either_way() {
    let run = |more: &str| {
        let system = "--system lan:shards=4,slow-shard=0.05";
        Place::new().run(&format!("{RUN} --policy full {system} {more}")).ok()
    };
    let (all, weak) = (run("--json").json(), run("--pull auto --push auto --json").json());
    assert_eq!((&all["missed_share"], &all["stale_share"]), (&0.0.into(), &0.0.into()));
    assert!(weak["missed_share"].as_f64() > Some(0.05), "{weak}");
    assert!(weak["rounds_per_s"].as_f64() > all["rounds_per_s"].as_f64().map(|all| 2.0 * all));
    assert!(run("--push 0.75").stdout.contains("all with values, 0.75 with gradients"));
}

#[test]
fn what_a_system_cannot_do_is_refused() {
    let place = Place::new();
    let run = |more: &str| place.run(&format!("{RUN} {more}"));
    run("--system moon").failed(2, &["unknown system", "high-communication"]);
    run("--system lan:shards=0").failed(2, &["from 1"]);
    run("--system lan --policy oracle").failed(2, &["oracle", "depend on the run"]);
    run("--system lan --straggler salvage").failed(2, &["abort and finish"]);
    run("--system lan --overhead 1").failed(2, &["fold"]);
    run("--pull auto").failed(2, &["--system"]);
    run("--system lan --push auto --straggler finish").failed(2, &["--push all"]);
    run("--system lan --pull auto --policy async").failed(2, &["async and stale need"]);
    run("--system lan --pull most").failed(2, &["use all, auto"]);
    run("--system lan:stop-for=2s").failed(2, &["go together"]);
    run("--system lan --html page.html").failed(2, &["--html"]);
}
