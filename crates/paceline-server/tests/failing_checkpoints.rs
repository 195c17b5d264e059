//! Checkpoints that cannot be written: the run says so, goes on and tries again.

mod common;

use std::fs;

use common::{Server, config, start};
use paceline_core::{EventKind, StopReason};
use paceline_params::checkpoint;
use paceline_server::{CheckpointConfig, ServerConfig};

/// A run whose directory of checkpoints is to be where there is a file.
fn blocked(dir: &tempfile::TempDir) -> ServerConfig {
    let path = dir.path().join("checkpoints");
    fs::write(&path, "in the way").unwrap();
    let mut config = config(2);
    config.limits.rounds = None;
    config.checkpoints = Some(CheckpointConfig { dir: path, every: 5, keep: 2 });
    config
}

fn failed(event: &EventKind) -> bool {
    matches!(event, EventKind::CheckpointFailed { error, .. } if error.contains("checkpoints"))
}

#[test]
fn a_checkpoint_that_fails_is_reported_and_a_later_one_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let config = blocked(&dir);
    let path = config.checkpoints.as_ref().unwrap().dir.clone();
    let mut server = Server::start(config, start());
    let workers = [server.worker(0), server.worker(1)];
    server.wait_for(failed);
    fs::remove_file(&path).unwrap();
    server.wait_for(|event| matches!(event, EventKind::Checkpointed { .. }));
    server.interrupt();
    let (outcome, _) = server.join();
    assert_eq!(outcome.unwrap().reason, StopReason::Interrupted);
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    checkpoint::verify(&checkpoint::latest(&path).unwrap().unwrap().path).unwrap();
}

#[test]
fn a_run_that_cannot_write_its_last_checkpoint_has_failed_after_three_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = blocked(&dir);
    config.limits.rounds = Some(40);
    let server = Server::start(config, start());
    let workers = [server.worker(0), server.worker(1)];
    let (outcome, events) = server.join();
    let outcome = outcome.unwrap();
    assert_eq!(outcome.version.0, 40, "it goes on to its end");
    let StopReason::Failed(why) = &outcome.reason else { panic!("{:?}", outcome.reason) };
    assert!(why.starts_with("failed to write the last checkpoint: "), "{why}");
    // Those of the last version; what failed before did not count.
    let last = |kind: &EventKind| matches!(kind, EventKind::CheckpointFailed { version, .. } if version.0 == 40);
    let attempts = events.iter().filter(|event| last(&event.kind)).count();
    assert!((2..=3).contains(&attempts), "{attempts} attempts");
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
}
