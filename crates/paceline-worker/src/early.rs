//! Early pushes: blocks that leave while the rest of their gradient is computed.
//!
//! The user's loop notes what it has written in [`WholeBlocks`]. The worker's own thread, which waits for that
//! loop anyway, sends blocks as they become whole ([`EarlyPush`]). The last block of a shard never leaves
//! early: no shard can hold a contribution whole before it is announced.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use paceline_core::Version;
use paceline_wire::FrameError;

use crate::outbox::Outbox;

/// Elements that are sent in one go: waking the sending thread for fewer costs more than it gains. Shards with
/// no more than these get nothing early. 1 MiB of `f32`.
pub(crate) const BUCKET_ELEMS: usize = 1 << 18;

/// A block that may be sent early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EarlyBlock {
    /// Its number in the layout.
    pub(crate) number: u32,
    /// Its elements of the flat vector.
    pub(crate) elements: Range<usize>,
}

/// The right to send blocks of one task's gradient before all of it is computed.
#[derive(Clone, Copy)]
pub(crate) struct EarlyPush<'a> {
    pub(crate) outbox: &'a Outbox,
    pub(crate) base: Version,
}

impl EarlyPush<'_> {
    /// The blocks that may be sent, in the order of their elements.
    pub(crate) fn blocks(&self) -> Arc<[EarlyBlock]> {
        self.outbox.early_blocks()
    }

    /// Sends a block, whose values are final. False once the task is over.
    pub(crate) fn send(&self, block: u32, values: &[f32]) -> Result<bool, FrameError> {
        self.outbox.send_early(self.base, block, values)
    }

    /// Takes back all blocks that were sent.
    pub(crate) fn withdraw(&self) -> Result<(), FrameError> {
        self.outbox.withdraw_early()
    }
}

/// The blocks of a micro-batch's gradient that are completely written and not sent yet.
#[derive(Debug, Default)]
pub(crate) struct WholeBlocks {
    blocks: Arc<[EarlyBlock]>,
    /// Elements of each block that are not written yet.
    missing: Vec<usize>,
    /// Whole blocks, in the order in which they became whole.
    whole: VecDeque<usize>,
    /// Elements of the whole blocks.
    elements: usize,
    withdrawn: bool,
}

impl WholeBlocks {
    /// For a micro-batch of whose gradient nothing is written yet.
    pub(crate) fn begin(&mut self, blocks: Arc<[EarlyBlock]>) {
        self.missing.clear();
        self.missing.extend(blocks.iter().map(|block| block.elements.len()));
        self.whole.clear();
        (self.blocks, self.elements, self.withdrawn) = (blocks, 0, false);
    }

    /// Notes that these elements have their final values. Returns whether there is now enough to send, and was
    /// not before.
    pub(crate) fn note(&mut self, written: Range<usize>) -> bool {
        let was_due = self.is_due();
        let first = self.blocks.partition_point(|block| block.elements.end <= written.start);
        for (index, EarlyBlock { elements, .. }) in self.blocks.iter().enumerate().skip(first) {
            if elements.start >= written.end {
                break;
            }
            let len = elements.end.min(written.end) - elements.start.max(written.start);
            let missing = &mut self.missing[index];
            let Some(left) = missing.checked_sub(len) else {
                // Written twice: the values may have left already.
                self.withdraw();
                return false;
            };
            *missing = left;
            if left == 0 {
                self.whole.push_back(index);
                self.elements += elements.len();
            }
        }
        !was_due && self.is_due()
    }

    /// Whether there is enough to send.
    pub(crate) fn is_due(&self) -> bool {
        self.elements >= BUCKET_ELEMS
    }

    /// Takes the next block to send.
    pub(crate) fn pop(&mut self) -> Option<EarlyBlock> {
        let block = self.blocks[self.whole.pop_front()?].clone();
        self.elements -= block.elements.len();
        Some(block)
    }

    /// The micro-batch is computed again from its start: no further block leaves early.
    pub(crate) fn withdraw(&mut self) {
        self.begin(Arc::default());
        self.withdrawn = true;
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blocks(lengths: &[usize]) -> Arc<[EarlyBlock]> {
        let mut at = 0;
        let block = |(number, &len): (u32, &usize)| {
            at += len;
            EarlyBlock { number, elements: at - len..at }
        };
        (0..).zip(lengths).map(block).collect()
    }

    fn popped(whole: &mut WholeBlocks) -> Vec<u32> {
        std::iter::from_fn(|| whole.pop()).map(|block| block.number).collect()
    }

    #[test]
    fn blocks_leave_in_the_order_in_which_they_become_whole() {
        let mut whole = WholeBlocks::default();
        whole.begin(blocks(&[4, 4, 4]));
        for written in [6..12, 0..3, 3..6] {
            whole.note(written);
        }
        assert_eq!(popped(&mut whole), [2, 0, 1]);
    }

    #[test]
    fn the_sender_is_woken_once_per_bucket() {
        let mut whole = WholeBlocks::default();
        let half = BUCKET_ELEMS / 2;
        whole.begin(blocks(&[half; 6]));
        let mut write = |block: usize| whole.note(block * half..(block + 1) * half);
        assert_eq!([0, 1, 2].map(&mut write), [false, true, false]);
        assert_eq!(popped(&mut whole), [0, 1, 2]);
        assert!(whole.note(3 * half..6 * half));
    }

    #[test]
    fn nothing_leaves_early_after_a_second_start() {
        let mut whole = WholeBlocks::default();
        whole.begin(blocks(&[4, 4]));
        whole.note(0..4);
        whole.withdraw();
        whole.note(0..8);
        assert!(whole.is_withdrawn() && popped(&mut whole).is_empty());
        whole.begin(blocks(&[4]));
        whole.note(0..4);
        assert!(!whole.is_withdrawn() && popped(&mut whole) == [0]);
    }

    proptest! {
        /// Blocks need not tile the vector: those of shards that share memory are missing.
        #[test]
        fn each_block_leaves_once_and_not_before_its_last_element(
            lengths in prop::collection::vec(1..9usize, 1..9),
            gap in 0..9usize,
            tensors in prop::collection::vec(1..9usize, 1..9),
            seed in any::<u64>(),
        ) {
            let mut all = blocks(&lengths).to_vec();
            if gap < all.len() {
                all.remove(gap);
            }
            let total: usize = lengths.iter().sum();
            let bounds: Vec<usize> = tensors.iter().scan(0, |at, len| {
                *at += len;
                Some((*at).min(total))
            }).chain([total]).collect();
            let starts = [0].into_iter().chain(bounds.iter().copied());
            let mut writes: Vec<Range<usize>> = starts.zip(bounds.iter().copied())
                .map(|(start, end)| start..end).collect();
            writes.sort_by_key(|write| (write.start as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut whole = WholeBlocks::default();
            whole.begin(all.clone().into());
            let (mut written, mut left) = (vec![false; total], Vec::new());
            for write in writes {
                written[write.clone()].fill(true);
                whole.note(write);
                for block in std::iter::from_fn(|| whole.pop()) {
                    prop_assert!(written[block.elements.clone()].iter().all(|written| *written));
                    left.push(block);
                }
            }
            left.sort_by_key(|block| block.number);
            prop_assert_eq!(left, all);
        }
    }
}
