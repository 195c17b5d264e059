//! How much memory a host has for sharing.

use rustix::fs::statvfs;
use thiserror::Error;

/// The file system whose size limits shared memory. Segments do not lie there, but it is the one limit that
/// the owner of a host or container sets.
const SHM: &str = "/dev/shm";

/// Why there is not enough shared memory.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RoomError {
    /// The host has no shared memory.
    #[error("there is no {0}")]
    Missing(String),
    /// It has less than wanted.
    #[error("{place} has {} MiB free, {} MiB are needed", free >> 20, wanted.div_ceil(1 << 20))]
    TooSmall {
        /// The file system.
        place: String,
        /// Free bytes.
        free: u64,
        /// Wanted bytes.
        wanted: u64,
    },
}

/// Checks that this host has `wanted` bytes of shared memory.
pub fn check_room(wanted: u64) -> Result<(), RoomError> {
    check_room_in(SHM, wanted)
}

fn check_room_in(place: &str, wanted: u64) -> Result<(), RoomError> {
    let place = place.to_owned();
    let Ok(found) = statvfs(&*place) else { return Err(RoomError::Missing(place)) };
    match found.f_bavail.saturating_mul(found.f_frsize) {
        free if free < wanted => Err(RoomError::TooSmall { place, free, wanted }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_and_none_are_told_apart() {
        let missing = check_room_in("/dev/no-such-place", 1).unwrap_err().to_string();
        assert_eq!(missing, "there is no /dev/no-such-place");
        let small = check_room_in("/", u64::MAX).unwrap_err().to_string();
        assert!(small.contains("MiB are needed"), "{small}");
        assert_eq!(check_room_in("/", 0), Ok(()));
    }
}
