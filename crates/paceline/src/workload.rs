//! What is trained on what: a native model and its data, as server and workers see them.

use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_nn::{
    CostSpec, DataError, DataShape, DataSource, Dataset, Model, ModelSpec, Split, build,
};
use paceline_params::TensorSpec;
use paceline_server::{Evaluation, Evaluator};
use paceline_worker::{Compute, Kept};

/// Samples of an epoch where the model looks at none.
const SYNTHETIC_SAMPLES: u32 = 1 << 20;

/// A model and both halves of its data, loaded once for any number of runs.
pub(crate) struct Workload {
    spec: ModelSpec,
    train: Arc<Dataset>,
    test: Option<Arc<Dataset>>,
    pub(crate) samples: u32,
    pub(crate) costs: Option<Arc<[f32]>>,
}

impl Workload {
    pub(crate) fn load(spec: ModelSpec, source: &DataSource, seed: u64) -> Result<Self> {
        let (train, samples) = load(spec, source, Split::Train, seed)?;
        let test = match spec {
            ModelSpec::Synthetic { .. } => None,
            _ => Some(load(spec, source, Split::Test, seed)?.0),
        };
        let halves = (train.shape(), test.as_ref().map(Dataset::shape));
        if let (train, Some(test)) = halves
            && train != test
        {
            Err(DataError::Halves { train, test })?;
        }
        let (train, test) = (Arc::new(train), test.map(Arc::new));
        Ok(Workload { spec, train, test, samples, costs: None })
    }

    /// With what samples cost.
    pub(crate) fn costing(mut self, costs: Option<&CostSpec>, seed: u64) -> Result<Self> {
        self.costs = load_costs(costs, self.samples, seed)?;
        Ok(self)
    }

    /// With the training samples class after class.
    pub(crate) fn by_label(mut self) -> Self {
        self.train = Arc::new(self.train.by_label());
        self
    }

    /// The tensors, and their first values under a seed.
    pub(crate) fn begin(&self, seed: u64) -> Result<(Vec<TensorSpec>, Vec<f32>)> {
        let model = build(self.spec, self.train.shape())?;
        Ok((model.tensors().to_vec(), model.init(seed)))
    }

    /// How well it does on the test half, if there is one.
    pub(crate) fn evaluator(&self) -> Result<Option<Evaluator>> {
        let Some(test) = self.test.clone() else { return Ok(None) };
        let mut judge = build(self.spec, test.shape())?;
        Ok(Some(Box::new(move |params| {
            judge.load(0, params);
            let paceline_nn::Evaluation { loss, accuracy } = judge.evaluate(&test);
            Evaluation { loss, accuracy }
        })))
    }

    /// What computes gradients.
    pub(crate) fn worker(&self) -> Result<WorkerSide> {
        WorkerSide::of(self.spec, Arc::clone(&self.train), self.samples, self.costs.clone())
    }
}

/// The worker's side: gradients.
pub(crate) struct WorkerSide {
    /// The gradient is the same every time and may stay where it is.
    constant: bool,
    model: Box<dyn Model>,
    data: Arc<Dataset>,
    costs: Option<Arc<[f32]>>,
    pub(crate) samples: u32,
}

impl WorkerSide {
    pub(crate) fn new(
        spec: ModelSpec,
        data: &DataSource,
        costs: Option<&CostSpec>,
        seed: u64,
    ) -> Result<Self> {
        let (data, samples) = load(spec, data, Split::Train, seed)?;
        Self::of(spec, Arc::new(data), samples, load_costs(costs, samples, seed)?)
    }

    fn of(
        spec: ModelSpec,
        data: Arc<Dataset>,
        samples: u32,
        costs: Option<Arc<[f32]>>,
    ) -> Result<Self> {
        let model = build(spec, data.shape())?;
        let constant = matches!(spec, ModelSpec::Synthetic { .. });
        Ok(WorkerSide { constant, model, data, costs, samples })
    }
}

impl Compute for WorkerSide {
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

fn load_costs(costs: Option<&CostSpec>, samples: u32, seed: u64) -> Result<Option<Arc<[f32]>>> {
    let load = |costs: &CostSpec| costs.load(samples as usize, seed);
    costs.map(load).transpose().context("failed to load what samples cost")
}

/// One half of the data, and how many samples an epoch has.
fn load(spec: ModelSpec, source: &DataSource, half: Split, seed: u64) -> Result<(Dataset, u32)> {
    if let ModelSpec::Synthetic { .. } = spec {
        let shape = DataShape { channels: 1, height: 1, width: 1, classes: 1 };
        return Ok((Dataset::new("none", shape, vec![0], vec![0])?, SYNTHETIC_SAMPLES));
    }
    let data = source.load(half, seed).context("failed to load the data")?;
    let samples = u32::try_from(data.len()).context("more samples than fit in 32 bits")?;
    Ok((data, samples))
}
