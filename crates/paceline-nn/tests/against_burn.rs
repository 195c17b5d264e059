//! The hand-written layers against burn's autodiff, an implementation that shares nothing with them.

use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use paceline_nn::{Dataset, ModelSpec, Split, TensorSpec, build, embedded};

const SAMPLES: [u32; 12] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8];

/// Takes one tensor's gradient out of all gradients.
type TakeGradient = Box<dyn Fn(&mut Gradients) -> Vec<f32>>;

/// Flat parameters as burn's tensors, handed out in order.
struct Params<'a> {
    rest: &'a [f32],
    tensors: std::slice::Iter<'a, TensorSpec>,
    device: Device,
    /// One per tensor handed out, in order.
    grads: Vec<TakeGradient>,
}

impl Params<'_> {
    fn next<const D: usize>(&mut self) -> Tensor<D> {
        let spec = self.tensors.next().unwrap();
        let (values, rest) = self.rest.split_at(spec.len());
        self.rest = rest;
        let data = TensorData::new(values.to_vec(), spec.shape.clone());
        let tensor = Tensor::<D>::from_data(data, &self.device).require_grad();
        let leaf = tensor.clone();
        self.grads.push(Box::new(move |grads| {
            leaf.grad_remove(grads).unwrap().into_data().try_to_vec().unwrap()
        }));
        tensor
    }

    fn linear(&mut self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.next::<2>()) + self.next::<1>().unsqueeze()
    }

    /// A convolution whose places have their middle on pixels; burn has channels first.
    fn conv(&mut self, x: Tensor<4>, stride: usize) -> Tensor<4> {
        let weight = self.next::<4>();
        let half = weight.dims()[0] / 2;
        let options = ConvOptions::new([stride, stride], [half, half], [1, 1], 1);
        conv2d(x, weight.permute([3, 2, 0, 1]), Some(self.next::<1>()), options)
    }

    /// A convolution that keeps height and width, then rectified pooling.
    fn pooled(&mut self, x: Tensor<4>) -> Tensor<4> {
        let y = self.conv(x, 1);
        let pool = MaxPoolOptions {
            kernel_size: [2, 2],
            stride: [2, 2],
            padding: [(0, 0), (0, 0)],
            dilation: [1, 1],
            ceil_mode: false,
        };
        max_pool2d(relu(y), pool)
    }

    /// A residual block, with a convolution for its shortcut if it has a stride.
    fn block(&mut self, x: Tensor<4>, stride: usize) -> Tensor<4> {
        let input = standard(x.clone());
        let hidden = standard(self.conv(input.clone(), stride));
        let branch = self.conv(hidden, 1);
        branch + if stride == 1 { x } else { self.conv(input, stride) }
    }

    fn scores(&mut self, spec: ModelSpec, x: Tensor<2>) -> Tensor<2> {
        match spec {
            ModelSpec::Softmax => self.linear(x),
            ModelSpec::Mlp => {
                let x = relu(self.linear(x));
                let x = relu(self.linear(x));
                self.linear(x)
            }
            ModelSpec::Resnet => {
                let samples = x.dims()[0];
                let x = self.conv(x.reshape([samples, 1, 28, 28]), 1);
                let x = self.block(x, 1);
                let x = self.block(x, 2);
                let x = standard(self.block(x, 2));
                self.linear(x.mean_dim(2).mean_dim(3).reshape([samples, 64]))
            }
            _ => {
                let samples = x.dims()[0];
                let x = self.pooled(x.reshape([samples, 1, 28, 28]));
                let x = self.pooled(x).permute([0, 2, 3, 1]).reshape([samples, 784]);
                let x = relu(self.linear(x));
                self.linear(x)
            }
        }
    }
}

/// Each sample shifted and scaled to mean 0 and deviation 1, then rectified.
fn standard(x: Tensor<4>) -> Tensor<4> {
    let centred = x.clone() - x.mean_dims(&[1, 2, 3]);
    let variance = centred.clone().powi_scalar(2).mean_dims(&[1, 2, 3]);
    relu(centred / (variance + 1e-5).sqrt())
}

/// Loss and flat gradient by burn.
fn reference(
    spec: ModelSpec,
    tensors: &[TensorSpec],
    params: &[f32],
    data: &Dataset,
) -> (f64, Vec<f32>) {
    let device = Device::flex().autodiff();
    let mut pixels = vec![0.0; SAMPLES.len() * 784];
    data.write_pixels(&SAMPLES, &mut pixels);
    let x = Tensor::from_data(TensorData::new(pixels, [SAMPLES.len(), 784]), &device);
    let labels: Vec<i32> = SAMPLES.iter().map(|&i| i32::from(data.label(i as usize))).collect();
    let labels = TensorData::new(labels, [SAMPLES.len(), 1]);
    let labels = Tensor::<2, Int>::from_data(labels, &device);
    let mut params = Params { rest: params, tensors: tensors.iter(), device, grads: Vec::new() };
    let loss = -log_softmax(params.scores(spec, x), 1).gather(1, labels).sum();
    let mut grads = loss.backward();
    let grad = params.grads.iter().flat_map(|take| take(&mut grads)).collect();
    (f64::from(loss.into_scalar::<f32>()), grad)
}

#[test]
fn every_model_agrees_with_burn() {
    let data = embedded::generate(Split::Test, 9).head(10);
    for spec in [ModelSpec::Softmax, ModelSpec::Mlp, ModelSpec::Cnn, ModelSpec::Resnet] {
        let mut model = build(spec, data.shape()).unwrap();
        let params = model.init(4);
        model.load(0, &params);
        let mut grad = vec![0.0; params.len()];
        let sum = model.gradient(&data, &SAMPLES, &mut grad);
        let (loss, expected) = reference(spec, model.tensors(), &params, &data);
        assert!((sum.loss - loss).abs() < 1e-5 * loss, "{spec}: {} against {loss}", sum.loss);
        let scale = expected.iter().fold(0.0, |max: f32, value| max.max(value.abs()));
        for (i, (found, expected)) in grad.iter().zip(&expected).enumerate() {
            let error = (found - expected).abs();
            assert!(error < 1e-4 * scale, "{spec}, parameter {i}: {found} against {expected}");
        }
    }
}
