//! Identifiers: newtypes, so that the compiler keeps workers and shards apart.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A process that computes gradients. Numbered from 0. Two live workers never share a number.
    WorkerId(u32), "w"
);
id!(
    /// One contribution of a run. Numbered from 0 in the order in which work is handed out; no number is used
    /// twice.
    ContributionId(u64), "c"
);
id!(
    /// One server's slice of the parameters, numbered from 0.
    ShardId(u32), "shard "
);
id!(
    /// One synchronous step, numbered from 0. Round r starts from [`Version`] r.
    Round(u64), "round "
);
id!(
    /// A state of the parameters: version 0 is the start, round r makes version r + 1 of version r.
    Version(u64), "v"
);

/// The most workers that a run takes. A bit set over worker numbers goes to every worker each round, and
/// each worker has connections to all shards.
pub const MAX_WORKERS: u32 = 4096;

impl Round {
    /// The version that this round's contributions are computed from.
    pub fn base(self) -> Version {
        Version(self.0)
    }

    /// The round after this one.
    pub fn next(self) -> Round {
        Round(self.0 + 1)
    }
}

impl Version {
    /// The version that the next update makes.
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }

    /// How many updates `self` is behind `newest`; zero if it is not behind.
    pub fn lag(self, newest: Version) -> u64 {
        newest.0.saturating_sub(self.0)
    }
}
