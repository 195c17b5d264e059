//! `paceline model`, and models in use, as a user does it.

mod common;

use std::fs;

use common::Place;
use serde_json::Value;

const SPEC: &str = "--synthetic nodes16-stalls:n=8,nodes=2,rounds=160";

fn rows(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fitted() -> Place {
    let place = Place::new();
    let fit = place.run(&format!("model fit {SPEC} -o m --epochs 3 --json")).ok();
    let passes = rows(&fit.stdout);
    assert_eq!(passes.len(), 3);
    assert!(passes.iter().all(|pass| pass["held_out"].is_f64() && pass["fitted"].is_f64()));
    assert!(passes.iter().any(|pass| pass["best"] == true));
    place
}

#[test]
fn a_model_is_fitted_shown_judged_and_used() {
    let place = fitted();
    let shown: Value = serde_json::from_str(&place.run("model show m").ok().stdout).unwrap();
    assert_eq!(shown["window"], 16);
    assert_eq!(shown["traces"][0]["workers"], 8);
    assert_eq!(shown["traces"][0]["unit"], "relative");

    let judged = place.run(&format!("model eval m {SPEC} --seed 2 --json")).ok();
    let names: Vec<Value> = rows(&judged.stdout).iter().map(|r| r["predictor"].clone()).collect();
    assert_eq!(names, ["bdsgd", "bdsgd:frozen", "filter", "empirical"]);
    for row in rows(&judged.stdout) {
        assert!(row["log_likelihood"].is_f64() && row["crps"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(
            row["order_coverage"].is_array(),
            row["predictor"].as_str().unwrap().contains("bdsgd")
        );
    }
    assert!(!judged.stderr.contains("very rounds"), "{}", judged.stderr);
    let same = place.run(&format!("model eval m {SPEC} --json")).ok();
    assert!(same.stderr.contains("fitted on these very rounds"), "{}", same.stderr);

    let simulate = format!("simulate {SPEC} --seeds 1 --policy bdsgd,bdsgd:frozen --json");
    let rate = |args: &str| rows(&place.run(args).ok().stdout)[1]["rate"].as_f64().unwrap();
    let (with, without) = (rate(&format!("{simulate} --run-time-model m")), rate(&simulate));
    assert!(with > 0.0 && with != without, "{with} with the model, {without} without");
}

#[test]
fn the_same_seed_fits_the_same_model() {
    let (one, two) = (fitted(), fitted());
    assert_eq!(fs::read(one.path("m")).unwrap(), fs::read(two.path("m")).unwrap());
}

#[test]
fn what_cannot_be_used_is_named() {
    let place = fitted();
    let whole = fs::read(place.path("m")).unwrap();
    fs::write(place.path("half"), &whole[..whole.len() / 2]).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(place.path("damaged"), damaged).unwrap();
    place.write("text", "not a model");
    let simulate = "simulate --policy bdsgd --seeds 1 --run-time-model";
    place
        .run(&format!("{simulate} missing"))
        .failed(1, &["failed to read the run-time model missing"]);
    place.run(&format!("{simulate} half")).failed(1, &["half", "safetensors"]);
    place.run(&format!("{simulate} damaged")).failed(1, &["damaged", "its checksum is"]);
    place.run(&format!("{simulate} text")).failed(1, &["text", "safetensors"]);
    place.run("train --rounds 1 --run-time-model missing").failed(1, &["missing"]);
    place
        .run("model fit --synthetic lognormal:rounds=5 -o few")
        .failed(1, &["5 rounds are too few"]);
    place
        .run(&format!("model fit {SPEC} -o no/such/folder --epochs 1"))
        .failed(1, &["no/such/folder"]);
    place.run(&format!("model fit {SPEC} -o x --held-out 2")).failed(2, &["0.01 to 0.9"]);
    place.run(&format!("simulate {SPEC} --rounds 90%..10%")).failed(1, &["leaves none"]);
    place.run("simulate --policy bdsgd:deep").failed(2, &["paper, impute and frozen"]);
    assert!(!place.path("few").exists());
}

#[test]
fn a_run_begins_with_a_model_that_was_fitted() {
    let place = fitted();
    let run = "train --workers 3 --shards 2 --model softmax --rounds 12 --policy bdsgd \
               --run-time-model m --json";
    let summary: Value = serde_json::from_str(&place.run(run).ok().stdout).unwrap();
    assert_eq!(summary["ledger"]["balanced"], true, "{summary}");
    let config = fs::read_to_string(place.path("runs/softmax-001/config.toml")).unwrap();
    let model = format!("run-time-model = \"{}\"", place.path("m").display());
    assert!(config.contains(&model) && config.contains("bdsgd"), "{config}");
}
