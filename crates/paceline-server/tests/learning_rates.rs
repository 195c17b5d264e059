//! Learning rates that workers send with their contributions, by parameter group.

mod common;

use common::{PARAMS, Server, config, rogue::Rogue, start};
use paceline_core::{EventKind, Version};
use paceline_params::{Clip, LrScaling, TensorSpec};
use paceline_server::{ServerError, Start};

/// Two tensors in two groups, all zero. Their bound is inside of a block.
fn two_groups() -> Start {
    let (a, b) = (TensorSpec::new("a", [100]), TensorSpec::new("b", [PARAMS - 100]));
    Start { tensors: vec![a, b.in_group(1)], ..start() }
}

/// Contributes a mean gradient of -1 to the work it was given, with these rates. Returns the rate that the log gives, and the
/// parameters of both groups after the update.
fn step(
    server: &Server,
    rogue: &mut Rogue,
    work: (Version, u32),
    rates: &[f32],
) -> (f32, [f32; 2]) {
    let (base, samples) = work;
    rogue.push(base, &[-(samples as f32); PARAMS]);
    rogue.done_with(base, f64::from(samples), 1.0, rates);
    let events = server.wait_for(|event| matches!(event, EventKind::Updated { .. }));
    let rate = events.iter().find_map(|event| match event.kind {
        EventKind::Updated { learning_rate, .. } => Some(learning_rate),
        _ => None,
    });
    let params = rogue.pull(base.next());
    for group in [&params[..100], &params[100..]] {
        assert!(group.iter().all(|value| *value == group[0]), "{group:?}");
    }
    (rate.unwrap(), [params[0], params[100]])
}

#[test]
fn an_update_uses_the_workers_rates_by_group_or_else_the_runs_own() {
    // Clipping makes the update wait for the norms of the sums.
    for clip in [Clip::None, "norm:1e9".parse().unwrap()] {
        let mut config = config(1);
        config.update.optimizer = "sgd;sgd".parse().unwrap();
        config.update.clip = clip;
        let mut server = Server::start(config, two_groups());
        let mut rogue = Rogue::join(server.address);
        let work = rogue.ready();
        assert_eq!(step(&server, &mut rogue, work, &[0.5, 0.25]), (0.5, [0.5, 0.25]));
        let work = rogue.work();
        assert_eq!(step(&server, &mut rogue, work, &[0.0, 0.5]), (0.0, [0.5, 0.75]));
        let work = rogue.work();
        assert_eq!(step(&server, &mut rogue, work, &[]), (0.1, [0.6, 0.85]));
        server.interrupt();
        server.join().0.unwrap();
    }
}

#[test]
fn the_workers_rates_are_scaled_by_the_contributed_weight() {
    let mut config = config(1);
    config.update.optimizer = "sgd;sgd".parse().unwrap();
    config.update.scaling = LrScaling::Linear;
    config.update.reference_weight = 4.0;
    let mut server = Server::start(config, two_groups());
    let mut rogue = Rogue::join(server.address);
    // The batch has 8 samples.
    let work = rogue.ready();
    assert_eq!(step(&server, &mut rogue, work, &[0.25, 0.125]), (0.5, [0.5, 0.25]));
    server.interrupt();
    server.join().0.unwrap();
}

#[test]
fn a_run_needs_an_optimizer_for_every_group() {
    let server = Server::start(config(1), two_groups());
    let error = server.join().0.unwrap_err();
    assert!(matches!(error, ServerError::Start(_)), "{error}");
    assert!(
        error.to_string().contains("tensors in 2 parameter groups, optimizers for 1"),
        "{error}"
    );
}
