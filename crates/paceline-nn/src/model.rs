//! The interface of models: flat parameters in, summed gradients out.

use std::ops::Deref;

use crate::synthetic::Synthetic;
use crate::{DataShape, Dataset, ModelSpec, TensorSpec, zoo};

/// All parameters, in memory that the model does not own.
pub type KeptParams = Box<dyn Deref<Target = [f32]> + Send>;

/// A model that a worker differentiates and an observer evaluates.
///
/// Laws:
/// - `params` and `grad` have [`total_elements`] values in the order of
///   [`tensors`](Self::tensors); any other length panics.
/// - [`gradient`](Self::gradient) *adds* a *sum* over samples, so calls over the parts of a batch,
///   on one worker or on many, add up to the gradient of the batch (up to rounding), and dividing by
///   the number of samples gives the mean.
/// - A model computes on the calling thread alone. The same parameters and samples give the same
///   bits; a processor with other instructions may round differently.
/// - No method draws random numbers except [`init`](Self::init), from its seed.
pub trait Model: Send {
    /// The tensors in the order of the flat parameter vector.
    fn tensors(&self) -> &[TensorSpec];

    /// Flat initial parameters, the same on every platform for the same seed.
    fn init(&self, seed: u64) -> Vec<f32>;

    /// Takes `params` as the parameters, from element `at` on, of every later call; before the first,
    /// they are zero.
    fn load(&mut self, at: usize, params: &[f32]);

    /// Takes `params` as all parameters, which do not change until `params` is dropped. A model that
    /// can use them in place need not copy them.
    fn keep(&mut self, params: KeptParams) {
        self.load(0, &params);
    }

    /// Drops the parameters of [`keep`](Self::keep). The next load is of all parameters.
    fn let_go(&mut self) {}

    /// Adds the gradient of the loss summed over `samples` (indices into `data`, repeats allowed)
    /// to `grad`. Panics if an index is out of range or the data has another shape than the model
    /// was built for.
    fn gradient(&mut self, data: &Dataset, samples: &[u32], grad: &mut [f32]) -> LossSum {
        let sum = self.gradient_while(data, samples, grad, &|| true);
        sum.expect("a gradient that stays wanted is computed to the end")
    }

    /// Like [`gradient`](Self::gradient) for as long as it is `wanted`, which is called often. `None` if
    /// it was stopped: `grad` is then invalid.
    fn gradient_while(
        &mut self,
        data: &Dataset,
        samples: &[u32],
        grad: &mut [f32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<LossSum>;

    /// Loss and accuracy over all of `data`, in batches.
    fn evaluate(&mut self, data: &Dataset) -> Evaluation;
}

/// Length of the flat vector that holds `tensors`.
pub fn total_elements(tensors: &[TensorSpec]) -> usize {
    tensors.iter().map(TensorSpec::len).sum()
}

/// Loss and hits summed over samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSum {
    /// Sum of the samples' cross-entropy losses, in nats.
    pub loss: f64,
    /// Samples whose class had the highest score.
    pub correct: u32,
    /// Samples summed over.
    pub samples: u32,
}

impl LossSum {
    /// Mean loss per sample and share of hits; NaN if there were no samples.
    pub fn mean(&self) -> Evaluation {
        let samples = f64::from(self.samples);
        Evaluation { loss: self.loss / samples, accuracy: f64::from(self.correct) / samples }
    }
}

impl std::ops::AddAssign for LossSum {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.samples += other.samples;
    }
}

/// How well a model does on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean cross-entropy loss per sample, in nats; ln(classes) is guessing.
    pub loss: f64,
    /// Share of samples classified correctly, 0 to 1.
    pub accuracy: f64,
}

/// Why a model cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The model is unknown.
    #[error("unknown model {text:?}, expected softmax, mlp, cnn, resnet or synthetic:N")]
    Unknown {
        /// The text given.
        text: String,
    },
    /// Not a number of parameters.
    #[error("bad number of parameters {text:?}, expected 1 to {max}")]
    Params {
        /// The text given.
        text: String,
        /// The largest number.
        max: usize,
    },
    /// The images are too small for the model.
    #[error("{model} needs images of at least {side}×{side}, the data is {shape}")]
    Images {
        /// The model.
        model: ModelSpec,
        /// The least height and width.
        side: usize,
        /// The shape of the data.
        shape: DataShape,
    },
}

/// Builds the model that `spec` names, for data of the given shape.
///
/// # Errors
///
/// Fails if the images are too small for the model.
pub fn build(spec: ModelSpec, shape: DataShape) -> Result<Box<dyn Model>, ModelError> {
    Ok(match spec {
        ModelSpec::Softmax => Box::new(zoo::softmax(shape)),
        ModelSpec::Mlp => Box::new(zoo::mlp(shape)),
        ModelSpec::Cnn => Box::new(zoo::cnn(shape)?),
        ModelSpec::Resnet => Box::new(zoo::resnet(shape)?),
        ModelSpec::Synthetic { params } => Box::new(Synthetic::new(params)),
    })
}
