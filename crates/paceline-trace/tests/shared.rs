//! The traces of real machines in `../shared/traces`, and the figures that are quoted for them.

use std::path::PathBuf;

use paceline_trace::{ReadOptions, Trace, deadlines, hindsight, read};

/// The trace in this file, or nothing, loudly, where the shared traces are not there.
fn shared(file: &str) -> Option<Trace> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces").join(file);
    if !path.exists() {
        eprintln!("SKIPPED: {} is not there", path.display());
        return None;
    }
    Some(read(&path, &ReadOptions::default()).expect("a trace"))
}

/// Whether it is the quoted figure. All agree if they are rounded to four digits and then to three:
/// 1.02253 is quoted as 1.022 and 1.005499 as 1.006.
#[track_caller]
fn quoted(got: f64, expected: f64) {
    assert!((got - expected).abs() < 0.00055, "{got}, expected {expected}");
}

#[track_caller]
fn to_three_digits(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 0.0005, "{got}, expected {expected}");
}

#[test]
fn hindsight_agrees_with_the_quoted_figures() {
    for (file, n, rounds, count, best_static, oracle) in [
        ("alibaba_pai_job1", 10, 300, 10, 1.000, 1.014),
        ("alibaba_pai_job3", 10, 248, 10, 1.000, 1.001),
        ("azure_short_B8ms_eastus_cpu_cache", 64, 184, 58, 1.237, 1.022),
        ("bytedance_se_dp", 32, 43, 30, 1.035, 1.018),
        ("mlperfhpc_v1_dgxa100_deepcam_step", 256, 843, 255, 1.006, 1.002),
        ("mlperfhpc_v1_fugaku81_cosmoflow_epoch", 80, 29, 79, 1.025, 1.000),
        ("mlperfhpc_v1_juwels22_deepcam_step", 22, 843, 21, 1.210, 1.026),
    ] {
        let Some(trace) = shared(&format!("{file}.csv.gz")) else { return };
        assert_eq!(trace.name(), file);
        assert_eq!((trace.workers().len(), trace.rounds()), (n, rounds), "{file}");
        let seen = hindsight(&trace, 0.0, 1);
        assert_eq!(seen.best_static_count, count, "{file}");
        quoted(seen.best_static_rate / seen.full_rate, best_static);
        quoted(seen.oracle_rate / seen.best_static_rate, oracle);
    }
    let Some(trace) = shared("seattle_rtt_server38.csv.gz") else { return };
    let seen = hindsight(&trace, 0.0, 1);
    assert_eq!(seen.best_static_count, 6);
    assert!((seen.best_static_rate / seen.full_rate - 27.4).abs() < 0.05);
    quoted(seen.oracle_rate / seen.best_static_rate, 1.420);
}

#[test]
fn operations_give_micro_batches_and_the_worth_of_deadlines() {
    let Some(trace) = shared("bytedance_se_ops.parquet") else { return };
    assert_eq!((trace.workers().len(), trace.rounds(), trace.micro_batches()), (32, 43, 8));
    let counts = hindsight(&trace, 0.0, 1);
    assert_eq!(counts.best_static_count, 30);
    to_three_digits(counts.best_static_rate / counts.full_rate, 1.035);
    to_three_digits(counts.oracle_rate / counts.full_rate, 1.053);
    let seen = deadlines(&trace, 0.0);
    assert!((seen.full_rate / counts.full_rate - 1.0).abs() < 1e-12);
    to_three_digits(seen.best_fixed_rate / seen.full_rate, 1.195);
    to_three_digits(seen.clairvoyant_rate / seen.full_rate, 1.211);
    to_three_digits(seen.balance_rate / seen.full_rate, 1.261);
}

#[test]
fn operations_and_run_times_of_the_same_job_agree() {
    let Some((operations, run_times)) =
        shared("bytedance_se_ops.parquet").zip(shared("bytedance_se_dp.csv.gz"))
    else {
        return;
    };
    assert_eq!(operations.workers().len(), run_times.workers().len());
    for round in 0..43 {
        for (a, b) in operations.row(round).zip(run_times.row(round)) {
            let (a, b) = (a.bound().expect("there"), b.bound().expect("there"));
            assert!((a - b).abs() < 2e-5, "round {round}: {a} {b}");
        }
    }
}
