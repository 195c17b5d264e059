//! Reverse-mode differentiation over matrices of `f32`: the tape records every operation, and is read
//! backwards for the gradients.
//!
//! The one forward pass serves fitting, adaptation and prediction. Buffers go back to a pool when
//! the tape is cleared, so that a round costs no allocations once it has run.

use paceline_params::matmul::{Matrix, Output, multiply};

use crate::{
    math::{exp, sigmoid, tanh},
    mixture,
};

/// A matrix on the tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Var(usize);

/// No row: a gathered row of zeros.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
enum Op {
    /// Given from outside.
    Leaf,
    /// x·w + b.
    Affine {
        x: Var,
        w: Var,
        b: Var,
    },
    Add(Var, Var),
    Sub(Var, Var),
    Mul(Var, Var),
    Scale(Var, f32),
    Tanh(Var),
    Sigmoid(Var),
    Exp(Var),
    /// Clamped to ± a limit.
    Clamp(Var, f32),
    Softmax(Var),
    Concat(Vec<Var>),
    Columns {
        x: Var,
        from: usize,
    },
    Gather {
        x: Var,
        rows: Vec<u32>,
    },
    /// Weighted sums of rows that belong together.
    Pool {
        x: Var,
        into: Vec<u32>,
        weights: Vec<f32>,
    },
    /// `base` with some rows replaced.
    Replace {
        base: Var,
        x: Var,
        rows: Vec<u32>,
    },
    /// Log density, or log survival where it was not observed, of a mixture of logistics.
    Mixture {
        params: Var,
        target: Var,
        observed: Vec<bool>,
    },
    Sum(Var),
}

#[derive(Debug)]
struct Node {
    rows: usize,
    cols: usize,
    value: Vec<f32>,
    op: Op,
}

/// The recorded operations, in order.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    nodes: Vec<Node>,
    pool: Vec<Vec<f32>>,
}

impl Tape {
    /// Removes all operations but keeps their buffers.
    pub(crate) fn clear(&mut self) {
        self.pool.extend(self.nodes.drain(..).map(|node| node.value));
    }

    fn buffer(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(len, 0.0);
        buffer
    }

    fn push(&mut self, rows: usize, cols: usize, value: Vec<f32>, op: Op) -> Var {
        debug_assert_eq!(value.len(), rows * cols);
        self.nodes.push(Node { rows, cols, value, op });
        Var(self.nodes.len() - 1)
    }

    /// The numbers of a matrix, row by row.
    pub(crate) fn value(&self, x: Var) -> &[f32] {
        &self.nodes[x.0].value
    }

    fn rows(&self, x: Var) -> usize {
        self.nodes[x.0].rows
    }

    fn cols(&self, x: Var) -> usize {
        self.nodes[x.0].cols
    }

    /// A matrix given from outside, row by row.
    pub(crate) fn leaf(&mut self, rows: usize, cols: usize, values: &[f32]) -> Var {
        assert_eq!(values.len(), rows * cols, "a matrix of {rows}×{cols}");
        let mut value = self.buffer(0);
        value.extend_from_slice(values);
        self.push(rows, cols, value, Op::Leaf)
    }

    /// One column.
    pub(crate) fn column(&mut self, values: &[f32]) -> Var {
        self.leaf(values.len(), 1, values)
    }

    /// x·w + b, b a row that is added to each.
    pub(crate) fn affine(&mut self, x: Var, w: Var, b: Var) -> Var {
        let (n, inner, cols) = (self.rows(x), self.cols(x), self.cols(w));
        let mut out = self.buffer(n * cols);
        let bias = self.value(b);
        out.chunks_exact_mut(cols).for_each(|row| row.copy_from_slice(bias));
        let a = Matrix::new(self.value(x), n, inner);
        multiply(a, Matrix::new(self.value(w), inner, cols), Output::Add, &mut out);
        self.push(n, cols, out, Op::Affine { x, w, b })
    }

    fn unary(&mut self, x: Var, f: impl Fn(f32) -> f32, op: Op) -> Var {
        let mut out = self.buffer(self.value(x).len());
        out.iter_mut().zip(self.value(x)).for_each(|(out, &x)| *out = f(x));
        self.push(self.rows(x), self.cols(x), out, op)
    }

    fn binary(&mut self, a: Var, b: Var, f: impl Fn(f32, f32) -> f32, op: Op) -> Var {
        assert_eq!((self.rows(a), self.cols(a)), (self.rows(b), self.cols(b)), "same shape");
        let mut out = self.buffer(self.value(a).len());
        let pairs = self.value(a).iter().zip(self.value(b));
        out.iter_mut().zip(pairs).for_each(|(out, (&a, &b))| *out = f(a, b));
        self.push(self.rows(a), self.cols(a), out, op)
    }

    pub(crate) fn add(&mut self, a: Var, b: Var) -> Var {
        self.binary(a, b, |a, b| a + b, Op::Add(a, b))
    }

    pub(crate) fn sub(&mut self, a: Var, b: Var) -> Var {
        self.binary(a, b, |a, b| a - b, Op::Sub(a, b))
    }

    pub(crate) fn mul(&mut self, a: Var, b: Var) -> Var {
        self.binary(a, b, |a, b| a * b, Op::Mul(a, b))
    }

    pub(crate) fn scale(&mut self, x: Var, by: f32) -> Var {
        self.unary(x, |x| x * by, Op::Scale(x, by))
    }

    pub(crate) fn tanh(&mut self, x: Var) -> Var {
        self.unary(x, tanh, Op::Tanh(x))
    }

    pub(crate) fn sigmoid(&mut self, x: Var) -> Var {
        self.unary(x, sigmoid, Op::Sigmoid(x))
    }

    pub(crate) fn exp(&mut self, x: Var) -> Var {
        self.unary(x, exp, Op::Exp(x))
    }

    /// Clamps to ±`limit`; beyond it the gradient is zero.
    pub(crate) fn clamp(&mut self, x: Var, limit: f32) -> Var {
        self.unary(x, |x| x.clamp(-limit, limit), Op::Clamp(x, limit))
    }

    /// Each row's exponentials over their sum.
    pub(crate) fn softmax(&mut self, x: Var) -> Var {
        let (rows, cols) = (self.rows(x), self.cols(x));
        let mut out = self.buffer(rows * cols);
        for (out, row) in out.chunks_exact_mut(cols).zip(self.value(x).chunks_exact(cols)) {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            out.iter_mut().zip(row).for_each(|(out, &x)| *out = exp(x - most));
            let sum: f32 = out.iter().sum();
            out.iter_mut().for_each(|out| *out /= sum);
        }
        self.push(rows, cols, out, Op::Softmax(x))
    }

    /// Matrices side by side.
    pub(crate) fn concat(&mut self, parts: &[Var]) -> Var {
        let rows = self.rows(parts[0]);
        let cols = parts.iter().map(|&part| self.cols(part)).sum();
        let mut out = self.buffer(rows * cols);
        let mut from = 0;
        for &part in parts {
            let width = self.cols(part);
            assert_eq!(self.rows(part), rows, "as many rows");
            let whole = out.chunks_exact_mut(cols).zip(self.value(part).chunks_exact(width));
            whole.for_each(|(out, row)| out[from..from + width].copy_from_slice(row));
            from += width;
        }
        self.push(rows, cols, out, Op::Concat(parts.to_vec()))
    }

    /// `width` columns from the `from`th.
    pub(crate) fn columns(&mut self, x: Var, from: usize, width: usize) -> Var {
        let (rows, cols) = (self.rows(x), self.cols(x));
        let mut out = self.buffer(rows * width);
        let both = out.chunks_exact_mut(width).zip(self.value(x).chunks_exact(cols));
        both.for_each(|(out, row)| out.copy_from_slice(&row[from..from + width]));
        self.push(rows, width, out, Op::Columns { x, from })
    }

    /// The rows of these numbers; [`NONE`] is a row of zeros.
    pub(crate) fn gather(&mut self, x: Var, rows: &[u32]) -> Var {
        let cols = self.cols(x);
        let mut out = self.buffer(rows.len() * cols);
        for (out, &row) in out.chunks_exact_mut(cols).zip(rows) {
            if row != NONE {
                let from = row as usize * cols;
                out.copy_from_slice(&self.value(x)[from..from + cols]);
            }
        }
        self.push(rows.len(), cols, out, Op::Gather { x, rows: rows.to_vec() })
    }

    /// For each of `rows`, the weighted sum of the numbers of a column that belong to it; [`NONE`]
    /// belongs nowhere.
    pub(crate) fn pool(&mut self, x: Var, rows: usize, into: &[u32], weights: &[f32]) -> Var {
        let mut out = self.buffer(rows);
        for ((x, &row), weight) in self.value(x).iter().zip(into).zip(weights) {
            if row != NONE {
                out[row as usize] += weight * x;
            }
        }
        let (into, weights) = (into.to_vec(), weights.to_vec());
        self.push(rows, 1, out, Op::Pool { x, into, weights })
    }

    /// `base` with the rows of these numbers replaced by those of `x`.
    pub(crate) fn replace(&mut self, base: Var, x: Var, rows: &[u32]) -> Var {
        let cols = self.cols(base);
        let mut out = self.buffer(0);
        out.extend_from_slice(self.value(base));
        for (new, &row) in self.value(x).chunks_exact(cols).zip(rows) {
            let from = row as usize * cols;
            out[from..from + cols].copy_from_slice(new);
        }
        self.push(self.rows(base), cols, out, Op::Replace { base, x, rows: rows.to_vec() })
    }

    /// The log density of each `target` under its mixture of three logistics, or the log survival if it
    /// was not observed. `params`: three logits, locations, log scales.
    pub(crate) fn mixture(&mut self, params: Var, target: Var, observed: &[bool]) -> Var {
        let rows = self.rows(params);
        let mut out = self.buffer(rows);
        let all = self.value(params).chunks_exact(mixture::WIDTH).zip(self.value(target));
        for (out, ((params, &target), &observed)) in out.iter_mut().zip(all.zip(observed)) {
            *out = mixture::log_likelihood(params, target, observed);
        }
        self.push(rows, 1, out, Op::Mixture { params, target, observed: observed.to_vec() })
    }

    /// The sum of all numbers.
    pub(crate) fn sum(&mut self, x: Var) -> Var {
        let mut out = self.buffer(1);
        out[0] = self.value(x).iter().sum();
        self.push(1, 1, out, Op::Sum(x))
    }

    /// The gradients of one number with respect to these matrices.
    pub(crate) fn gradients(&mut self, of: Var, with_respect_to: &[Var]) -> Vec<Vec<f32>> {
        let mut grads: Vec<Vec<f32>> = Vec::with_capacity(self.nodes.len());
        for node in 0..self.nodes.len() {
            let len = self.nodes[node].value.len();
            let buffer = self.buffer(len);
            grads.push(buffer);
        }
        grads[of.0].fill(1.0);
        for at in (0..=of.0).rev() {
            let (before, rest) = grads.split_at_mut(at);
            self.back(at, &rest[0], before);
        }
        let found = with_respect_to.iter().map(|x| std::mem::take(&mut grads[x.0])).collect();
        self.pool.extend(grads);
        found
    }

    /// Propagates the gradient `g` of node `at` to its inputs.
    fn back(&self, at: usize, g: &[f32], grads: &mut [Vec<f32>]) {
        let node = &self.nodes[at];
        let value = &node.value;
        let mut each = |x: Var, f: &dyn Fn(usize) -> f32| {
            grads[x.0].iter_mut().enumerate().for_each(|(i, grad)| *grad += f(i));
        };
        match &node.op {
            Op::Leaf => {}
            Op::Affine { x, w, b } => self.back_affine(node, g, (*x, *w, *b), grads),
            Op::Add(a, b) => [a, b].into_iter().for_each(|&x| each(x, &|i| g[i])),
            Op::Sub(a, b) => {
                each(*a, &|i| g[i]);
                each(*b, &|i| -g[i]);
            }
            Op::Mul(a, b) => {
                let (left, right) = (self.value(*a), self.value(*b));
                each(*a, &|i| g[i] * right[i]);
                each(*b, &|i| g[i] * left[i]);
            }
            Op::Scale(x, by) => each(*x, &|i| g[i] * by),
            Op::Tanh(x) => each(*x, &|i| g[i] * (1.0 - value[i] * value[i])),
            Op::Sigmoid(x) => each(*x, &|i| g[i] * value[i] * (1.0 - value[i])),
            Op::Exp(x) => each(*x, &|i| g[i] * value[i]),
            Op::Clamp(x, limit) => {
                each(*x, &|i| if value[i].abs() < *limit { g[i] } else { 0.0 });
            }
            Op::Softmax(x) => {
                let rows = g.chunks_exact(node.cols).zip(value.chunks_exact(node.cols));
                for (row, (g, value)) in grads[x.0].chunks_exact_mut(node.cols).zip(rows) {
                    let mean: f32 = g.iter().zip(value).map(|(g, v)| g * v).sum();
                    let both = g.iter().zip(value);
                    row.iter_mut().zip(both).for_each(|(r, (g, v))| *r += v * (g - mean));
                }
            }
            Op::Concat(parts) => {
                let mut from = 0;
                for part in parts {
                    let width = self.cols(*part);
                    let rows = grads[part.0].chunks_exact_mut(width);
                    for (grad, g) in rows.zip(g.chunks_exact(node.cols)) {
                        add(grad, &g[from..from + width]);
                    }
                    from += width;
                }
            }
            Op::Columns { x, from } => {
                let rows = grads[x.0].chunks_exact_mut(self.cols(*x));
                rows.zip(g.chunks_exact(node.cols))
                    .for_each(|(grad, g)| add(&mut grad[*from..from + node.cols], g));
            }
            Op::Gather { x, rows } => {
                for (g, &row) in g.chunks_exact(node.cols).zip(rows).filter(|(_, r)| **r != NONE) {
                    let from = row as usize * node.cols;
                    add(&mut grads[x.0][from..from + node.cols], g);
                }
            }
            Op::Pool { x, into, weights } => {
                let all = grads[x.0].iter_mut().zip(into).zip(weights);
                for ((grad, &row), weight) in all.filter(|((_, row), _)| **row != NONE) {
                    *grad += weight * g[row as usize];
                }
            }
            Op::Replace { base, x, rows } => {
                let cols = node.cols;
                let mut kept = vec![true; node.rows];
                for (i, &row) in rows.iter().enumerate() {
                    kept[row as usize] = false;
                    let from = row as usize * cols;
                    add(&mut grads[x.0][i * cols..(i + 1) * cols], &g[from..from + cols]);
                }
                let all = grads[base.0].chunks_exact_mut(cols).zip(g.chunks_exact(cols));
                all.zip(kept).filter(|(_, kept)| *kept).for_each(|((grad, g), _)| add(grad, g));
            }
            Op::Mixture { params, target, observed } => {
                let all = self.value(*params).chunks_exact(mixture::WIDTH).zip(self.value(*target));
                for (i, ((row, &at), &observed)) in all.zip(observed).enumerate() {
                    let (grad, by_target) = mixture::gradient(row, at, observed);
                    let from = i * mixture::WIDTH;
                    let into = &mut grads[params.0][from..from + mixture::WIDTH];
                    into.iter_mut().zip(grad).for_each(|(into, grad)| *into += g[i] * grad);
                    grads[target.0][i] += g[i] * by_target;
                }
            }
            Op::Sum(x) => each(*x, &|_| g[0]),
        }
    }

    fn back_affine(
        &self,
        node: &Node,
        g: &[f32],
        (x, w, b): (Var, Var, Var),
        grads: &mut [Vec<f32>],
    ) {
        let (n, inner, cols) = (node.rows, self.cols(x), node.cols);
        let g_matrix = Matrix::new(g, n, cols);
        let weights = Matrix::new(self.value(w), inner, cols).transposed();
        multiply(g_matrix, weights, Output::Add, &mut grads[x.0]);
        let inputs = Matrix::new(self.value(x), n, inner).transposed();
        multiply(inputs, g_matrix, Output::Add, &mut grads[w.0]);
        g.chunks_exact(cols).for_each(|row| add(&mut grads[b.0], row));
    }
}

fn add(into: &mut [f32], what: &[f32]) {
    into.iter_mut().zip(what).for_each(|(into, what)| *into += what);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One number that depends on every operation of the tape.
    fn everything(tape: &mut Tape, x: Var, w: Var, b: Var) -> Var {
        let y = tape.affine(x, w, b);
        let (t, s) = (tape.tanh(y), tape.sigmoid(y));
        let product = tape.mul(t, s);
        let difference = tape.sub(product, y);
        let halved = tape.scale(difference, 0.5);
        let halved = tape.clamp(halved, 0.3);
        let soft = tape.softmax(halved);
        let both = tape.concat(&[soft, halved]);
        let part = tape.columns(both, 1, 3);
        let picked = tape.gather(part, &[2, NONE, 0, 2]);
        let base = tape.gather(part, &[0, 1, 2, 0]);
        let replaced = tape.replace(base, picked, &[3, 1, 0, 2]);
        let grown = tape.exp(replaced);
        let params = tape.concat(&[grown, replaced, replaced]);
        let target = tape.columns(grown, 0, 1);
        let likely = tape.mixture(params, target, &[true, false, true, false]);
        let pooled = tape.pool(likely, 2, &[0, 1, NONE, 1], &[1.0, 0.5, 2.0, -1.0]);
        let shifted = tape.add(pooled, pooled);
        tape.sum(shifted)
    }

    #[test]
    fn gradients_of_every_operation_are_the_slopes() {
        let x = [0.3, -0.2, 0.8, 0.5, -0.6, 0.1];
        let w = [0.4, -0.3, 0.2, 0.7, 0.1, -0.5];
        let b = [0.1, -0.2, 0.3];
        let value = |x: &[f32], w: &[f32], b: &[f32]| {
            let mut tape = Tape::default();
            let (x, w, b) = (tape.leaf(3, 2, x), tape.leaf(2, 3, w), tape.leaf(1, 3, b));
            let out = everything(&mut tape, x, w, b);
            let grads = tape.gradients(out, &[x, w, b]);
            (tape.value(out)[0], grads)
        };
        let (_, grads) = value(&x, &w, &b);
        let inputs = [&x[..], &w[..], &b[..]];
        for (which, grad) in grads.iter().enumerate() {
            for i in 0..grad.len() {
                let at = |step: f32| {
                    let mut moved: Vec<Vec<f32>> = inputs.iter().map(|x| x.to_vec()).collect();
                    moved[which][i] += step;
                    value(&moved[0], &moved[1], &moved[2]).0
                };
                let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
                assert!(
                    (grad[i] - slope).abs() < 2e-2 * (1.0 + slope.abs()),
                    "{which} {i}: {} {slope}",
                    grad[i]
                );
            }
        }
    }
}
