//! The interface for faults that are injected into a shard.

use std::{
    fmt,
    time::{Duration, Instant},
};

/// Faults injected into a shard, in demonstrations and tests. `paceline-faults` implements them; a shard
/// without an implementation has none.
pub trait ShardFaults: fmt::Debug + Send + Sync {
    /// The shard has made an update, which took `took`, and publishes it when this returns. The call may
    /// block: it runs on the shard's own thread.
    fn after_update(&self, took: Duration);

    /// When `bytes` more bytes have passed the shard's link, in either direction; `None` if its link is not
    /// slowed.
    fn passed_at(&self, bytes: usize) -> Option<Instant>;

    /// Whether the shard's link is slowed. Gradients and parameters then go by TCP: shared memory would
    /// bypass the link.
    fn slows_link(&self) -> bool;
}
