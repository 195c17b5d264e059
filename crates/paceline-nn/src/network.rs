//! Feed-forward networks: layers in sequence.

use crate::layer::{Layer, Step};
use crate::loss::cross_entropy;
use crate::params::Params;
use crate::rng::RandomStream;
use crate::{
    DataShape, Dataset, Evaluation, KeptParams, LossSum, Model, TensorSpec, total_elements,
};

/// Most bytes of activations of the samples that pass the layers together: about a core's own cache.
const CACHE: usize = 1 << 20;

/// A feed-forward network with a softmax cross-entropy loss.
pub(crate) struct Network {
    shape: DataShape,
    tensors: Vec<TensorSpec>,
    params: Params,
    stages: Vec<Stage>,
    /// Samples that pass all layers together: few enough for the cache, many enough for efficient
    /// matrix products.
    tile: usize,
    input: Vec<f32>,
    labels: Vec<u8>,
}

/// A layer with its share of the parameters and its output.
struct Stage {
    layer: Box<dyn Layer>,
    start: usize,
    end: usize,
    y: Vec<f32>,
    dy: Vec<f32>,
}

impl Network {
    /// A network of `layers` for data of the given shape; the last layer has one output per class.
    pub(crate) fn new(shape: DataShape, layers: Vec<Box<dyn Layer>>) -> Self {
        let mut tensors = Vec::new();
        let mut stages: Vec<Stage> = Vec::new();
        for layer in layers {
            let inputs = stages.last().map_or(shape.pixels(), |stage| stage.layer.outputs());
            assert_eq!(layer.inputs(), inputs, "layers fit together");
            let start = total_elements(&tensors);
            tensors.extend(layer.tensors());
            let end = total_elements(&tensors);
            stages.push(Stage { layer, start, end, y: vec![], dy: vec![] });
        }
        let params = Params::zeros(total_elements(&tensors));
        let values: usize = stages.iter().map(|stage| 2 * stage.layer.outputs()).sum();
        let tile = (CACHE / (values * size_of::<f32>())).clamp(8, 64);
        Self { shape, tensors, params, stages, tile, input: vec![], labels: vec![] }
    }

    /// Takes `samples` through all layers and leaves the gradient of the scores in the last one; stops
    /// at a layer if it is no longer `wanted`.
    fn forward(
        &mut self,
        data: &Dataset,
        samples: &[u32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<LossSum> {
        assert_eq!(data.shape(), self.shape, "the data that the model was built for");
        self.input.resize(samples.len() * self.shape.pixels(), 0.0);
        data.write_pixels(samples, &mut self.input);
        self.labels.clear();
        self.labels.extend(samples.iter().map(|&sample| data.label(sample as usize)));
        let mut x = &self.input;
        for Stage { layer, start, end, y, dy } in &mut self.stages {
            wanted().then_some(())?;
            y.resize(samples.len() * layer.outputs(), 0.0);
            dy.resize(y.len(), 0.0);
            layer.forward(&self.params[*start..*end], x, y);
            x = y;
        }
        Some(match self.stages.last_mut() {
            Some(stage) => cross_entropy(&stage.y, &self.labels, &mut stage.dy),
            None => LossSum::default(),
        })
    }

    /// Takes the gradient of the scores back through all layers, as long as it is `wanted`.
    fn backward(&mut self, grad: &mut [f32], wanted: &dyn Fn() -> bool) -> Option<()> {
        let mut stages = &mut self.stages[..];
        while let Some((Stage { layer, start, end, y, dy }, before)) = stages.split_last_mut() {
            wanted().then_some(())?;
            let (x, dx) = match before.last_mut() {
                Some(stage) => (&stage.y, Some(&mut stage.dy[..])),
                None => (&self.input, None),
            };
            let own = *start..*end;
            layer.backward(&self.params[own.clone()], Step { x, y, dy }, &mut grad[own], dx);
            stages = before;
        }
        Some(())
    }
}

impl Model for Network {
    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    fn init(&self, seed: u64) -> Vec<f32> {
        let streams = (0..).map(|index| RandomStream::new(seed, &[index]));
        let layers = self.stages.iter().zip(streams);
        layers.flat_map(|(stage, mut rng)| stage.layer.init(&mut rng)).collect()
    }

    fn load(&mut self, at: usize, params: &[f32]) {
        self.params.load(total_elements(&self.tensors), at, params);
    }

    fn keep(&mut self, params: KeptParams) {
        assert_eq!(params.len(), total_elements(&self.tensors), "one value per parameter");
        self.params = Params::Kept(params);
    }

    fn let_go(&mut self) {
        self.params.let_go();
    }

    fn gradient_while(
        &mut self,
        data: &Dataset,
        samples: &[u32],
        grad: &mut [f32],
        wanted: &dyn Fn() -> bool,
    ) -> Option<LossSum> {
        assert_eq!(grad.len(), total_elements(&self.tensors), "one value per parameter");
        let mut sum = LossSum::default();
        for samples in samples.chunks(self.tile) {
            sum += self.forward(data, samples, wanted)?;
            self.backward(grad, wanted)?;
        }
        Some(sum)
    }

    fn evaluate(&mut self, data: &Dataset) -> Evaluation {
        let all: Vec<u32> = (0..data.len() as u32).collect();
        let mut sum = LossSum::default();
        for samples in all.chunks(self.tile) {
            sum += self.forward(data, samples, &|| true).expect("it is wanted");
        }
        sum.mean()
    }
}
