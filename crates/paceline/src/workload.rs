//! What is trained on what: a native model and its data, as server and workers see them.

use anyhow::{Context, Result};
use paceline_nn::{DataError, DataShape, DataSource, Dataset, Half, Model, ModelSpec, build};
use paceline_params::TensorSpec;
use paceline_server::{Evaluation, Evaluator};
use paceline_worker::Compute;

/// Samples of an epoch where the model looks at none.
const SYNTHETIC_SAMPLES: u32 = 1 << 20;

/// The server's side: what there is to train, and how well it does.
pub(crate) struct ServerSide {
    pub(crate) tensors: Vec<TensorSpec>,
    pub(crate) params: Vec<f32>,
    pub(crate) samples: u32,
    pub(crate) evaluator: Option<Evaluator>,
}

impl ServerSide {
    pub(crate) fn new(spec: ModelSpec, data: &DataSource, seed: u64) -> Result<Self> {
        let (train, samples) = load(spec, data, Half::Train, seed)?;
        let model = build(spec, train.shape())?;
        let evaluator: Option<Evaluator> = match spec {
            ModelSpec::Synthetic { .. } => None,
            _ => {
                let (test, _) = load(spec, data, Half::Test, seed)?;
                let (train, test_shape) = (train.shape(), test.shape());
                if train != test_shape {
                    Err(DataError::Halves { train, test: test_shape })?;
                }
                let mut judge = build(spec, test.shape())?;
                Some(Box::new(move |params| {
                    judge.load(params);
                    let paceline_nn::Evaluation { loss, accuracy } = judge.evaluate(&test);
                    Evaluation { loss, accuracy }
                }))
            }
        };
        let tensors = model.tensors().to_vec();
        let params = model.init(seed);
        Ok(ServerSide { tensors, params, samples, evaluator })
    }
}

/// The worker's side: gradients.
pub(crate) struct WorkerSide {
    /// The gradient is the same every time and may stay where it is.
    constant: bool,
    model: Box<dyn Model>,
    data: Dataset,
    pub(crate) samples: u32,
}

impl WorkerSide {
    pub(crate) fn new(spec: ModelSpec, data: &DataSource, seed: u64) -> Result<Self> {
        let (data, samples) = load(spec, data, Half::Train, seed)?;
        let model = build(spec, data.shape())?;
        let constant = matches!(spec, ModelSpec::Synthetic { .. });
        Ok(WorkerSide { constant, model, data, samples })
    }
}

impl Compute for WorkerSide {
    fn load(&mut self, params: &[f32]) {
        self.model.load(params);
    }

    fn clear(&mut self, gradient: &mut [f32]) {
        if !self.constant {
            gradient.fill(0.0);
        }
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.model.gradient(&self.data, samples, gradient).loss
    }
}

/// One half of the data, and how many samples an epoch has.
fn load(spec: ModelSpec, source: &DataSource, half: Half, seed: u64) -> Result<(Dataset, u32)> {
    if let ModelSpec::Synthetic { .. } = spec {
        let shape = DataShape { channels: 1, height: 1, width: 1, classes: 1 };
        return Ok((Dataset::new("none", shape, vec![0], vec![0])?, SYNTHETIC_SAMPLES));
    }
    let data = source.load(half, seed).context("failed to load the data")?;
    let samples = u32::try_from(data.len()).context("more samples than fit in 32 bits")?;
    Ok((data, samples))
}
