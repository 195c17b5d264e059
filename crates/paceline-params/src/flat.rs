//! The flat parameter vector, held as shared pieces.

use std::ops::Range;
use std::sync::Arc;

/// One vector of `f32` as a list of shared pieces in order, so that the snapshots of all blocks
/// are a vector without being copied together.
#[derive(Debug, Default, Clone)]
pub struct FlatVec {
    pieces: Vec<Arc<Vec<f32>>>,
}

impl FlatVec {
    /// Elements in all pieces together.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.pieces.iter().all(|piece| piece.is_empty())
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[f32]> {
        self.pieces.iter().map(|piece| piece.as_slice())
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Arc<Vec<f32>>) {
        self.pieces.push(piece);
    }

    /// A copy of the elements in `range`, wherever the pieces are cut.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    pub fn copy(&self, range: Range<usize>) -> Vec<f32> {
        let mut copy = Vec::with_capacity(range.len());
        let mut start = 0;
        for piece in self.pieces() {
            let end = start + piece.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                copy.extend_from_slice(&piece[from - start..to - start]);
            }
            start = end;
        }
        assert_eq!(copy.len(), range.len(), "range {range:?} of {start} elements");
        copy
    }

    /// The whole vector in one piece; copies unless it is a single unshared piece.
    pub fn into_vec(mut self) -> Vec<f32> {
        if self.pieces.len() == 1
            && let Some(piece) = self.pieces.pop()
        {
            return Arc::unwrap_or_clone(piece);
        }
        self.copy(0..self.len())
    }
}

/// Equal elements, wherever the pieces are cut.
impl PartialEq for FlatVec {
    fn eq(&self, other: &Self) -> bool {
        self.pieces().flatten().eq(other.pieces().flatten())
    }
}

impl From<Vec<f32>> for FlatVec {
    fn from(values: Vec<f32>) -> Self {
        FlatVec { pieces: vec![Arc::new(values)] }
    }
}

impl FromIterator<Arc<Vec<f32>>> for FlatVec {
    fn from_iter<I: IntoIterator<Item = Arc<Vec<f32>>>>(pieces: I) -> Self {
        FlatVec { pieces: pieces.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut_at(values: &[f32], sizes: &[usize]) -> FlatVec {
        let mut rest = values;
        let mut flat = FlatVec::default();
        for &size in sizes {
            let (piece, tail) = rest.split_at(size.min(rest.len()));
            flat.push(Arc::new(piece.to_vec()));
            rest = tail;
        }
        flat.push(Arc::new(rest.to_vec()));
        flat
    }

    proptest! {
        #[test]
        fn cuts_do_not_show(
            values in prop::collection::vec(-1f32..1.0, 0..100),
            sizes in prop::collection::vec(0usize..30, 0..8),
            (a, b) in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let flat = cut_at(&values, &sizes);
            let (a, b) = (a.index(values.len() + 1), b.index(values.len() + 1));
            let range = a.min(b)..a.max(b);
            prop_assert_eq!(flat.len(), values.len());
            prop_assert_eq!(flat.is_empty(), values.is_empty());
            prop_assert_eq!(&flat, &FlatVec::from(values.clone()));
            prop_assert_eq!(flat.copy(range.clone()), &values[range]);
            prop_assert_eq!(flat.into_vec(), values);
        }
    }

    #[test]
    fn a_single_unshared_piece_is_given_back_without_a_copy() {
        let values = vec![1.0, 2.0];
        let address = values.as_ptr();
        let again = FlatVec::from(values).into_vec();
        assert_eq!(again.as_ptr(), address);
    }

    #[test]
    #[should_panic(expected = "range 1..4 of 3 elements")]
    fn a_range_past_the_end_is_refused() {
        FlatVec::from(vec![0.0; 3]).copy(1..4);
    }
}
