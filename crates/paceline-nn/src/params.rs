//! A model's parameters: its own, or kept where somebody else has them.

use std::ops::Deref;

use crate::KeptParams;

pub(crate) enum Params {
    Own(Vec<f32>),
    Kept(KeptParams),
}

impl Params {
    /// So many zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        Params::Own(vec![0.0; len])
    }

    /// Writes some of `len` parameters, from `at` on, into its own.
    pub(crate) fn load(&mut self, len: usize, at: usize, params: &[f32]) {
        self.let_go();
        if let Params::Own(own) = self {
            own.resize(len, 0.0);
            own[at..at + params.len()].copy_from_slice(params);
        }
    }

    /// Forgets what is kept.
    pub(crate) fn let_go(&mut self) {
        if let Params::Kept(_) = self {
            *self = Params::Own(Vec::new());
        }
    }
}

impl Deref for Params {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Params::Own(own) => own,
            Params::Kept(kept) => kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_used_until_it_is_let_go_of_or_something_is_loaded() {
        let mut params = Params::zeros(3);
        params.load(3, 1, &[2.0]);
        assert_eq!(*params, [0.0, 2.0, 0.0]);
        params = Params::Kept(Box::new(vec![1.0, 2.0, 3.0]));
        assert_eq!(*params, [1.0, 2.0, 3.0]);
        params.load(3, 0, &[4.0, 5.0]);
        assert_eq!(*params, [4.0, 5.0, 0.0]);
        params = Params::Kept(Box::new(vec![1.0, 2.0, 3.0]));
        params.let_go();
        assert!(params.is_empty());
    }
}
