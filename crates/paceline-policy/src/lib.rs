//! The policies, one file each. A policy sees a [`paceline_core::RoundView`], never a clock or a
//! socket (`clippy.toml` denies it).

mod full;
mod spec;
mod static_count;

pub use full::Full;
pub use spec::{PolicySpec, PolicySpecError};
pub use static_count::{Cutoff, Static};
