//! Time in the core: nanoseconds since the run began, supplied by the driver.

use std::{
    fmt,
    ops::{Add, AddAssign, Sub},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds since the run began, on the coordinator's clock (or a simulator's).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(u64);

impl Time {
    /// The start of the run.
    pub const ZERO: Time = Time(0);

    /// The time `nanos` nanoseconds after the run began.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the run began.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the run began, for display.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 * 1e-9
    }

    /// `seconds` as a duration: zero if negative or NaN, [`Duration::MAX`] if out of range.
    pub fn span(seconds: f64) -> Duration {
        match seconds > 0.0 {
            true => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            false => Duration::ZERO,
        }
    }

    /// The time that passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates: a wait beyond the range of the clock never ends.
    fn add(self, wait: Duration) -> Time {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, wait: Duration) {
        *self = *self + wait;
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.as_secs_f64())
    }
}
