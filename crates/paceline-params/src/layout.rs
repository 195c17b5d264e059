//! The layout of parameters: tensors, blocks and shards over one flat vector.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::TensorSpec;

/// Elements in a block unless the user says otherwise: 1 MiB of `f32`.
pub const DEFAULT_BLOCK_ELEMS: usize = 262_144;

/// The key that safetensors headers reserve.
const RESERVED_NAME: &str = "__metadata__";

/// An ordered list of tensors as one flat vector, cut into blocks that are spread over shards.
///
/// Laws:
/// - Tensors tile `0..total()` in their order; blocks tile it too. The vector is cut into blocks at
///   every multiple of [`block_elems`](Self::block_elems), and where the parameter group changes,
///   so that all elements of a block are of one group.
/// - Shards tile the blocks: each owns a contiguous run, and two shards differ by at most
///   `block_elems` elements. Groups do not change the shards' elements.
/// - Every shard owns at least one block when `total() >= shards()`.
/// - The layout is a function of tensors, block size and shard count alone, so server and worker
///   agree on it by exchanging those three.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "LayoutParts", into = "LayoutParts")]
pub struct Layout {
    tensors: Vec<TensorSpec>,
    /// The start of each tensor, then the total.
    bounds: Vec<usize>,
    block_elems: usize,
    blocks: u32,
    shards: u32,
    /// Where each run of tensors of one group starts, and the group.
    runs: Vec<(usize, u32)>,
    /// The blocks that start between two multiples of `block_elems`, and where.
    cuts: Vec<(u32, usize)>,
}

impl Layout {
    /// Lays `tensors` out in blocks of at most `block_elems` elements over `shards` shards.
    ///
    /// Blocks are smaller than `block_elems` if otherwise a shard would have none.
    pub fn new(
        tensors: Vec<TensorSpec>,
        block_elems: usize,
        shards: u32,
    ) -> Result<Self, LayoutError> {
        if shards == 0 {
            return Err(LayoutError::NoShards);
        }
        if block_elems == 0 {
            return Err(LayoutError::NoBlockSize);
        }
        check_names(&tensors)?;
        let bounds = bounds(&tensors)?;
        let total = *bounds.last().expect("bounds start with zero");
        if total == 0 {
            return Err(LayoutError::NoTensors);
        }
        if total < shards as usize {
            return Err(LayoutError::TooManyShards { shards, elements: total });
        }
        let block_elems = block_elems.min(even_block(total, shards, block_elems));
        let runs = runs(&tensors, &bounds);
        let inside = || runs.iter().map(|run| run.0).filter(|start| start % block_elems != 0);
        let blocks = total.div_ceil(block_elems).saturating_add(inside().count());
        let blocks = u32::try_from(blocks)
            .map_err(|_| LayoutError::TooManyBlocks { blocks, block_elems })?;
        let cut = |(index, start)| ((start / block_elems + 1 + index) as u32, start);
        let cuts = inside().enumerate().map(cut).collect();
        Ok(Layout { tensors, bounds, block_elems, blocks, shards, runs, cuts })
    }

    /// The same tensors and block size over another number of shards.
    pub fn with_shards(&self, shards: u32) -> Result<Self, LayoutError> {
        Self::new(self.tensors.clone(), self.block_elems, shards)
    }

    /// Elements in the flat vector.
    pub fn total(&self) -> usize {
        *self.bounds.last().expect("bounds start with zero")
    }

    /// The tensors, in the order in which they make up the flat vector.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Each tensor with its range of elements in the flat vector.
    pub fn tensor_ranges(&self) -> impl Iterator<Item = (&TensorSpec, Range<usize>)> {
        self.tensors.iter().zip(self.bounds.windows(2).map(|pair| pair[0]..pair[1]))
    }

    /// The most elements of a block.
    pub fn block_elems(&self) -> usize {
        self.block_elems
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The number of shards.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The elements of block `block`.
    ///
    /// # Panics
    /// If there is no such block; an index from the wire is checked against
    /// [`blocks`](Self::blocks) first.
    pub fn block_range(&self, block: u32) -> Range<usize> {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        self.block_start(block)..self.block_start(block + 1)
    }

    /// The parameter group of block `block`.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn group(&self, block: u32) -> u32 {
        let start = self.block_range(block).start;
        self.runs[self.runs.partition_point(|run| run.0 <= start) - 1].1
    }

    /// The number of parameter groups: one more than the largest of the tensors' groups.
    pub fn groups(&self) -> usize {
        self.runs.iter().map(|&(_, group)| group as usize + 1).max().expect("there is a tensor")
    }

    /// The number of elements before the first tensor of another group than the first one's.
    pub fn first_group_elems(&self) -> usize {
        self.runs.get(1).map_or(self.total(), |&(start, _)| start)
    }

    /// The blocks of shard `shard`; empty only where there are more shards than elements.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn shard_blocks(&self, shard: u32) -> Range<u32> {
        assert!(shard < self.shards, "shard {shard} of {}", self.shards);
        self.first_block(shard)..self.first_block(shard + 1)
    }

    /// The elements of shard `shard`.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn shard_range(&self, shard: u32) -> Range<usize> {
        let blocks = self.shard_blocks(shard);
        self.block_start(blocks.start)..self.block_start(blocks.end)
    }

    /// The shard that owns block `block`.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn shard_of(&self, block: u32) -> u32 {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        let cell = (self.block_start(block) / self.block_elems) as u64;
        let (cells, shards) = (self.cells(), u64::from(self.shards));
        // The inverse of `first_block`: the least s with floor((s + 1) * cells / shards) > cell.
        u32::try_from(((cell + 1) * shards).div_ceil(cells) - 1).expect("less than shards")
    }

    /// Pieces of `block_elems` elements, the last one possibly shorter. Shards own whole ones.
    fn cells(&self) -> u64 {
        u64::from(self.blocks) - self.cuts.len() as u64
    }

    /// Rounding down gives the longer runs to the later shards, so the short last cell is in one
    /// of those and the imbalance stays within one cell.
    fn first_block(&self, shard: u32) -> u32 {
        let cell = u64::from(shard) * self.cells() / u64::from(self.shards);
        let start = cell as usize * self.block_elems;
        let cuts = self.cuts.partition_point(|&(_, at)| at < start) as u64;
        u32::try_from(cell + cuts).expect("at most the number of blocks")
    }

    /// Where block `block` starts, or the end of the vector after the last block.
    fn block_start(&self, block: u32) -> usize {
        let before = self.cuts.partition_point(|cut| cut.0 <= block);
        match before.checked_sub(1).map(|last| self.cuts[last]) {
            Some((cut, start)) if cut == block => start,
            _ => ((block as usize - before) * self.block_elems).min(self.total()),
        }
    }
}

/// The parameters of a [`Layout`], as server and worker exchange them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutParts {
    tensors: Vec<TensorSpec>,
    block_elems: usize,
    shards: u32,
}

impl From<Layout> for LayoutParts {
    fn from(layout: Layout) -> Self {
        LayoutParts {
            tensors: layout.tensors,
            block_elems: layout.block_elems,
            shards: layout.shards,
        }
    }
}

impl TryFrom<LayoutParts> for Layout {
    type Error = LayoutError;

    fn try_from(parts: LayoutParts) -> Result<Self, LayoutError> {
        Layout::new(parts.tensors, parts.block_elems, parts.shards)
    }
}

/// Why tensors cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The model has no tensors.
    #[error("the model has no tensors")]
    NoTensors,
    /// Zero shards were asked for.
    #[error("the number of shards is zero")]
    NoShards,
    /// Blocks of zero elements were asked for.
    #[error("the block size is zero")]
    NoBlockSize,
    /// A tensor has an empty name.
    #[error("tensor {index} has no name")]
    NoName {
        /// Its index in the list, from zero.
        index: usize,
    },
    /// A tensor has a name that checkpoints cannot carry.
    #[error("tensor name `{RESERVED_NAME}` is reserved by the safetensors format")]
    ReservedName,
    /// Two tensors share a name.
    #[error("two tensors are named `{name}`")]
    DuplicateName {
        /// The shared name.
        name: String,
    },
    /// A tensor has no elements.
    #[error("tensor `{}` has no elements: shape {:?}", .0.name, .0.shape)]
    ZeroSize(TensorSpec),
    /// Element counts pass what memory can address.
    #[error("the model is too large to address, at tensor `{}` of shape {:?}", .0.name, .0.shape)]
    TooLarge(TensorSpec),
    /// There are fewer parameters than shards.
    #[error("{shards} shards are more than the model's {elements} parameters")]
    TooManyShards {
        /// Shards.
        shards: u32,
        /// Parameters.
        elements: usize,
    },
    /// More blocks than a block index can name.
    #[error("{blocks} blocks of {block_elems} elements are more than an index can name")]
    TooManyBlocks {
        /// Blocks.
        blocks: usize,
        /// Elements per block.
        block_elems: usize,
    },
}

fn check_names(tensors: &[TensorSpec]) -> Result<(), LayoutError> {
    let mut seen = BTreeSet::new();
    for (index, tensor) in tensors.iter().enumerate() {
        match tensor.name.as_str() {
            "" => return Err(LayoutError::NoName { index }),
            RESERVED_NAME => return Err(LayoutError::ReservedName),
            name if !seen.insert(name) => {
                return Err(LayoutError::DuplicateName { name: name.to_owned() });
            }
            _ => {}
        }
    }
    Ok(())
}

fn bounds(tensors: &[TensorSpec]) -> Result<Vec<usize>, LayoutError> {
    const MAX_ELEMS: usize = isize::MAX as usize / size_of::<f32>();
    let mut bounds = vec![0];
    let mut total = 0usize;
    for tensor in tensors {
        if tensor.is_empty() {
            return Err(LayoutError::ZeroSize(tensor.clone()));
        }
        total = total.saturating_add(tensor.len());
        if total > MAX_ELEMS {
            return Err(LayoutError::TooLarge(tensor.clone()));
        }
        bounds.push(total);
    }
    Ok(bounds)
}

/// Where each run of tensors of one group starts, and the group.
fn runs(tensors: &[TensorSpec], bounds: &[usize]) -> Vec<(usize, u32)> {
    let mut runs: Vec<(usize, u32)> =
        bounds.iter().zip(tensors).map(|(&start, tensor)| (start, tensor.group)).collect();
    runs.dedup_by_key(|run| run.1);
    runs
}

/// Elements per page of memory.
const PAGE: usize = 4096 / size_of::<f32>();

/// With fewer blocks than this per shard, blocks are made smaller so that all shards have equally
/// many: otherwise one block would be a large part of a shard's bytes.
const FEW: usize = 16;

/// The largest block of up to about `wanted` elements that gives every shard at least one block, and
/// equally many if there are few. It is an even share rounded up, or down if rounding up would leave
/// nothing for the last shard (5 elements over 4 shards). A large block is rounded to whole pages if
/// that does not change the number of blocks, so that shards can be adjacent in shared memory.
fn even_block(total: usize, shards: u32, wanted: usize) -> usize {
    let shards = shards as usize;
    let each = (total / shards).div_ceil(wanted).max(1);
    if each >= FEW {
        return wanted;
    }
    let even = total.div_ceil(shards * each);
    let whole = even.next_multiple_of(PAGE);
    let as_many = total.div_ceil(whole) == total.div_ceil(even);
    let up = if even >= 16 * PAGE && as_many { whole } else { even };
    if total.div_ceil(up) < shards { total / shards } else { up }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector(len: usize) -> Vec<TensorSpec> {
        vec![TensorSpec::new("w", [len])]
    }

    #[track_caller]
    fn check_refused(tensors: Vec<TensorSpec>, block_elems: usize, shards: u32, message: &str) {
        let error = Layout::new(tensors, block_elems, shards).unwrap_err();
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn impossible_layouts_are_refused_by_name() {
        let t = |name: &str, shape: &[usize]| TensorSpec::new(name, shape);
        check_refused(vec![], 4, 1, "the model has no tensors");
        check_refused(vector(4), 4, 0, "the number of shards is zero");
        check_refused(vector(4), 0, 1, "the block size is zero");
        check_refused(vector(3), 4, 5, "5 shards are more than the model's 3 parameters");
        check_refused(vec![t("a", &[1]), t("", &[2])], 4, 1, "tensor 1 has no name");
        check_refused(vec![t("a", &[2]), t("a", &[3])], 4, 1, "two tensors are named `a`");
        check_refused(
            vec![t("a", &[2]), t("b", &[3, 0])],
            4,
            1,
            "tensor `b` has no elements: shape [3, 0]",
        );
        check_refused(
            vec![t("__metadata__", &[2])],
            4,
            1,
            "tensor name `__metadata__` is reserved by the safetensors format",
        );
        check_refused(
            vec![t("a", &[2]), t("b", &[usize::MAX, 2])],
            4,
            1,
            "the model is too large to address, at tensor `b` of shape [18446744073709551615, 2]",
        );
        check_refused(
            vector(1 << 40),
            1,
            1,
            "1099511627776 blocks of 1 elements are more than an index can name",
        );
    }

    #[test]
    fn a_large_model_keeps_the_block_size_asked_for() {
        let layout = Layout::new(vector(25_000_000), DEFAULT_BLOCK_ELEMS, 4).unwrap();
        assert_eq!(layout.block_elems(), DEFAULT_BLOCK_ELEMS);
        assert_eq!(layout.blocks(), 96);
        assert_eq!(layout.shard_blocks(1), 24..48);
        assert_eq!(layout.block_range(95), 24_903_680..25_000_000);
    }

    #[test]
    fn a_small_model_is_cut_finer_so_that_every_shard_has_work() {
        let layout = Layout::new(vector(5), DEFAULT_BLOCK_ELEMS, 4).unwrap();
        let lens: Vec<_> = (0..4).map(|shard| layout.shard_range(shard).len()).collect();
        assert_eq!(lens, [1, 1, 1, 2]);
        let even = Layout::new(vector(1_000_001), DEFAULT_BLOCK_ELEMS * 4, 2).unwrap();
        assert_eq!((even.block_elems(), even.blocks()), (489 * PAGE, 2));
    }

    #[test]
    fn few_blocks_are_made_even() {
        let layout = Layout::new(vector(1_000_000), DEFAULT_BLOCK_ELEMS, 3).unwrap();
        let lens: Vec<_> = (0..3).map(|shard| layout.shard_range(shard).len()).collect();
        assert_eq!(lens, [326 * PAGE, 326 * PAGE, 1_000_000 - 652 * PAGE]);
        assert_eq!(layout.blocks(), 6);
    }

    #[test]
    fn tensors_lie_end_to_end() {
        let tensors = vec![TensorSpec::new("w", [2, 3]), TensorSpec::new("b", [])];
        let layout = Layout::new(tensors, 4, 1).unwrap();
        let ranges: Vec<_> =
            layout.tensor_ranges().map(|(spec, range)| (spec.name.as_str(), range)).collect();
        assert_eq!(ranges, [("w", 0..6), ("b", 6..7)]);
    }

    #[test]
    fn a_layout_from_outside_is_checked() {
        let text = r#"{"tensors":[{"name":"w","shape":[4]}],"block_elems":2,"shards":0}"#;
        let error = serde_json::from_str::<Layout>(text).unwrap_err();
        assert!(error.to_string().contains("the number of shards is zero"), "{error}");
    }

    #[test]
    fn a_block_ends_where_the_group_changes() {
        let t = |name: &str, len: usize, group| TensorSpec::new(name, [len]).in_group(group);
        let tensors = vec![t("a", 3, 0), t("b", 2, 2), t("c", 1, 2), t("d", 3, 0), t("e", 7, 1)];
        let layout = Layout::new(tensors, 4, 2).unwrap();
        let blocks = (0..layout.blocks()).map(|b| (layout.block_range(b), layout.group(b)));
        let expected =
            [(0..3, 0), (3..4, 2), (4..6, 2), (6..8, 0), (8..9, 0), (9..12, 1), (12..16, 1)];
        assert_eq!(blocks.collect::<Vec<_>>(), expected);
        assert_eq!((layout.shard_blocks(0), layout.shard_range(0)), (0..4, 0..8));
        assert_eq!(layout.groups(), 3);
        assert_eq!(layout.first_group_elems(), layout.block_range(0).end);
    }

    prop_compose! {
        fn any_layout()(
            lens in prop::collection::vec((1usize..2000, 0u32..3), 1..12),
            block_elems in 1usize..700,
            shards in 1u32..40,
        ) -> Layout {
            let tensors = lens.iter().enumerate().map(|(i, &(len, group))| {
                TensorSpec::new(format!("t{i}"), [len]).in_group(group)
            });
            let shards = shards.min(lens.iter().map(|&(len, _)| len as u32).sum());
            Layout::new(tensors.collect(), block_elems, shards).unwrap()
        }
    }

    proptest! {
        #[test]
        fn blocks_tile_the_vector(layout in any_layout()) {
            let mut next = 0;
            for block in 0..layout.blocks() {
                let range = layout.block_range(block);
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty() && range.len() <= layout.block_elems());
                next = range.end;
            }
            prop_assert_eq!(next, layout.total());
        }

        #[test]
        fn no_block_has_elements_of_two_groups(layout in any_layout()) {
            let tensors: Vec<_> = layout.tensor_ranges().collect();
            for block in 0..layout.blocks() {
                let range = layout.block_range(block);
                let inside = tensors.iter().filter(|(_, tensor)| {
                    tensor.start < range.end && range.start < tensor.end
                });
                for (tensor, _) in inside {
                    prop_assert_eq!(tensor.group, layout.group(block));
                }
            }
        }

        #[test]
        fn groups_leave_the_elements_of_shards_as_they_are(layout in any_layout()) {
            let tensors = layout.tensors().iter().cloned().map(|tensor| tensor.in_group(0));
            let plain =
                Layout::new(tensors.collect(), layout.block_elems(), layout.shards()).unwrap();
            for shard in 0..layout.shards() {
                prop_assert_eq!(layout.shard_range(shard), plain.shard_range(shard));
            }
        }

        #[test]
        fn shards_tile_the_blocks(layout in any_layout()) {
            let (mut next_block, mut next_elem) = (0, 0);
            for shard in 0..layout.shards() {
                let (blocks, elems) = (layout.shard_blocks(shard), layout.shard_range(shard));
                prop_assert_eq!(blocks.start, next_block);
                prop_assert_eq!(elems.start, next_elem);
                for block in blocks.clone() {
                    prop_assert_eq!(layout.shard_of(block), shard);
                }
                let sum: usize = blocks.clone().map(|block| layout.block_range(block).len()).sum();
                prop_assert_eq!(elems.len(), sum);
                (next_block, next_elem) = (blocks.end, elems.end);
            }
            prop_assert_eq!(next_block, layout.blocks());
            prop_assert_eq!(next_elem, layout.total());
        }

        #[test]
        fn shards_differ_by_at_most_one_block(layout in any_layout()) {
            let lens = || (0..layout.shards()).map(|shard| layout.shard_range(shard).len());
            let (least, most) = (lens().min().unwrap(), lens().max().unwrap());
            prop_assert!(most - least <= layout.block_elems());
            prop_assert!(least > 0);
        }

        #[test]
        fn a_layout_survives_the_wire(layout in any_layout()) {
            let text = serde_json::to_string(&layout).unwrap();
            prop_assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout);
        }
    }
}
