//! Bounded memory for contributions that wait to be folded.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bounded pool of `f32` buffers, safe to share between threads.
///
/// Buffers out on loan and buffers waiting to be lent again together never hold more than the
/// capacity stated at construction. The buffer given back last is lent first, because it is the
/// one still in the cache.
#[derive(Debug)]
pub struct BufferPool {
    capacity: usize,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: Vec<Vec<f32>>,
    idle_bytes: usize,
    lent_bytes: usize,
    high_water: usize,
    refused: u64,
}

impl BufferPool {
    /// A pool that holds at most `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        BufferPool { capacity, state: Mutex::default() }
    }

    /// A buffer of `len` elements with arbitrary contents, or `None` while the pool is exhausted.
    ///
    /// The caller [puts](Self::put) the buffer back; one that is lost stays counted as lent. A
    /// [`lease`](Self::lease) returns itself.
    pub fn try_take(&self, len: usize) -> Option<Vec<f32>> {
        let mut state = self.lock();
        let Some(mut buffer) = state.find(len, self.capacity) else {
            state.refused += 1;
            return None;
        };
        state.lent_bytes += bytes(&buffer);
        state.high_water = state.high_water.max(state.lent_bytes);
        drop(state);
        buffer.resize(len, 0.0);
        Some(buffer)
    }

    /// Gives back a buffer that was taken from this pool.
    pub fn put(&self, buffer: Vec<f32>) {
        let mut state = self.lock();
        state.lent_bytes = state.lent_bytes.saturating_sub(bytes(&buffer));
        state.idle_bytes += bytes(&buffer);
        state.idle.push(buffer);
        state.trim(self.capacity);
    }

    /// Like [`try_take`](Self::try_take), for a buffer that gives itself back when dropped, so
    /// that a contribution abandoned half-way costs the pool nothing.
    pub fn lease(self: &Arc<Self>, len: usize) -> Option<Lease> {
        let buffer = self.try_take(len)?;
        Some(Lease { buffer, pool: Arc::clone(self) })
    }

    /// The most bytes that the pool may hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// What the pool holds now, and the most it ever lent.
    pub fn usage(&self) -> PoolUse {
        let state = self.lock();
        PoolUse {
            lent: state.lent_bytes,
            idle: state.idle_bytes,
            high_water: state.high_water,
            refused: state.refused,
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Every change to the state is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// The most recently used idle buffer that is large enough, else a new one if there is room.
    fn find(&mut self, len: usize, capacity: usize) -> Option<Vec<f32>> {
        if let Some(at) = self.idle.iter().rposition(|buffer| buffer.capacity() >= len) {
            let buffer = self.idle.remove(at);
            self.idle_bytes -= bytes(&buffer);
            return Some(buffer);
        }
        let wanted = len.checked_mul(size_of::<f32>())?;
        let left = capacity.checked_sub(self.lent_bytes)?.checked_sub(wanted)?;
        // Smaller idle buffers make room.
        self.trim(left + self.lent_bytes);
        Some(vec![0.0; len])
    }

    /// Frees idle buffers, least recently used first, until all buffers fit into `capacity`.
    fn trim(&mut self, capacity: usize) {
        while self.lent_bytes + self.idle_bytes > capacity && !self.idle.is_empty() {
            self.idle_bytes -= bytes(&self.idle.remove(0));
        }
    }
}

fn bytes(buffer: &Vec<f32>) -> usize {
    buffer.capacity() * size_of::<f32>()
}

/// A buffer on loan from a [`BufferPool`]; dropping it gives it back.
#[derive(Debug)]
pub struct Lease {
    buffer: Vec<f32>,
    pool: Arc<BufferPool>,
}

impl Deref for Lease {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.buffer
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.buffer));
    }
}

/// How a [`BufferPool`] is used, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// On loan now.
    pub lent: usize,
    /// Waiting to be lent again.
    pub idle: usize,
    /// The most that was ever on loan at once.
    pub high_water: usize,
    /// How often a request for a buffer was refused.
    pub refused: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_buffer_given_back_last_is_lent_first() {
        let pool = BufferPool::new(1024);
        let (cold, hot) = (pool.try_take(8).unwrap(), pool.try_take(8).unwrap());
        let address = hot.as_ptr();
        pool.put(cold);
        pool.put(hot);
        let again = pool.try_take(8).unwrap();
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    fn an_exhausted_pool_refuses_until_a_buffer_comes_back() {
        let pool = BufferPool::new(100);
        let buffer = pool.try_take(20).unwrap();
        assert_eq!(pool.try_take(6), None);
        assert_eq!(pool.try_take(usize::MAX), None);
        pool.put(buffer);
        assert_eq!(pool.try_take(6).map(|buffer| buffer.len()), Some(6));
        let expected = PoolUse { lent: 80, idle: 0, high_water: 80, refused: 2 };
        assert_eq!(pool.usage(), expected);
    }

    #[test]
    fn idle_buffers_make_room_for_a_larger_one() {
        let pool = BufferPool::new(100);
        let (a, b) = (pool.try_take(10).unwrap(), pool.try_take(10).unwrap());
        pool.put(a);
        pool.put(b);
        assert_eq!(pool.try_take(25).map(|buffer| buffer.len()), Some(25));
        assert_eq!(pool.usage().idle, 0);
    }

    #[test]
    fn an_abandoned_lease_comes_back() {
        let pool = Arc::new(BufferPool::new(40));
        let mut lease = pool.lease(10).unwrap();
        lease[9] = 1.0;
        assert!(pool.lease(1).is_none());
        drop(lease);
        assert_eq!(pool.lease(10).unwrap().len(), 10);
        assert_eq!(pool.usage().lent, 0);
    }

    #[test]
    fn threads_share_a_pool() {
        let pool = Arc::new(BufferPool::new(4 * 400));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        drop(pool.lease(100).expect("four threads hold one each"));
                    }
                });
            }
        });
        let usage = pool.usage();
        assert_eq!(usage.lent, 0);
        assert!(usage.high_water <= pool.capacity());
    }

    proptest! {
        #[test]
        fn the_capacity_is_never_passed(
            ops in prop::collection::vec((any::<bool>(), 1usize..40), 0..100),
        ) {
            let pool = BufferPool::new(400);
            let mut out: Vec<Vec<f32>> = Vec::new();
            for (take, len) in ops {
                if take {
                    out.extend(pool.try_take(len));
                } else if !out.is_empty() {
                    pool.put(out.remove(len % out.len()));
                }
                let (usage, lent) = (pool.usage(), out.iter().map(bytes).sum::<usize>());
                prop_assert_eq!(usage.lent, lent);
                prop_assert!(usage.lent + usage.idle <= 400);
                prop_assert!(usage.high_water >= usage.lent);
            }
        }
    }
}
