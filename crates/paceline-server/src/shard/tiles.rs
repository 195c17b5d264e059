//! Folding of contributions from where they lie, including memory of other processes.

use std::ops::Range;

use paceline_params::{all_finite, fold};
use paceline_shm::View;

/// Values copied from a source at a time: they stay in the cache until they are folded.
const TILE: usize = 16_384;

/// Contributions folded in one pass over the sums.
pub(crate) const FUSE: usize = 4;

/// One block of a contribution.
pub(crate) enum Source<'a> {
    Values(&'a [f32]),
    /// In its worker's memory from `at` on; `share` of its weight counts.
    Mapped {
        view: &'a View,
        at: usize,
        share: f32,
    },
}

/// Buffers for one tile of each source.
#[derive(Debug, Default)]
pub(crate) struct Tiles {
    hot: Vec<f32>,
}

impl Tiles {
    /// Adds the sources to `sum` as [`fold`] does, bit for bit. Memory that another process may change is
    /// checked in the copy that is folded: tiles that are not finite count nothing. Returns, for each of
    /// these, the source, the tile, and the index of the first value that is not finite.
    pub(crate) fn fold(
        &mut self,
        sum: &mut [f32],
        first: bool,
        sources: &[Source<'_>],
    ) -> Vec<(usize, Range<usize>, usize)> {
        self.hot.resize(FUSE * TILE, 0.0);
        let mut spoilt = Vec::new();
        for start in (0..sum.len()).step_by(TILE) {
            let end = (start + TILE).min(sum.len());
            let sum = &mut sum[start..end];
            for (i, group) in sources.chunks(FUSE).enumerate() {
                let first = first && i == 0;
                for (source, hot) in group.iter().zip(self.hot.chunks_mut(TILE)) {
                    source.copy(start, &mut hot[..end - start]);
                }
                // Values from a socket are already checked. A sum that includes mapped sources is finite only
                // if all of them are. They are checked one by one if it is not, or if the sum could not be
                // redone.
                let checked = !group.iter().any(Source::is_mapped);
                if first || checked {
                    self.add(sum, first, start, group);
                }
                if checked || first && all_finite(sum).is_ok() {
                    continue;
                }
                let mapped = group.iter().zip(self.hot.chunks_mut(TILE)).enumerate();
                for (j, (_, hot)) in mapped.filter(|(_, (source, _))| source.is_mapped()) {
                    let hot = &mut hot[..end - start];
                    if let Err(at) = all_finite(hot) {
                        hot.fill(0.0);
                        spoilt.push((i * FUSE + j, start..end, start + at));
                    }
                }
                self.add(sum, first, start, group);
            }
        }
        spoilt
    }

    /// Folds a tile of each source, beginning at `start`. Tiles of other processes are copies.
    fn add(&self, sum: &mut [f32], first: bool, start: usize, group: &[Source<'_>]) {
        let mut tiles: [&[f32]; FUSE] = [&[]; FUSE];
        for ((tile, source), hot) in tiles.iter_mut().zip(group).zip(self.hot.chunks(TILE)) {
            *tile = match source {
                Source::Values(values) => &values[start..start + sum.len()],
                Source::Mapped { .. } => &hot[..sum.len()],
            };
        }
        fold(sum, first, &tiles[..group.len()]);
    }
}

impl Source<'_> {
    fn is_mapped(&self) -> bool {
        matches!(self, Source::Mapped { .. })
    }

    /// Copies a mapped source, from `start` of the block on, scaled by its share.
    fn copy(&self, start: usize, hot: &mut [f32]) {
        if let Source::Mapped { view, at, share } = self {
            view.read(at + start, hot);
            if *share != 1.0 {
                hot.iter_mut().for_each(|x| *x *= share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_shm::Segment;

    use super::*;

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let value = |i: usize| ((i as f32 + 0.3) * (seed as f32 + 1.7)).sin();
        (0..len).map(value).collect()
    }

    fn shared(values: &[f32]) -> (Segment, View) {
        let mut segment = Segment::new(values.len()).unwrap();
        segment.copy_from_slice(values);
        let view = View::map(&segment, values.len()).unwrap();
        (segment, view)
    }

    #[test]
    fn mapped_and_received_contributions_fold_to_the_same_bits() {
        let len = 2 * TILE + 77;
        let all: Vec<Vec<f32>> = (0..7).map(|k| noise(k, len)).collect();
        let mapped: Vec<_> = all.iter().map(|values| shared(values)).collect();
        for first in [false, true] {
            let (mut expected, mut sum) = (noise(99, len), noise(99, len));
            let mut values: Vec<_> = all.clone();
            values[5].iter_mut().for_each(|x| *x *= 0.25);
            let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
            fold(&mut expected, first, &values);
            let mut sources: Vec<Source<'_>> =
                mapped.iter().map(|(_, view)| Source::Mapped { view, at: 0, share: 1.0 }).collect();
            sources[2] = Source::Values(&all[2]);
            sources[5] = Source::Mapped { view: &mapped[5].1, at: 0, share: 0.25 };
            assert!(Tiles::default().fold(&mut sum, first, &sources).is_empty());
            assert!(sum.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn what_is_not_finite_never_enters_a_sum() {
        let (mut spoilt, good) = (noise(1, 2 * TILE), noise(2, 2 * TILE));
        spoilt[TILE + 5] = f32::NAN;
        let (_a, bad) = shared(&spoilt);
        let (_b, fine) = shared(&good);
        let sources = [&bad, &fine].map(|view| Source::Mapped { view, at: 0, share: 1.0 });
        let mut sum = vec![0.0; 2 * TILE];
        let found = Tiles::default().fold(&mut sum, true, &sources);
        assert_eq!(found, [(0, TILE..2 * TILE, TILE + 5)]);
        assert!(sum.iter().all(|x| x.is_finite()));
        assert_eq!(sum[TILE..], good[TILE..]);
    }
}
