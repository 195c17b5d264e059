//! Matrix products on the calling thread: a safe interface to gemm, for the native models and the
//! model of run-times.

use gemm::Parallelism;

/// A view of a matrix in a slice, possibly transposed.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` × `cols` values, row by row.
    pub fn new(values: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(values.len(), rows * cols, "a matrix of {rows}×{cols}");
        Self { values, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The same values with rows and columns exchanged; nothing is copied.
    pub fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }
}

/// How the product is stored in the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// It replaces the values.
    Set,
    /// It is added to the values.
    Add,
}

/// Stores a·b, row by row, in `out`. Uses the calling thread only.
///
/// The order of the sums depends only on the sizes and the processor, so equal inputs give equal
/// bits.
#[expect(unsafe_code, reason = "gemm takes raw pointers")]
pub fn multiply(a: Matrix<'_>, b: Matrix<'_>, mode: Output, out: &mut [f32]) {
    assert_eq!(a.cols, b.rows, "inner extents agree");
    assert_eq!(out.len(), a.rows * b.cols, "one output per row and column");
    // SAFETY: `Matrix::new` has checked that rows × cols values lie behind each input pointer, in
    // row-major order, and a transposition only exchanges extents together with their strides; the
    // length of `out` is checked above. `out` is borrowed mutably, so it overlaps neither input.
    unsafe {
        gemm::gemm(
            a.rows,
            b.cols,
            a.cols,
            out.as_mut_ptr(),
            1,
            b.cols as isize,
            mode == Output::Add,
            a.values.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, one sum at a time, in f64.
    fn reference(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f64> {
        let at = |m: Matrix<'_>, row: usize, col: usize| {
            f64::from(m.values[row * m.row_stride + col * m.col_stride])
        };
        (0..a.rows * b.cols)
            .map(|i| (0..a.cols).map(|k| at(a, i / b.cols, k) * at(b, k, i % b.cols)).sum())
            .collect()
    }

    #[test]
    fn products_agree_with_the_definition_for_every_transposition() {
        let mut state = 1u32;
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (16, 196, 200), (33, 10, 64), (2, 65, 1)] {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            let mut random = |len: usize| (0..len).map(|_| next()).collect::<Vec<f32>>();
            let (x, y) = (random(m * k), random(k * n));
            for (a, b) in [
                (Matrix::new(&x, m, k), Matrix::new(&y, k, n)),
                (Matrix::new(&x, k, m).transposed(), Matrix::new(&y, k, n)),
                (Matrix::new(&x, m, k), Matrix::new(&y, n, k).transposed()),
            ] {
                let expected = reference(a, b);
                let mut out = vec![f32::NAN; m * n];
                multiply(a, b, Output::Set, &mut out);
                multiply(a, b, Output::Add, &mut out);
                for (found, expected) in out.iter().zip(expected) {
                    let error = (f64::from(*found) - 2.0 * expected).abs();
                    assert!(error < 1e-4, "{m}×{n}×{k}: {found} for {}", 2.0 * expected);
                }
            }
        }
    }
}
