//! Slowness of a shard: longer updates, standstills and a slow link. [`ShardSlowness`] describes it, and
//! [`SlowShard`] inflicts it.

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use paceline_server::ShardFaults;

use crate::{rate::Rate, stall::Stall};

/// How slow a shard is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShardSlowness {
    /// The shard pads its updates to this duration.
    pub nominal: Option<Duration>,
    /// An update takes this many times as long.
    pub factor: f64,
    /// The shard stands still in this stall.
    pub stall: Option<Stall>,
    /// The rate of the shard's link, for both directions together.
    pub rate: Option<Rate>,
}

impl Default for ShardSlowness {
    fn default() -> Self {
        ShardSlowness { nominal: None, factor: 1.0, stall: None, rate: None }
    }
}

impl ShardSlowness {
    /// How long to pause after an update that took `took` and ended at `after` since the shard began.
    fn pause(self, took: Duration, after: Duration) -> Duration {
        let longer = self.nominal.unwrap_or(took).mul_f64(self.factor).saturating_sub(took);
        let resumes = |stall: Stall| stall.changes_in(after + longer);
        let stall = self.stall.filter(|stall| stall.is_on(after + longer));
        longer + stall.map_or(Duration::ZERO, resumes)
    }
}

/// A shard that is slow from now on.
#[derive(Debug)]
pub struct SlowShard {
    slowness: ShardSlowness,
    began: Instant,
    /// When the link has carried all bytes so far.
    link_free: Mutex<Instant>,
}

impl SlowShard {
    /// Begins the slowness; its stalls are counted from now.
    pub fn new(slowness: ShardSlowness) -> Self {
        let now = Instant::now();
        SlowShard { slowness, began: now, link_free: Mutex::new(now) }
    }
}

impl ShardFaults for SlowShard {
    fn after_update(&self, took: Duration) {
        thread::sleep(self.slowness.pause(took, self.began.elapsed()));
    }

    fn passed_at(&self, bytes: usize) -> Option<Instant> {
        let bits = 8.0 * bytes as f64;
        let takes = Duration::from_secs_f64(bits / self.slowness.rate?.bits() as f64);
        let mut free = self.link_free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = (*free).max(Instant::now()) + takes;
        Some(*free)
    }

    fn slows_link(&self) -> bool {
        self.slowness.rate.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_update_is_padded_then_stretched_and_a_stall_holds_it_up_to_its_end() {
        let slow = ShardSlowness { factor: 5.0, ..ShardSlowness::default() };
        assert_eq!(slow.pause(ms(10), ms(0)), ms(40));
        let padded = ShardSlowness { nominal: Some(ms(20)), ..slow };
        assert_eq!(padded.pause(ms(10), ms(0)), ms(90));
        assert_eq!(padded.pause(ms(200), ms(0)), ms(0));
        // It stands still from 700 to 1000 ms.
        let stalls = ShardSlowness { stall: Stall::new(ms(1000), ms(300)), ..padded };
        assert_eq!(stalls.pause(ms(10), ms(600)), ms(90));
        assert_eq!(stalls.pause(ms(10), ms(650)), ms(350));
    }

    #[test]
    fn bytes_pass_a_slow_link_one_after_the_other() {
        let rate = "80kbit".parse().ok();
        let slow = SlowShard::new(ShardSlowness { rate, ..ShardSlowness::default() });
        let first = slow.passed_at(10_000_000).unwrap();
        let second = slow.passed_at(5_000_000).unwrap();
        assert_eq!(second - first, Duration::from_secs(500));
        assert!(slow.slows_link());
        let free = SlowShard::new(ShardSlowness::default());
        assert_eq!((free.passed_at(1), free.slows_link()), (None, false));
    }
}
