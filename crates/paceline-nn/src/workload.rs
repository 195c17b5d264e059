//! A native model and its data, as server and workers use them.

use std::{num::TryFromIntError, sync::Arc};

use paceline_params::TensorSpec;
use paceline_worker::{Compute, Kept};

use crate::{
    CostSpec, DataError, DataShape, DataSource, Dataset, Evaluation, Model, ModelError, ModelSpec,
    Split, build,
};

/// Samples of an epoch where the model looks at none.
const SYNTHETIC_SAMPLES: u32 = 1 << 20;

/// A model and both halves of its data, loaded once for any number of runs.
pub struct Workload {
    spec: ModelSpec,
    train: Arc<Dataset>,
    test: Option<Arc<Dataset>>,
    /// Training samples per epoch.
    pub samples: u32,
    /// The relative costs of the training samples, if they differ.
    pub costs: Option<Arc<[f32]>>,
}

impl Workload {
    /// Loads both halves of the data; the seed determines the embedded data.
    pub fn load(spec: ModelSpec, source: &DataSource, seed: u64) -> Result<Self, WorkloadError> {
        let (train, samples) = load(spec, source, Split::Train, seed)?;
        let test = match spec {
            ModelSpec::Synthetic { .. } => None,
            _ => Some(load(spec, source, Split::Test, seed)?.0),
        };
        let halves = (train.shape(), test.as_ref().map(Dataset::shape));
        if let (train, Some(test)) = halves
            && train != test
        {
            return Err(WorkloadError::Dataset(DataError::Halves { train, test }));
        }
        let (train, test) = (Arc::new(train), test.map(Arc::new));
        Ok(Workload { spec, train, test, samples, costs: None })
    }

    /// With the costs of the training samples.
    pub fn costing(mut self, costs: Option<&CostSpec>, seed: u64) -> Result<Self, WorkloadError> {
        self.costs = load_costs(costs, self.samples, seed)?;
        Ok(self)
    }

    /// With the training samples class after class.
    pub fn by_label(mut self) -> Self {
        self.train = Arc::new(self.train.by_label());
        self
    }

    /// The tensors, and their initial values under a seed.
    pub fn begin(&self, seed: u64) -> Result<(Vec<TensorSpec>, Vec<f32>), WorkloadError> {
        let model = build(self.spec, self.train.shape())?;
        Ok((model.tensors().to_vec(), model.init(seed)))
    }

    /// Evaluates parameters on the test half, if there is one.
    pub fn evaluator(
        &self,
    ) -> Result<Option<impl FnMut(&[f32]) -> Evaluation + Send + use<>>, WorkloadError> {
        let Some(test) = self.test.clone() else { return Ok(None) };
        let mut judge = build(self.spec, test.shape())?;
        Ok(Some(move |params: &[f32]| {
            judge.load(0, params);
            judge.evaluate(&test)
        }))
    }

    /// A worker's computation of gradients.
    pub fn worker(&self) -> Result<NativeCompute, WorkloadError> {
        NativeCompute::of(self.spec, Arc::clone(&self.train), self.samples, self.costs.clone())
    }
}

/// Computes gradients of a native model on the training half, for a worker.
pub struct NativeCompute {
    /// The gradient is the same every time and may stay where it is.
    constant: bool,
    model: Box<dyn Model>,
    data: Arc<Dataset>,
    costs: Option<Arc<[f32]>>,
    /// Training samples per epoch.
    pub samples: u32,
}

impl NativeCompute {
    /// Loads the training half alone; the seed determines the embedded data.
    pub fn new(
        spec: ModelSpec,
        data: &DataSource,
        costs: Option<&CostSpec>,
        seed: u64,
    ) -> Result<Self, WorkloadError> {
        let (data, samples) = load(spec, data, Split::Train, seed)?;
        Self::of(spec, Arc::new(data), samples, load_costs(costs, samples, seed)?)
    }

    fn of(
        spec: ModelSpec,
        data: Arc<Dataset>,
        samples: u32,
        costs: Option<Arc<[f32]>>,
    ) -> Result<Self, WorkloadError> {
        let model = build(spec, data.shape())?;
        let constant = matches!(spec, ModelSpec::Synthetic { .. });
        Ok(NativeCompute { constant, model, data, costs, samples })
    }
}

impl Compute for NativeCompute {
    fn load(&mut self, at: usize, params: &[f32]) {
        self.model.load(at, params);
    }

    fn keep(&mut self, params: Kept) {
        self.model.keep(Box::new(params));
    }

    fn let_go(&mut self) {
        self.model.let_go();
    }

    fn clear(&mut self, gradient: &mut [f32]) {
        if !self.constant {
            gradient.fill(0.0);
        }
    }

    fn gradient(&mut self, samples: &[u32], gradient: &mut [f32]) -> f64 {
        self.model.gradient(&self.data, samples, gradient).loss
    }

    fn gradient_while(
        &mut self,
        samples: &[u32],
        gradient: &mut [f32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<f64> {
        let sum = self.model.gradient_while(&self.data, samples, gradient, wanted)?;
        Some(sum.loss)
    }

    fn costs(&self) -> Option<Arc<[f32]>> {
        self.costs.clone()
    }
}

/// Why a workload could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A half of the data could not be loaded.
    #[error("failed to load the data")]
    Data(#[source] DataError),
    /// The halves of the data do not make one data set.
    #[error(transparent)]
    Dataset(DataError),
    /// The costs of the samples could not be loaded.
    #[error("failed to load what samples cost")]
    Costs(#[source] DataError),
    /// The data has too many samples.
    #[error("more samples than fit in 32 bits")]
    Samples(#[source] TryFromIntError),
    /// The model cannot be built for the data.
    #[error(transparent)]
    Model(#[from] ModelError),
}

fn load_costs(
    costs: Option<&CostSpec>,
    samples: u32,
    seed: u64,
) -> Result<Option<Arc<[f32]>>, WorkloadError> {
    let load = |costs: &CostSpec| costs.load(samples as usize, seed);
    costs.map(load).transpose().map_err(WorkloadError::Costs)
}

/// One half of the data, and how many samples an epoch has.
fn load(
    spec: ModelSpec,
    source: &DataSource,
    half: Split,
    seed: u64,
) -> Result<(Dataset, u32), WorkloadError> {
    if let ModelSpec::Synthetic { .. } = spec {
        let shape = DataShape { channels: 1, height: 1, width: 1, classes: 1 };
        let data = Dataset::new("none", shape, vec![0], vec![0]).map_err(WorkloadError::Dataset)?;
        return Ok((data, SYNTHETIC_SAMPLES));
    }
    let data = source.load(half, seed).map_err(WorkloadError::Data)?;
    let samples = u32::try_from(data.len()).map_err(WorkloadError::Samples)?;
    Ok((data, samples))
}
