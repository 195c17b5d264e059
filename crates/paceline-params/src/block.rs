//! A block's values and optimizer state, readable while they are being updated.

use std::sync::Arc;

use crate::{Half, OptimizerSpec, Spares, Update, widen};

/// Elements updated at a time. A buffer that is being replaced is copied over in steps of this
/// size just before the kernel runs over them, so the copy stays in the cache (at most four
/// buffers of 8 KiB) and memory is passed over once, shared or not.
const STEP: usize = 2048;

/// The values of one block and the state that its optimizer keeps beside them.
///
/// A snapshot is a reference to the values as they are; it never changes and never delays an
/// update. An update writes in place unless a snapshot is held, else into another buffer, so a
/// straggler that still reads the old version or a checkpoint that is being written sees the block
/// whole.
#[derive(Debug, Clone)]
pub struct Block {
    values: Arc<Vec<f32>>,
    slots: Vec<Arc<Vec<f32>>>,
}

impl Block {
    /// A block at its first version, with all optimizer state zero.
    pub fn new(values: Vec<f32>, optimizer: &OptimizerSpec) -> Self {
        let slots = optimizer.slot_names().iter().map(|_| vec![0.0; values.len()]).collect();
        Self::restore(values, slots)
    }

    /// A block as it was, for instance in a checkpoint.
    ///
    /// # Panics
    /// If a slot and the values differ in length.
    pub fn restore(values: Vec<f32>, slots: Vec<Vec<f32>>) -> Self {
        for slot in &slots {
            assert_eq!(slot.len(), values.len(), "a slot and the values differ in length");
        }
        Block { values: Arc::new(values), slots: slots.into_iter().map(Arc::new).collect() }
    }

    /// The current values.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The current values, to keep.
    pub fn snapshot(&self) -> Arc<Vec<f32>> {
        Arc::clone(&self.values)
    }

    /// The optimizer's state, in the order of [`OptimizerSpec::slot_names`], to keep.
    pub fn slots(&self) -> &[Arc<Vec<f32>>] {
        &self.slots
    }

    /// Applies one update; the gradient is that of this block alone.
    ///
    /// # Panics
    /// If the gradient differs in length, or the block was made for another optimizer.
    pub fn apply(
        &mut self,
        optimizer: &OptimizerSpec,
        update: Update,
        grad_sum: &[f32],
        spares: &Spares,
    ) {
        // A panic must leave the block unchanged.
        assert_eq!(grad_sum.len(), self.values.len(), "gradient and block differ in length");
        assert_eq!(
            self.slots.len(),
            optimizer.slot_names().len(),
            "the block was not made for this optimizer"
        );
        let mut values = NextVersion::take(&mut self.values, spares);
        let mut slots: Vec<_> =
            self.slots.iter_mut().map(|slot| NextVersion::take(slot, spares)).collect();
        for (i, grad_sum) in grad_sum.chunks(STEP).enumerate() {
            let (start, len) = (i * STEP, grad_sum.len());
            let mut slots: Vec<_> = slots.iter_mut().map(|slot| slot.open(start, len)).collect();
            let values = match optimizer {
                // The mean replaces the values, so the old ones need not be copied.
                OptimizerSpec::Mean => &mut values.new[start..start + len],
                _ => values.open(start, len),
            };
            optimizer.apply(update, grad_sum, values, &mut slots);
        }
        self.values = values.publish(spares);
        for (slot, next) in self.slots.iter_mut().zip(slots) {
            *slot = next.publish(spares);
        }
    }

    /// Replaces the values by those of 16-bit floats.
    ///
    /// # Panics
    /// If the bits differ in length.
    pub fn widen(&mut self, half: Half, bits: &[u16]) {
        let values: &mut Vec<f32> = Arc::make_mut(&mut self.values);
        widen(half, bits, values);
    }
}

/// The next version of a buffer while an update writes it.
struct NextVersion {
    /// The current version, if somebody still reads it.
    old: Option<Arc<Vec<f32>>>,
    new: Vec<f32>,
}

impl NextVersion {
    fn take(buffer: &mut Arc<Vec<f32>>, spares: &Spares) -> Self {
        match Arc::try_unwrap(std::mem::take(buffer)) {
            Ok(new) => NextVersion { old: None, new },
            Err(old) => NextVersion { new: spares.take(old.len()), old: Some(old) },
        }
    }

    /// The elements from `start`, set to the current values and writable.
    fn open(&mut self, start: usize, len: usize) -> &mut [f32] {
        let part = &mut self.new[start..start + len];
        if let Some(old) = &self.old {
            part.copy_from_slice(&old[start..start + len]);
        }
        part
    }

    fn publish(self, spares: &Spares) -> Arc<Vec<f32>> {
        if let Some(old) = self.old {
            spares.retire(old);
        }
        Arc::new(self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: Update = Update { step: 1, lr: 0.5, scale: 1.0 };

    fn ramp(len: usize) -> Vec<f32> {
        (0..len).map(|i| i as f32 * 0.01 - 3.0).collect()
    }

    /// Values and slots of a block after three updates, with the snapshots of `hold` held.
    fn trained(
        optimizer: &OptimizerSpec,
        len: usize,
        hold: fn(&Block) -> Vec<Arc<Vec<f32>>>,
    ) -> Vec<Vec<f32>> {
        let spares = Spares::new(2);
        let mut block = Block::new(ramp(len), optimizer);
        let grads: Vec<f32> = ramp(len).iter().map(|x| x.sin()).collect();
        let mut held = Vec::new();
        for step in 1..=3 {
            held = hold(&block);
            block.apply(optimizer, Update { step, ..UPDATE }, &grads, &spares);
        }
        drop(held);
        let slots = block.slots().iter().map(|slot| slot.to_vec());
        std::iter::once(block.values().to_vec()).chain(slots).collect()
    }

    #[test]
    fn shared_or_not_an_update_gives_the_same_bits() {
        for optimizer in ["sgd", "momentum", "momentum:0.5,nesterov", "adam", "adamw", "mean"] {
            let optimizer: OptimizerSpec = optimizer.parse().unwrap();
            for len in [1, STEP - 1, STEP, 3 * STEP + 7] {
                let alone = trained(&optimizer, len, |_| vec![]);
                let read = trained(&optimizer, len, |block| vec![block.snapshot()]);
                let checkpointed = trained(&optimizer, len, |block| block.slots().to_vec());
                assert_eq!(alone, read, "{optimizer} over {len}");
                assert_eq!(alone, checkpointed, "{optimizer} over {len}");
            }
        }
    }

    #[test]
    fn a_snapshot_never_changes() {
        let optimizer = OptimizerSpec::ADAMW;
        let mut block = Block::new(ramp(5000), &optimizer);
        let (values, slots) = (block.snapshot(), block.slots().to_vec());
        block.apply(&optimizer, UPDATE, &vec![1.0; 5000], &Spares::new(0));
        assert_eq!(*values, ramp(5000));
        assert!(slots.iter().all(|slot| slot.iter().all(|&x| x == 0.0)));
        assert_ne!(block.values(), ramp(5000));
    }

    #[test]
    fn an_unread_block_is_updated_in_place() {
        let mut block = Block::new(ramp(100), &OptimizerSpec::SGD);
        let address = block.values().as_ptr();
        block.apply(&OptimizerSpec::SGD, UPDATE, &[1.0; 100], &Spares::new(1));
        assert_eq!(block.values().as_ptr(), address);
    }

    #[test]
    fn a_slow_reader_costs_two_buffers_and_no_more() {
        let spares = Spares::new(4);
        let mut block = Block::new(ramp(100), &OptimizerSpec::SGD);
        let mut addresses = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let reader = block.snapshot();
            block.apply(&OptimizerSpec::SGD, UPDATE, &[1.0; 100], &spares);
            addresses.insert(block.values().as_ptr());
            drop(reader);
        }
        assert_eq!(addresses.len(), 2);
    }

    #[test]
    #[should_panic(expected = "not made for this optimizer")]
    fn another_optimizer_is_refused() {
        let mut block = Block::new(ramp(4), &OptimizerSpec::SGD);
        block.apply(&OptimizerSpec::ADAMW, UPDATE, &[0.0; 4], &Spares::new(0));
    }
}
