//! Presets of simulated systems.

use std::time::Duration;

use super::SystemSpec;

/// Bytes per second in a gigabit per second.
const GBIT: f64 = 1e9 / 8.0;

const LAN: SystemSpec = SystemSpec {
    name: "lan",
    shards: 4,
    model: 100e6,
    server_bandwidth: 10.0 * GBIT,
    slow_shard: 1.0,
    worker_bandwidth: 10.0 * GBIT,
    delay: Duration::from_micros(100),
    fold: 5e9,
    slow_fold: 1.0,
    stop_every: 0,
    stop_for: Duration::ZERO,
};

/// Every preset, with a one-line description.
pub const PRESETS: [(SystemSpec, &str); 4] = [
    (LAN, "100 MB on 4 shards, 10 Gbit/s, 0.1 ms"),
    (
        SystemSpec {
            name: "wan",
            model: 10e6,
            server_bandwidth: GBIT,
            worker_bandwidth: 0.1 * GBIT,
            delay: Duration::from_millis(30),
            ..LAN
        },
        "10 MB on 4 shards with 1 Gbit/s, workers with 100 Mbit/s, 30 ms",
    ),
    (
        SystemSpec { name: "high-communication", model: 1e9, ..LAN },
        "1 GB on 4 shards, 10 Gbit/s: incast takes several times what computing does",
    ),
    (
        SystemSpec { name: "tiny", shards: 1, model: 0.0, delay: Duration::ZERO, ..LAN },
        "no communication: like a plain replay",
    ),
];

/// The preset of that name.
pub(super) fn preset(name: &str) -> Option<SystemSpec> {
    PRESETS.into_iter().map(|(spec, _)| spec).find(|spec| spec.name == name)
}
