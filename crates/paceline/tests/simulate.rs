//! `paceline simulate` and `policies`, as a user runs them.

mod common;

use std::io::{BufRead, BufReader};

use common::{Ended, Place};
use rustix::process::Signal;
use serde_json::Value;

const KEYS: [&str; 15] = [
    "trace",
    "policy",
    "seed",
    "workers",
    "rounds",
    "rate",
    "of_oracle",
    "of_best_static",
    "of_full",
    "full_rate",
    "best_static_count",
    "best_static_rate",
    "oracle_rate",
    "decide_us_p99",
    "decide_cpu_us_per_round",
];

fn rows(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_rate_follows_from_the_decisions() {
    let place = Place::new();
    let args = "simulate --synthetic nodes16-stalls:rounds=120 --policy full,auto,static:0.75 \
                --seeds 2 --overhead 0.1x --json --decisions decisions.csv";
    let rows = rows(&place.run(args).ok().stdout);
    assert_eq!(rows.len(), 6);
    let decisions = std::fs::read_to_string(place.path("decisions.csv")).unwrap();
    for row in &rows {
        for key in KEYS {
            assert!(!row[key].is_null(), "{key} in {row}");
        }
        let marks = format!(",{},{},", row["policy"].as_str().unwrap(), row["seed"]);
        let (mut accepted, mut seconds) = (0.0, 0.0);
        for line in decisions.lines().filter(|line| line.contains(&marks)) {
            let mut fields = line.rsplit(',');
            seconds += fields.next().unwrap().parse::<f64>().unwrap();
            seconds += row["overhead"].as_f64().unwrap();
            accepted += fields.next().unwrap().parse::<f64>().unwrap();
        }
        let rate = row["rate"].as_f64().unwrap();
        assert!((accepted / seconds / rate - 1.0).abs() < 1e-9, "{row}");
    }
    let of_full =
        |row: &&Value| row["policy"] == "full" && row["of_full"].as_f64().unwrap() > 0.9999;
    assert_eq!(rows.iter().filter(of_full).count(), 2);
}

#[test]
fn hindsight_bounds_what_is_replayed() {
    let place = Place::new();
    let args = "simulate --synthetic lognormal:n=12,rounds=100 --policy best-static,oracle,auto \
                --seeds 2 --json";
    for row in rows(&place.run(args).ok().stdout) {
        let of_oracle = row["of_oracle"].as_f64().unwrap();
        assert!(of_oracle < 1.0 + 1e-6, "{row}");
        if row["policy"] == "oracle" {
            assert!(of_oracle > 1.0 - 1e-6, "{row}");
        }
        if row["policy"] == "best-static" {
            assert!((row["of_best_static"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{row}");
        }
    }
}

#[test]
fn phases_by_the_clock_and_finishing_stragglers_are_replayed() {
    let place = Place::new();
    let args = "simulate --synthetic nodes16-stalls:rounds=80,phases=wall-clock --policy auto \
                --straggler finish --seeds 1 --json";
    let rows = rows(&place.run(args).ok().stdout);
    assert_eq!(rows[0]["rounds"], 80);
    assert_eq!(rows[0]["straggler"], "finish");
}

#[test]
fn a_hunt_finds_clusters_that_replay_as_stated() {
    let place = Place::new();
    let args = "simulate --hunt 120 --seed 3 --policy static:0.5 --json";
    let hunted = place.run(args).ok().stdout;
    let finds = rows(&hunted);
    let share = |find: &Value| find["share"].as_f64().unwrap();
    assert!(finds.len() > 2 && finds.is_sorted_by(|a, b| share(a) <= share(b)), "{hunted}");
    for find in &finds[..2] {
        let shares = find["shares"].as_array().unwrap();
        assert!(shares.len() == 3 && shares.iter().all(|s| s.as_f64().unwrap() <= share(find)));
        let command = find["command"].as_str().unwrap().strip_prefix("paceline ").unwrap();
        let replayed = rows(&place.run(&format!("{command} --json")).ok().stdout);
        assert!((replayed[0]["of_full"].as_f64().unwrap() - share(find)).abs() < 1e-6, "{find}");
    }
    let on_one_thread = place.command(args).env("RAYON_NUM_THREADS", "1").output().unwrap();
    assert_eq!(Ended::new(on_one_thread).ok().stdout, hunted);
}

#[test]
fn a_hunt_compares_with_the_best_part_as_well() {
    let place = Place::new();
    let args = "simulate --hunt 3 --seed 1 --policy static:0.5 --against parts --json";
    let find = place.run(args).ok().json();
    let rate = |key: &str| find[key].as_f64().unwrap();
    let expected = find["policies"][0]["rate"].as_f64().unwrap() / rate("best_part_rate");
    assert!((rate("share") - expected).abs() < 1e-9, "{find}");
    place.run("simulate --hunt 9 --policy full,auto").failed(2, &["one --policy at a time"]);
    place.run("simulate --hunt 9 --random 9").failed(2, &["--hunt", "--random"]);
    place.run("simulate --hunt 2").failed(2, &["3..="]);
    place.run("simulate --against full").failed(2, &["--hunt"]);
}

#[test]
fn an_interrupted_hunt_prints_its_finds_so_far() {
    let place = Place::new();
    let mut hunt = place.start("simulate --hunt 1000000 --policy static:0.5 --json");
    let stderr = BufReader::new(hunt.0.stderr.as_mut().unwrap());
    assert!(stderr.lines().any(|line| line.unwrap().contains("at worst")), "it ended");
    hunt.signal(Signal::INT);
    let ended = hunt.wait().failed(130, &["stopping"]);
    assert!(!rows(&ended.stdout).is_empty());
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let place = Place::new();
    place.run("simulate --policy fastest").failed(2, &["unknown policy `fastest`", "auto"]);
    place.run("simulate --straggler salvage").failed(1, &["micro-batches"]);
    place.run("simulate --quorum 17").failed(1, &["--quorum 17", "16 workers"]);
    place.run("simulate --overhead much").failed(2, &["0.1x"]);
    place.write("bad.csv", "iteration,worker,seconds\n0,0,1.0\n0,1,fast\n");
    place.run("simulate bad.csv").failed(1, &["bad.csv", "3"]);
}

#[test]
fn auto_is_explained_round_by_round() {
    let place = Place::new();
    let args = "simulate --explain --synthetic nodes16-stalls:rounds=60";
    let objects = rows(&place.run(&format!("{args} --json")).ok().stdout);
    let [explained] = &objects[..] else { panic!("one object per trace") };
    let number = |key: &str| explained[key].as_f64().unwrap();
    let rounds = explained["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 60);
    for key in ["lost", "too_long", "too_early", "audits", "wrong_part"] {
        let sum: f64 = rounds.iter().map(|round| round[key].as_f64().unwrap()).sum();
        assert!((sum - number(key)).abs() < 1e-6, "{key}");
    }
    let share = number("lost") / (number("oracle_rate") * number("seconds"));
    assert!((share - (1.0 - number("rate") / number("oracle_rate"))).abs() < 1e-9);

    let text = place.run(args).ok().stdout;
    for part in ["led by", "pays above", "all arrived", "waiting too long", "worst rounds:"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    place.run("simulate --explain --straggler finish").failed(2, &["--explain", "finish"]);
    place.run("simulate --explain --policy full").failed(2, &["--explain", "--policy"]);
}

#[test]
fn a_page_needs_nothing_else_and_policies_are_listed() {
    let place = Place::new();
    place.run("simulate --seeds 1 --html page.html").ok();
    let page = std::fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.contains("Cutoff over time") && page.contains("<svg"));
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
    let listed = place.run("policies").ok().stdout;
    for policy in ["auto", "full", "static:N", "filter", "deadline:T", "dropcompute"] {
        assert!(listed.lines().any(|line| line.starts_with(policy)), "{policy}: {listed}");
    }
}
