//! Errors of usage.

/// Flags or settings that cannot be used, as opposed to work that failed. The program reports it and
/// exits with code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
