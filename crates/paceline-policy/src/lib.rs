//! The policies, one file each. A policy sees a [`paceline_core::RoundView`], never a clock or a
//! socket (`clippy.toml` denies it).

mod audit;
mod auto;
mod backlog;
mod bandit;
mod belief;
mod closed;
mod deadline;
mod floor;
mod full;
mod intervals;
mod learned;
mod objective;
mod patience;
mod predict;
mod rate;
mod scene;
mod score;
mod shard_wait;
mod spec;
mod stale;
mod static_count;
mod stop;
mod trial;

pub use auto::Auto;
pub use bandit::Bandit;
pub use belief::{Belief, Forecast};
pub use deadline::{Deadline, DropCompute};
pub use full::Full;
pub use intervals::{ConformalInterval, LEVELS};
pub use learned::Learned;
pub use objective::Objective;
pub use predict::{Bdsgd, Blend, Elfving, Empirical, Filter, Predictor};
pub use scene::{Arrived, Scene, Silent};
pub use score::{OrderCoverage, PLACES, PredictionScore, score};
pub use shard_wait::{wait_for_answers, wait_for_updates, wait_rule};
pub use spec::{POLICIES, PolicySpec, PolicySpecError};
pub use stale::Stale;
pub use static_count::{Cutoff, Static};
pub use stop::Rule;
