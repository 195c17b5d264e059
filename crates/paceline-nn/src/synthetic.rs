//! A model of any size whose gradient costs nothing, for measuring the data plane.

use crate::{Dataset, Evaluation, KeptParams, LossSum, Model, TensorSpec};

/// `params` parameters in one tensor and a constant gradient.
///
/// The gradient is written only into a buffer that does not hold it yet, judged by its first and
/// last value, so a worker that reuses its buffer pays for it once. This breaks the law that
/// [`gradient`](Model::gradient) adds: it is made to cost nothing, not to learn.
pub(crate) struct Synthetic {
    tensors: [TensorSpec; 1],
    kept: Option<KeptParams>,
}

/// Every value of the gradient.
const GRADIENT: f32 = 1e-3;

impl Synthetic {
    pub(crate) fn new(params: usize) -> Self {
        Self { tensors: [TensorSpec::new("synthetic.weight", [params])], kept: None }
    }
}

impl Model for Synthetic {
    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    fn init(&self, _seed: u64) -> Vec<f32> {
        vec![0.0; self.tensors[0].len()]
    }

    fn load(&mut self, at: usize, params: &[f32]) {
        assert!(at + params.len() <= self.tensors[0].len(), "one value per parameter");
    }

    fn keep(&mut self, params: KeptParams) {
        assert_eq!(params.len(), self.tensors[0].len(), "one value per parameter");
        self.kept = Some(params);
    }

    fn let_go(&mut self) {
        self.kept = None;
    }

    fn gradient_while(
        &mut self,
        _data: &Dataset,
        samples: &[u32],
        grad: &mut [f32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<LossSum> {
        wanted().then_some(())?;
        assert_eq!(grad.len(), self.tensors[0].len(), "one value per parameter");
        if grad.first() != Some(&GRADIENT) || grad.last() != Some(&GRADIENT) {
            grad.fill(GRADIENT);
        }
        Some(LossSum { loss: 0.0, correct: 0, samples: samples.len() as u32 })
    }

    fn evaluate(&mut self, _data: &Dataset) -> Evaluation {
        Evaluation { loss: 0.0, accuracy: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Split, embedded};

    #[test]
    fn gradient_is_constant_however_often_it_is_asked_for() {
        let data = embedded::generate(Split::Test, 0);
        let mut model = Synthetic::new(1000);
        let mut grad = vec![0.0; 1000];
        for _ in 0..3 {
            let sum = model.gradient(&data, &[0, 1, 2], &mut grad);
            assert_eq!(sum.samples, 3);
            assert!(grad.iter().all(|&value| value == GRADIENT));
        }
    }
}
