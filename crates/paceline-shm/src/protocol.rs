//! How a publisher and its readers agree on who uses a segment, as operations on two words.
//!
//! A segment's *stamp* says which version it holds, a reader's *register* which segment it keeps. Both hold
//! a number plus one, or [`NONE`]. A reader first enters the segment in its register and then reads the
//! stamp; the publisher first withdraws the stamp and then reads the registers. A sequentially
//! consistent fence between the two steps of either side makes sure that at least one of them sees the
//! other (Dekker's algorithm), so a segment is never written while a reader keeps it.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The word of a segment that holds no version, and of a register that keeps no segment.
pub(crate) const NONE: u64 = 0;

/// The word for `number`. The highest number stands for none.
pub(crate) fn word_for(number: u64) -> u64 {
    number.wrapping_add(1)
}

/// An atomic word. The tests use loom's, which tries every order that the memory model allows.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Replaces [`NONE`] by `value`, with acquire and release ordering; false if it held something else.
    fn occupy(&self, value: u64) -> bool;
    /// A sequentially consistent fence.
    fn fence();
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn occupy(&self, value: u64) -> bool {
        self.compare_exchange(NONE, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Keeps `segment` for a reader, if its register is free and the segment still holds `version`.
pub(crate) fn keep<W: Word>(register: &W, stamp: &W, segment: u32, version: u64) -> bool {
    if !register.occupy(word_for(u64::from(segment))) {
        return false;
    }
    W::fence();
    let holds = holds(stamp, version);
    if !holds {
        release(register);
    }
    holds
}

/// Ends the reader's use of the segment; all that it read of it was read before.
pub(crate) fn release<W: Word>(register: &W) {
    register.store(NONE, Ordering::Release);
}

/// Announces that a segment's values are about to change. The publisher reads the registers after this.
pub(crate) fn withdraw<W: Word>(stamp: &W) {
    stamp.store(NONE, Ordering::Relaxed);
    W::fence();
}

/// Whether a reader keeps `segment`. What that reader read before it released it was read before this.
pub(crate) fn keeps<W: Word>(register: &W, segment: u32) -> bool {
    holds(register, u64::from(segment))
}

/// Announces that a segment holds all values of `version`.
pub(crate) fn publish<W: Word>(stamp: &W, version: u64) {
    stamp.store(word_for(version), Ordering::Release);
}

/// Whether a word is that of `number`.
pub(crate) fn holds<W: Word>(word: &W, number: u64) -> bool {
    let held = word.load(Ordering::Acquire);
    word_for(number) != NONE && held == word_for(number)
}

#[cfg(test)]
mod tests {
    use loom::{
        cell::UnsafeCell,
        sync::{
            Arc,
            atomic::{AtomicU64 as ModelWord, fence as model_fence},
        },
        thread,
    };

    use super::*;

    impl Word for ModelWord {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }

        fn occupy(&self, value: u64) -> bool {
            self.compare_exchange(NONE, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }

        fn fence() {
            model_fence(Ordering::SeqCst);
        }
    }

    /// A word whose fences do nothing.
    struct Unfenced(ModelWord);

    impl Word for Unfenced {
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        fn occupy(&self, value: u64) -> bool {
            self.0.occupy(value)
        }

        fn fence() {}
    }

    /// One segment, one register, and the segment's values: loom panics if they are written while they are
    /// read.
    struct Memory<W> {
        stamp: W,
        register: W,
        values: UnsafeCell<()>,
    }

    impl<W: Word> Memory<W> {
        /// The segment holds version 0.
        fn new(word: fn(u64) -> W) -> Arc<Memory<W>> {
            let (stamp, register) = (word(word_for(0)), word(NONE));
            Arc::new(Memory { stamp, register, values: UnsafeCell::new(()) })
        }

        fn read(&self, version: u64) -> bool {
            let keeps = keep(&self.register, &self.stamp, 0, version);
            if keeps {
                self.values.with(|_| ());
                release(&self.register);
            }
            keeps
        }

        fn write(&self, version: u64) -> bool {
            withdraw(&self.stamp);
            let is_free = !keeps(&self.register, 0);
            if is_free {
                self.values.with_mut(|_| ());
                publish(&self.stamp, version);
            }
            is_free
        }
    }

    /// A reader wants both versions while the publisher replaces the first by the second.
    fn exchange<W: Word + Send + Sync + 'static>(word: fn(u64) -> W) {
        loom::model(move || {
            let memory = Memory::new(word);
            let publisher = {
                let memory = Arc::clone(&memory);
                thread::spawn(move || memory.write(1))
            };
            memory.read(0);
            memory.read(1);
            publisher.join().unwrap();
        });
    }

    #[test]
    fn a_segment_is_never_written_while_it_is_kept_in_any_order() {
        exchange(ModelWord::new);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn without_fences_the_model_finds_an_order_that_breaks_it() {
        exchange(|value| Unfenced(ModelWord::new(value)));
    }

    #[test]
    fn two_readers_never_keep_by_one_register() {
        loom::model(|| {
            let memory = Memory::<ModelWord>::new(ModelWord::new);
            let occupied = Arc::new(UnsafeCell::new(()));
            let reader = |memory: Arc<Memory<ModelWord>>, occupied: Arc<UnsafeCell<()>>| {
                if keep(&memory.register, &memory.stamp, 0, 0) {
                    // Written by whoever holds the register: alone, or loom panics.
                    occupied.with_mut(|_| ());
                    release(&memory.register);
                }
            };
            let other = {
                let (memory, occupied) = (Arc::clone(&memory), Arc::clone(&occupied));
                thread::spawn(move || reader(memory, occupied))
            };
            reader(memory, occupied);
            other.join().unwrap();
        });
    }
}
