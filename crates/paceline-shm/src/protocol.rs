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

/// An atomic word. The tests implement it by a model of memory that tries every order.
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
    use std::{
        cell::RefCell,
        collections::HashSet,
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    };

    use super::*;

    const STAMP: usize = 0;
    const REGISTER: usize = 1;
    const VALUES: [usize; 2] = [2, 3];
    const WORDS: usize = 4;

    /// One access to the model's memory.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Access {
        Load(usize),
        Store(usize, u64, Ordering),
        Occupy(usize, u64),
        Fence,
    }

    /// The accesses of one thread so far, by their results. A thread is run from its beginning for every
    /// step: it gets these results again, and the access after them unwinds out of it.
    #[derive(Default)]
    struct Replay {
        results: Vec<u64>,
        at: usize,
    }

    thread_local! {
        static REPLAY: RefCell<Replay> = RefCell::default();
    }

    fn access(access: Access) -> u64 {
        let replayed = REPLAY.with_borrow_mut(|replay| {
            replay.at += 1;
            replay.results.get(replay.at - 1).copied()
        });
        replayed.unwrap_or_else(|| resume_unwind(Box::new(access)))
    }

    /// A word of the model's memory.
    struct ModelWord(usize);

    impl Word for ModelWord {
        fn load(&self, _: Ordering) -> u64 {
            access(Access::Load(self.0))
        }

        fn store(&self, value: u64, order: Ordering) {
            access(Access::Store(self.0, value, order));
        }

        fn occupy(&self, value: u64) -> bool {
            access(Access::Occupy(self.0, value)) == 1
        }

        fn fence() {
            access(Access::Fence);
        }
    }

    /// As [`ModelWord`], with fences that do nothing.
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

    /// Memory, and each thread's stores that the other does not see yet. Stores to different words become
    /// visible in any order, but a release store only after all before it. Loads are not reordered.
    #[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
    struct State {
        memory: [u64; WORDS],
        buffers: [Vec<(usize, u64, bool)>; 2],
        results: [Vec<u64>; 2],
    }

    impl State {
        /// The state after one thread's next access; `None` where that must wait for its stores.
        fn step(&self, thread: usize, access: Access) -> Option<State> {
            let mut next = self.clone();
            let buffer = &mut next.buffers[thread];
            let result = match access {
                Access::Load(word) => {
                    let own = buffer.iter().rev().find(|(to, ..)| *to == word);
                    own.map_or(next.memory[word], |(_, value, _)| *value)
                }
                Access::Store(word, value, order) => {
                    buffer.push((word, value, order == Ordering::Release));
                    0
                }
                Access::Occupy(..) | Access::Fence if !buffer.is_empty() => return None,
                Access::Occupy(word, value) => {
                    let free = next.memory[word] == NONE;
                    if free {
                        next.memory[word] = value;
                    }
                    u64::from(free)
                }
                Access::Fence => 0,
            };
            next.results[thread].push(result);
            Some(next)
        }

        /// The states after one of a thread's stores becomes visible.
        fn flushes(&self, thread: usize) -> impl Iterator<Item = State> + '_ {
            let buffer = &self.buffers[thread];
            let may_go = move |at: usize| {
                let (word, _, release) = buffer[at];
                !buffer[..at].iter().any(|(before, ..)| release || *before == word)
            };
            (0..buffer.len()).filter(move |&at| may_go(at)).map(move |at| {
                let mut next = self.clone();
                let (word, value, _) = next.buffers[thread].remove(at);
                next.memory[word] = value;
                next
            })
        }
    }

    /// Runs a thread up to the access after `results`; `None` if it ends before.
    fn next_access(thread: &dyn Fn(), results: &[u64]) -> Option<Access> {
        REPLAY.set(Replay { results: results.to_vec(), at: 0 });
        let unwound = catch_unwind(AssertUnwindSafe(thread)).err()?;
        match unwound.downcast::<Access>() {
            Ok(access) => Some(*access),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Tries every order of the threads' accesses and of the moments at which stores become visible, from
    /// a segment that holds version 0, all of whose values are 0; returns the states that it came
    /// through. Panics if a thread does.
    fn explore(threads: [&dyn Fn(); 2]) -> HashSet<State> {
        let mut start = State::default();
        start.memory[STAMP] = word_for(0);
        let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
        while let Some(state) = open.pop() {
            for (index, thread) in threads.iter().enumerate() {
                let access = next_access(thread, &state.results[index]);
                let step = access.and_then(|access| state.step(index, access));
                for next in step.into_iter().chain(state.flushes(index)) {
                    if seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
        }
        seen
    }

    /// Writes versions 1 and 2 where no reader keeps the segment.
    fn publisher<W: Word>(word: impl Fn(usize) -> W) {
        for version in 1..3 {
            withdraw(&word(STAMP));
            if keeps(&word(REGISTER), 0) {
                return;
            }
            VALUES.iter().for_each(|&value| word(value).store(version, Ordering::Relaxed));
            publish(&word(STAMP), version);
        }
    }

    /// Keeps the versions 0 and 1 in turn, and reads them.
    fn reader<W: Word>(word: impl Fn(usize) -> W) {
        for version in 0..2 {
            if keep(&word(REGISTER), &word(STAMP), 0, version) {
                let values = VALUES.map(|value| word(value).load(Ordering::Relaxed));
                assert_eq!(values, [version; 2], "a version was written while it was kept");
                release(&word(REGISTER));
            }
        }
    }

    #[test]
    fn a_segment_is_never_written_while_it_is_kept_in_any_order() {
        let states = explore([&|| publisher(ModelWord), &|| reader(ModelWord)]);
        // Both versions are written in some order, and both are kept and read in some order.
        for thread in 0..2 {
            assert!(states.iter().any(|state| state.results[thread].len() == 12));
        }
    }

    #[test]
    #[should_panic(expected = "a version was written while it was kept")]
    fn without_fences_the_model_finds_an_order_that_breaks_it() {
        let word = |index| Unfenced(ModelWord(index));
        explore([&|| publisher(word), &|| reader(word)]);
    }

    /// Occupies the register from two threads at once.
    #[test]
    fn two_readers_never_keep_by_one_register() {
        let thread = || {
            if keep(&ModelWord(REGISTER), &ModelWord(STAMP), 0, 0) {
                let before = ModelWord(VALUES[0]).load(Ordering::Relaxed);
                assert_eq!(before, 0, "the other reader keeps it, too");
                ModelWord(VALUES[0]).store(1, Ordering::Relaxed);
                ModelWord(VALUES[0]).store(0, Ordering::Relaxed);
                release(&ModelWord(REGISTER));
            }
        };
        explore([&thread, &thread]);
    }
}
