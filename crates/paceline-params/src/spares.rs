//! Buffers that old snapshots leave behind, for the next update to write into.

use std::sync::{Arc, Mutex, PoisonError};

/// Retired snapshots, kept until their last reader is done and then used again.
///
/// A block whose values are still read is updated into another buffer. A fresh buffer would cost a
/// page fault per 4 KiB, which is slower than the update itself, so up to `limit` old ones are kept.
/// The blocks of a shard share them, from any number of threads. One spare per block lets every
/// block be updated while one older version is being read.
#[derive(Debug)]
pub struct Spares {
    limit: usize,
    retired: Mutex<Vec<Arc<Vec<f32>>>>,
}

impl Spares {
    /// Keeps at most `limit` retired buffers.
    pub fn new(limit: usize) -> Self {
        Spares { limit, retired: Mutex::new(Vec::new()) }
    }

    /// A buffer of `len` elements with arbitrary contents: the most recently retired one without
    /// readers, else a new one.
    pub fn take(&self, len: usize) -> Vec<f32> {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |spare: &Arc<Vec<f32>>| spare.len() == len && Arc::strong_count(spare) == 1;
        let spare = retired.iter().rposition(free).map(|at| retired.remove(at));
        drop(retired);
        spare.and_then(Arc::into_inner).unwrap_or_else(|| vec![0.0; len])
    }

    /// Keeps `old` for reuse after its last reader; the oldest makes room.
    pub fn retire(&self, old: Arc<Vec<f32>>) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push(old);
        let oldest = (retired.len() > self.limit).then(|| retired.remove(0));
        drop(retired);
        drop(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_reused_only_after_its_last_reader() {
        let spares = Spares::new(2);
        let old = Arc::new(vec![7.0; 3]);
        let address = old.as_ptr();
        spares.retire(Arc::clone(&old));
        assert_eq!(spares.take(3), [0.0; 3], "still read, so a new one");
        assert_eq!(old[0], 7.0);
        drop(old);
        let again = spares.take(3);
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn a_buffer_of_another_length_is_left_alone() {
        let spares = Spares::new(2);
        spares.retire(Arc::new(vec![7.0; 3]));
        assert_eq!(spares.take(4), [0.0; 4]);
        assert_eq!(spares.take(3), [7.0; 3]);
    }

    #[test]
    fn the_oldest_makes_room_at_the_limit() {
        let spares = Spares::new(1);
        spares.retire(Arc::new(vec![1.0]));
        spares.retire(Arc::new(vec![2.0]));
        assert_eq!(spares.take(1), [2.0]);
        assert_eq!(spares.take(1), [0.0]);
    }
}
