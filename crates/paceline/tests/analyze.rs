//! `paceline analyze`, as a user meets it.

mod common;

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use common::Place;
use rustix::{
    fs::{CWD, Mode, OFlags, mkfifoat, open},
    io::Errno,
    process::Signal,
};
use serde_json::Value;

/// The traces that are not in the repository; `None`, loudly, where they are absent.
fn shared() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("SKIPPED: {} is absent, so figures of real traces are not checked", folder.display());
    None
}

#[track_caller]
fn near(found: &Value, expected: f64, within: f64) {
    let number = found.as_f64().unwrap_or(f64::NAN);
    assert!((number - expected).abs() <= within, "{number}, not {expected} ± {within}");
}

/// The figures of `shared/traces/README.md`, with more digits, worked out from its definitions by
/// another program. (Its table has 1.022 for azure's oracle, which is 1.0225.)
#[test]
fn figures_of_real_traces_are_those_of_their_table() {
    let Some(folder) = shared() else { return };
    let place = Place::new();
    for (file, n, rounds, idle, fixed, count, oracle) in [
        ("alibaba_pai_job1.csv.gz", 10, 300, 0.09986, 1.0, 10, 1.01395),
        ("alibaba_pai_job3.csv.gz", 10, 248, 0.09583, 1.0, 10, 1.00074),
        ("azure_short_B8ms_eastus_cpu_cache.csv.gz", 64, 184, 0.41949, 1.23733, 58, 1.02253),
        ("bytedance_se_dp.csv.gz", 32, 43, 0.20709, 1.03505, 30, 1.01768),
        ("bytedance_se_ops.parquet", 32, 43, 0.20709, 1.03505, 30, 1.01768),
        ("mlperfhpc_v1_dgxa100_deepcam_step.csv.gz", 256, 843, 0.03480, 1.00550, 255, 1.00232),
        ("mlperfhpc_v1_fugaku81_cosmoflow_epoch.csv.gz", 80, 29, 0.07964, 1.02542, 79, 1.00021),
        ("mlperfhpc_v1_juwels22_deepcam_step.csv.gz", 22, 843, 0.24331, 1.20972, 21, 1.02650),
        ("seattle_rtt_server38.csv.gz", 98, 688, 0.94602, 27.43066, 6, 1.41965),
    ] {
        let path = folder.join(file);
        let found = place.run(&format!("analyze {} --json", path.display())).ok().json();
        assert_eq!((&found["workers"], &found["rounds"]), (&n.into(), &rounds.into()), "{file}");
        near(&found["cost"]["idle"], idle, 1e-5);
        near(&found["cost"]["fixed"]["gain"], fixed, 1e-5);
        assert_eq!(found["cost"]["fixed"]["count"], count, "{file}");
        near(&found["cost"]["oracle"]["gain_over_fixed"], oracle, 1e-5);
    }
    let operations = folder.join("bytedance_se_ops.parquet");
    let found = place.run(&format!("analyze {} --json", operations.display())).ok().json();
    near(&found["partial"]["fixed_gain"], 1.195, 0.001);
    near(&found["partial"]["oracle_gain"], 1.211, 0.001);
    near(&found["partial"]["balance_gain"], 1.261, 0.001);
    let job3 = folder.join("alibaba_pai_job3.csv.gz");
    let found = place.run(&format!("analyze {} --json", job3.display())).ok().json();
    assert_eq!(found["changes"]["workers"][0]["workers"], serde_json::json!(["6", "7", "8", "9"]));
}

#[test]
fn without_a_file_a_sample_is_shown_and_it_fits_on_a_screen() {
    let place = Place::new();
    let ended = place.run("analyze").ok();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines.len() <= 45, "{} lines", lines.len());
    assert!(lines[0].starts_with("sample: waiting for the slowest costs "), "{}", lines[0]);
    assert!(lines[1].starts_with("Best fixed cutoff: wait for "), "{}", lines[1]);
    assert!(lines[2].starts_with("At most ("), "{}", lines[2]);
    assert!(ended.stdout.contains("relative units: savings are ratios"), "{}", ended.stdout);
    assert!(ended.stderr.contains("embedded sample"), "{}", ended.stderr);
    for spec in ["nodes158-stalls", "shift48", "iid-exp"] {
        let ended = place.run(&format!("analyze --synthetic {spec} --seed 3")).ok();
        assert!(ended.stdout.lines().count() <= 45, "{}", ended.stdout);
        assert!(ended.stdout.lines().all(|line| line.chars().count() <= 120), "{}", ended.stdout);
    }
}

#[test]
fn json_is_one_object_a_trace_with_all_that_the_text_says() {
    let place = Place::new();
    place.write("a.csv", "iteration,worker,seconds\n0,x,1\n0,y,2\n1,x,1\n1,y,3\n");
    place.write("b.csv", "iteration,x,y\n0,1,2\n1,1,2\n2,1,2\n3,1,2\n");
    let ended = place.run("analyze a.csv b.csv --synthetic iid-exp:n=5,rounds=30 --json").ok();
    let objects: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 3);
    for (object, (name, unit)) in
        objects.iter().zip([("a", "seconds"), ("b", "seconds"), ("iid-exp", "relative")])
    {
        assert!(object["name"].as_str().unwrap().starts_with(name), "{object}");
        assert_eq!(object["unit"], unit);
        for field in ["workers", "rounds", "noise_scale"] {
            assert!(object[field].is_number(), "{field} in {object}");
        }
        for path in [
            "/cost/idle",
            "/cost/full_rate",
            "/cost/fixed/count",
            "/cost/oracle/gain",
            "/spread/within_rounds",
            "/spread/tail/p99",
            "/spread/slowest/max",
            "/cutoffs/0/wait",
            "/cutoffs/0/against_full",
            "/cutoffs/0/progress_against_full",
            "/ranking/workers/0/factor",
            "/ranking/workers/0/slowdown",
            "/ranking/worst/slowdown",
            "/groups/threshold",
            "/survival/run_times/points/0/0",
        ] {
            assert!(object.pointer(path).is_some_and(Value::is_number), "{path} in {object}");
        }
        for path in ["/groups/groups", "/changes/typical", "/changes/slowest", "/changes/workers"] {
            assert!(object.pointer(path).is_some_and(Value::is_array), "{path} in {object}");
        }
        assert_eq!(object["saving"].is_object(), unit == "seconds");
        assert!(object["censoring"].is_null() && object["partial"].is_null());
    }
    // 5 s of full sync, of which worker y's excess is 3.
    let y = &objects[0]["ranking"]["workers"][0];
    assert_eq!((y["worker"].as_str(), y["slowdown"].as_f64()), (Some("y"), Some(2.5)));
    near(&objects[0]["cost"]["idle"], 1.0 - 1.75 / 2.5, 1e-12);
}

#[test]
fn hours_are_told_of_the_stated_run_and_not_where_units_are_relative() {
    let place = Place::new();
    place.write("t.csv", "iteration,a,b,c\n0,1,1,4\n1,1,1,4\n");
    let told = place.run("analyze t.csv --run-length 30h").ok().stdout;
    assert!(told.contains("wait for 2 of 3; 2.67× as fast, saves 19 h of 30 h"), "{told}");
    let relative = place.run("analyze t.csv --unit relative").ok().stdout;
    assert!(relative.contains("wait for 2 of 3; 2.67× as fast."), "{relative}");
    assert!(!relative.contains(" h of "), "{relative}");
    let overhead = place.run("analyze t.csv --overhead 10 --json").ok().json();
    assert_eq!(overhead["cost"]["fixed"]["count"], 3);
}

#[test]
fn lower_bounds_give_ranges() {
    let place = Place::new();
    place.write("t.csv", "iteration,a,b,c\n0,1,1,>=2\n1,1,1,10\n2,1,1,>=2\n3,1,1,\n");
    let ended = place.run("analyze t.csv").ok();
    assert!(ended.stdout.contains("18 % of run-times are lower bounds"), "{}", ended.stdout);
    assert!(ended.stdout.contains("wait for 2 of 3; 2.73× to 5.64× as fast"), "{}", ended.stdout);
    assert!(ended.stdout.contains("≥ "), "{}", ended.stdout);
    let found = place.run("analyze t.csv --json").ok().json();
    near(&found["ranking"]["workers"][0]["censored"], 2.0 / 3.0, 1e-12);
    near(&found["censoring"]["share"], 2.0 / 11.0, 1e-12);
    let (optimistic, pessimistic) =
        (&found["censoring"]["optimistic"], &found["censoring"]["pessimistic"]);
    assert_eq!(optimistic["idle"], found["cost"]["idle"]);
    assert!(optimistic["fixed_gain"].as_f64() < pessimistic["fixed_gain"].as_f64());
    // 31 s for all instead of 15 s; nobody waits where one is absent.
    near(&pessimistic["fixed_gain"], (8.0 / 4.0) / (11.0 / 31.0), 1e-12);
    near(&found["spread"]["absent"], 1.0 / 12.0, 1e-12);
}

#[test]
fn the_nodes_of_a_preset_and_its_shift_are_found_and_independent_workers_are_left_alone() {
    let place = Place::new();
    let nodes = place.run("analyze --synthetic nodes158 --json").ok().json();
    let mut sizes: Vec<usize> = nodes["groups"]["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["workers"].as_array().unwrap().len())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [39, 39, 40, 40]);
    let shift = place.run("analyze --synthetic shift48 --json").ok().json();
    assert_eq!(shift["changes"]["workers"][0]["round"], 300);
    assert_eq!(shift["changes"]["workers"][0]["workers"].as_array().unwrap().len(), 16);
    let text = place.run("analyze --synthetic iid-lognormal").ok().stdout;
    for part in ["no worker is clearly slower", "groups      none", "changes     none"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn wrong_input_is_named_with_file_and_line() {
    let place = Place::new();
    place.write("bad.csv", "iteration,worker,seconds\n0,a,1\n0,b,fast\n");
    place.write("other.csv", "step,rank,took\n0,a,1\n1,a,2\n");
    place.run("analyze bad.csv").failed(1, &["bad.csv, line 3", "`fast` is not a run-time"]);
    place.write("empty.csv", "iteration,a,b\n0,,\n1,,\n");
    place.run("analyze empty.csv").failed(1, &["empty.csv: no worker is present in any round"]);
    place.run("analyze nowhere.csv").failed(1, &["nowhere.csv"]);
    place.run("analyze other.csv").failed(1, &["other.csv", "step"]);
    place.run("analyze other.csv --columns step,rank,took").ok();
    place.run("analyze other.csv --columns step,rank").failed(2, &["ITER,WORKER,SECONDS"]);
    place.run("analyze --synthetic cloud").failed(2, &["unknown generator `cloud`"]);
    place.run("analyze --unit minutes").failed(2, &["seconds", "relative"]);
    place.run("analyze --run-length long").failed(2, &["no span of time"]);
    place.run("analyze --overhead=-1").failed(2, &["overhead"]);
    place.run("analyze --html no/such/folder/a.html").failed(1, &["no/such/folder/a.html"]);
    let failed = place.run("analyze bad.csv --html page.html").failed(1, &["line 3"]);
    assert_eq!(failed.stdout, "");
    assert!(!place.path("page.html").exists());
}

#[test]
fn help_has_examples() {
    let help = Place::new().run("analyze --help").ok().stdout;
    for part in ["Examples:", "paceline analyze times.csv.gz", "--columns", "Exit codes"] {
        assert!(help.contains(part), "{part} in {help}");
    }
}

#[test]
fn a_page_holds_everything_and_fetches_nothing() {
    let place = Place::new();
    place.write("t.csv", "iteration,<b>a</b>,b\n0,1,>=2\n1,1,\n2,1,1\n3,2,1\n");
    let args = "analyze t.csv --synthetic xc40:n=2100,rounds=40 --html page.html";
    place.run(args).ok();
    let page = fs::read_to_string(place.path("page.html")).unwrap();
    for part in [
        "<!doctype html>",
        "prefers-color-scheme: dark",
        "name=\"viewport\"",
        "href=\"data:image/png;base64,",
        "Rate against the cutoff",
        "Time until a count of workers has arrived",
        "How often it takes longer",
        "A dot is the largest of 2 × 1 cells.",
        "cut off: longer than this",
        "&lt;b&gt;a&lt;/b&gt;",
        "</html>",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    for part in ["http://", "https://", "src=", "<script", "@import", "url(", "<b>a</b>", "NaN"] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
}

#[test]
fn ctrl_c_leaves_the_old_page_and_no_other_file() {
    let (place, elsewhere) = (Place::new(), Place::new());
    place.write("page.html", "the old page");
    let trace = elsewhere.path("trace.csv");
    mkfifoat(CWD, &trace, Mode::RUSR | Mode::WUSR).unwrap();
    let running = place.start(&format!("analyze {} --html page.html", trace.display()));
    // The program holds the pipe open and waits for the rest of the trace until the signal comes.
    let mut pipe = wait_for_reader(&trace);
    pipe.write_all(b"iteration,a,b\n0,1,2\n").unwrap();
    running.signal(Signal::INT);
    assert_eq!(running.wait().code, None, "ended by the signal");
    assert_eq!(fs::read_to_string(place.path("page.html")).unwrap(), "the old page");
    assert_eq!(place.path(".").read_dir().unwrap().count(), 1);
}

/// Opens a named pipe for writing, once another process has opened it for reading.
fn wait_for_reader(pipe: &Path) -> File {
    let began = Instant::now();
    loop {
        match open(pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) => return file.into(),
            Err(Errno::NXIO) if began.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("nobody reads {}: {error}", pipe.display()),
        }
    }
}

#[test]
fn a_run_of_this_program_can_be_analysed() {
    let place = Place::new();
    let args = "train --model softmax --name slow --policy static:3 --stragglers slow:1:20 \
                --nominal 20ms --rounds 15";
    place.run(args).ok();
    let found = place.run("analyze runs/slow --json").ok().json();
    assert_eq!((&found["name"], &found["workers"]), (&"slow".into(), &4.into()));
    assert!(found["censoring"]["share"].as_f64().unwrap() > 0.1, "{found}");
}
