//! `paceline compare`: every policy the same chance, results that are kept, a page.

mod common;

use std::fs;

use common::Place;
use serde_json::Value;

const SMALL: &str = "compare --model softmax --workers 4 --batch 16 --seeds 1 --epochs 1 --tune 2 \
                     --evaluations 4 --target-accuracy 0.12";

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

#[test]
fn policies_are_compared_kept_and_not_run_again() {
    let place = Place::new();
    let args =
        format!("{SMALL} --policies full,auto,auto/samples,async --scenario stalls:3 --json");
    let first = place.run(&args).ok();
    let rows = rows(&first.stdout);
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert_eq!(row["ledger_balanced"], true, "{row}");
        assert!(row["bound"].as_f64().unwrap() > 1.1, "{row}");
    }
    let results = place.path("compare/results.jsonl");
    let kept = fs::read_to_string(&results).unwrap();
    assert_eq!(kept.lines().count(), 4 * 3, "two learning rates and a seed each");
    // An interrupted line is not a result; what is there is not run again.
    fs::write(&results, format!("{kept}{{\"trial\":")).unwrap();
    let again = place.run(&args).ok();
    assert_eq!(again.stdout, first.stdout);
    assert_eq!(fs::read_to_string(&results).unwrap(), kept);
    let page = fs::read_to_string(place.path("compare/page.html")).unwrap();
    assert!(page.contains("auto/samples") && page.contains("<svg") && !page.contains("https://"));
}

#[test]
fn a_sweep_shows_what_it_tried() {
    let place = Place::new();
    let args = format!("{SMALL} --policies auto,best-static --scenario stalls:3 --json");
    let rows = rows(&place.run(&args).ok().stdout);
    assert!(rows[0].get("tried").is_none(), "it has nothing to choose from");
    let tried = rows[1]["tried"].as_array().unwrap();
    let names: Vec<&str> = tried.iter().map(|tried| tried["policy"].as_str().unwrap()).collect();
    assert!(names[0] == "full" && names.len() == 4, "{names:?}");
    assert!(names.contains(&rows[1]["chosen"].as_str().unwrap()));
    let counts: Vec<f64> = tried.iter().map(|tried| tried["accepted"].as_f64().unwrap()).collect();
    assert!(counts[0] == 4.0 && counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
    let page = fs::read_to_string(place.path("compare/page.html")).unwrap();
    assert!(page.contains("tried for best-static"));
}

#[test]
fn a_sweep_over_backup_workers_says_what_it_would_take() {
    let place = Place::new();
    let args = SMALL.replace(" --workers 4", " --sweep 3,1 --scenario slow:0:6");
    let told = place.run(&args).ok();
    assert!(told.stdout.contains("static:4/abort") && told.stdout.contains("static:3/abort"));
    assert!(told.stdout.contains("N = 3 should count and b = 1 be backups"), "{}", told.stdout);
}

#[test]
fn what_cannot_be_compared_is_named() {
    let place = Place::new();
    place.run("compare --policies auto/quickly").failed(2, &["quickly", "salvage"]);
    place.run("compare --scenario lazy:1").failed(2, &["lazy:1", "trace:FILE"]);
    place.run(&format!("{SMALL} --scenario slow:9:2")).failed(2, &["4 workers, numbered from 0"]);
    place.run(&format!("{SMALL} --scenario hog:0")).failed(2, &["it needs --live"]);
    place.run(&format!("{SMALL} --scenario trace:nowhere.csv")).failed(1, &["nowhere.csv"]);
    place.run("compare --sweep 8").failed(2, &["N,b"]);
    place.run("compare --sweep 3,1 --policies auto").failed(2, &["--policies"]);
    place.run("compare --sweep 4294967295,3").failed(2, &["N,b"]);
    place.run("compare --policies auto/fold/abort").failed(2, &["fold", "finish"]);
    place.run("compare --policies static:3/rebalance").failed(2, &["rebalance", "filter"]);
    place.run("compare --policies auto/reweigh").failed(2, &["--homes"]);
    place.run("compare --policies auto,full,auto/progress").failed(2, &["`auto`", "twice"]);
    place.run("compare --policies auto/unbalanced").failed(2, &["--costs"]);
    let whole = "compare --policies auto/salvage --micro-batches 1";
    place.run(whole).failed(2, &["salvage needs at least two --micro-batches"]);
    let live = "compare --live 20ms --workers 3 --scenario hog:9";
    place.run(live).failed(2, &["there are 3 workers"]);
    place.run("compare --scenario kill:1@3").failed(2, &["kill", "--live"]);
    place.run("compare --lr 0").failed(2, &["--lr"]);
    fs::create_dir(place.path("mine")).unwrap();
    place.write("mine/results.jsonl", "my own notes\n");
    place.run(&format!("{SMALL} --out mine")).failed(1, &["line 1", "not a result"]);
    fs::write(place.path("mine/results.jsonl"), [0xff, b'\n']).unwrap();
    place.run(&format!("{SMALL} --out mine")).failed(1, &["failed to read", "results.jsonl"]);
    assert_eq!(fs::read(place.path("mine/results.jsonl")).unwrap(), [0xff, b'\n']);
}

#[test]
fn live_runs_are_compared_by_their_logs() {
    let place = Place::new();
    let args = "compare --model softmax --workers 2 --batch 64 --seeds 1 --epochs 1 --tune 1 \
                --evaluations 4 --target-accuracy 0.12 --policies full,auto --scenario slow:1:2 \
                --live 20ms --json";
    let rows = rows(&place.run(args).ok().stdout);
    assert_eq!(rows.len(), 2);
    assert!(
        rows.iter().all(|row| row["ledger_balanced"] == true && row["used"].as_u64() > Some(0))
    );
}

#[test]
fn a_learning_rate_at_which_training_diverges_is_said_and_not_chosen() {
    let place = Place::new();
    let small = SMALL.replace("softmax", "mlp");
    let args = format!("{small} --policies full --scenario none --lr 1e30 --json");
    let row = rows(&place.run(&args).ok().stdout).remove(0);
    assert_eq!((row["diverged"].as_u64(), row["reached"].as_u64()), (Some(1), Some(0)), "{row}");
    let told = place.run(&format!("{small} --policies full --scenario none --lr 1e30")).ok();
    assert!(told.stdout.contains("1 of 1 seeds diverged"), "{}", told.stdout);
}

#[test]
fn the_race_may_be_to_a_loss() {
    let place = Place::new();
    let args = SMALL.replace("--target-accuracy 0.12", "--target-loss 2.4");
    let told = place.run(&format!("{args} --policies full --scenario none")).ok();
    assert!(told.stdout.contains("seconds to a test loss of 2.4"), "{}", told.stdout);
}
