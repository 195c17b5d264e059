//! Laws of every model's gradient.

use paceline_nn::{DataShape, Dataset, LossSum, Model, ModelSpec, Split, build, embedded};
use paceline_nn::{TensorSpec, total_elements};

const MODELS: [ModelSpec; 4] =
    [ModelSpec::Softmax, ModelSpec::Mlp, ModelSpec::Cnn, ModelSpec::Resnet];

fn data() -> Dataset {
    embedded::generate(Split::Test, 5).head(80)
}

/// A few images in colour.
fn coloured() -> Dataset {
    let pixels = (0..5 * 3072u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    Dataset::new("coloured", DataShape::CIFAR, pixels, vec![0, 2, 4, 6, 8]).unwrap()
}

/// A model with its initial parameters loaded.
fn model(spec: ModelSpec, data: &Dataset) -> (Box<dyn Model>, Vec<f32>) {
    let mut model = build(spec, data.shape()).unwrap();
    let params = model.init(3);
    model.load(0, &params);
    (model, params)
}

fn gradient(model: &mut dyn Model, data: &Dataset, samples: &[u32]) -> (LossSum, Vec<f32>) {
    let mut grad = vec![0.0; total_elements(model.tensors())];
    let sum = model.gradient(data, samples, &mut grad);
    (sum, grad)
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

/// The tensors' ranges in the flat vector.
fn spans(tensors: &[TensorSpec]) -> Vec<(String, std::ops::Range<usize>)> {
    let mut start = 0;
    let span = |tensor: &TensorSpec| {
        let span = start..start + tensor.len();
        start = span.end;
        (tensor.name.clone(), span)
    };
    tensors.iter().map(span).collect()
}

/// Along its own direction the loss must rise by the gradient's norm. Were a part e of the computed
/// gradient wrong, the slope would miss the norm by what e takes away, except in the one case that
/// the error is orthogonal to the result; so each tensor is checked by itself.
#[track_caller]
fn check_slopes(spec: ModelSpec, data: &Dataset) {
    let samples = [0, 1, 2, 3, 4];
    let (mut model, params) = model(spec, data);
    let (_, grad) = gradient(&mut *model, data, &samples);
    for (name, span) in spans(model.tensors()) {
        let slope = norm(&grad[span.clone()]);
        // Short, since every maximum that changes hands and every value that is rectified on the way
        // bends the loss.
        let step = 0.0003 / slope.max(1.0);
        let mut loss = |sign: f64| {
            let mut moved = params.clone();
            for at in span.clone() {
                moved[at] += (sign * step / slope * f64::from(grad[at])) as f32;
            }
            model.load(0, &moved);
            gradient(&mut *model, data, &samples).0.loss
        };
        let found = (loss(1.0) - loss(-1.0)) / (2.0 * step);
        // So short a step sees the rounding of the loss, too.
        assert!(
            (found - slope).abs() < 0.01 * slope + 0.003,
            "{spec} {name}: the loss rises by {found}, the gradient says {slope}"
        );
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for spec in MODELS {
        check_slopes(spec, &data());
        check_slopes(spec, &coloured());
    }
}

#[test]
fn the_gradient_of_a_batch_is_the_sum_over_its_parts() {
    let data = data();
    let samples: Vec<u32> = (0..75).collect();
    for spec in MODELS {
        let (mut model, _) = model(spec, &data);
        let (whole, expected) = gradient(&mut *model, &data, &samples);
        let mut sum = LossSum::default();
        let mut grad = vec![0.0; expected.len()];
        for part in [&samples[..1], &samples[1..12], &samples[12..]] {
            sum += model.gradient(&data, part, &mut grad);
        }
        assert_eq!((sum.correct, sum.samples), (whole.correct, 75));
        assert!((sum.loss - whole.loss).abs() < 1e-4 * whole.loss, "{spec}");
        let error: Vec<f32> = grad.iter().zip(&expected).map(|(a, b)| a - b).collect();
        assert!(norm(&error) < 1e-5 * norm(&expected), "{spec}: {}", norm(&error));
    }
}

#[test]
fn the_same_inputs_give_the_same_bits() {
    let data = data();
    let samples: Vec<u32> = (0..67).rev().collect();
    for spec in MODELS {
        let (mut first, params) = model(spec, &data);
        let expected = gradient(&mut *first, &data, &samples);
        // A used model, one on another thread, and buffers that lie elsewhere in memory.
        assert_eq!(gradient(&mut *first, &data, &samples), expected, "{spec}");
        let other = std::thread::scope(|scope| {
            let compute = || {
                let _shift = vec![0u8; 1001];
                let mut other = build(spec, data.shape()).unwrap();
                other.load(0, &params);
                gradient(&mut *other, &data, &samples)
            };
            scope.spawn(compute).join().unwrap()
        });
        assert_eq!(other, expected, "{spec}");
    }
}

#[test]
fn evaluation_agrees_with_the_loss_sum_over_all_samples() {
    let data = data();
    let all: Vec<u32> = (0..data.len() as u32).collect();
    for spec in MODELS {
        let (mut model, _) = model(spec, &data);
        let mean = gradient(&mut *model, &data, &all).0.mean();
        assert_eq!(model.evaluate(&data), mean, "{spec}");
    }
}

#[test]
fn no_samples_add_nothing() {
    let data = data();
    for spec in MODELS {
        let (mut model, _) = model(spec, &data);
        let (sum, grad) = gradient(&mut *model, &data, &[]);
        assert_eq!(sum, LossSum::default());
        assert!(grad.iter().all(|&value| value == 0.0));
    }
}

#[test]
fn layouts_are_stable() {
    let layout = |spec| {
        let model = build(spec, DataShape::MNIST).unwrap();
        let tensors = model.tensors();
        let names: Vec<String> =
            tensors.iter().map(|t| format!("{}{:?}", t.name, t.shape)).collect();
        (names.join(" "), total_elements(tensors))
    };
    assert_eq!(layout(ModelSpec::Softmax), ("fc.weight[784, 10] fc.bias[10]".into(), 7_850));
    assert_eq!(
        layout(ModelSpec::Mlp),
        (
            "fc1.weight[784, 256] fc1.bias[256] fc2.weight[256, 128] fc2.bias[128] \
             fc3.weight[128, 10] fc3.bias[10]"
                .into(),
            235_146
        )
    );
    assert_eq!(
        layout(ModelSpec::Cnn),
        (
            "conv1.weight[5, 5, 1, 16] conv1.bias[16] conv2.weight[3, 3, 16, 16] conv2.bias[16] \
             fc1.weight[784, 64] fc1.bias[64] fc2.weight[64, 10] fc2.bias[10]"
                .into(),
            53_626
        )
    );
    assert_eq!(
        layout(ModelSpec::Resnet),
        (
            "conv.weight[3, 3, 1, 16] conv.bias[16] \
             block1.conv1.weight[3, 3, 16, 16] block1.conv1.bias[16] \
             block1.conv2.weight[3, 3, 16, 16] block1.conv2.bias[16] \
             block2.conv1.weight[3, 3, 16, 32] block2.conv1.bias[32] \
             block2.conv2.weight[3, 3, 32, 32] block2.conv2.bias[32] \
             block2.shortcut.weight[1, 1, 16, 32] block2.shortcut.bias[32] \
             block3.conv1.weight[3, 3, 32, 64] block3.conv1.bias[64] \
             block3.conv2.weight[3, 3, 64, 64] block3.conv2.bias[64] \
             block3.shortcut.weight[1, 1, 32, 64] block3.shortcut.bias[64] \
             fc.weight[64, 10] fc.bias[10]"
                .into(),
            77_418
        )
    );
    assert_eq!(layout(ModelSpec::Synthetic { params: 5 }), ("synthetic.weight[5]".into(), 5));
}

#[test]
fn images_in_colour_cost_the_first_layer_alone_more_parameters() {
    let params = |spec, shape| total_elements(build(spec, shape).unwrap().tensors());
    assert_eq!(params(ModelSpec::Softmax, DataShape::CIFAR), 30_730);
    assert_eq!(params(ModelSpec::Cnn, DataShape::CIFAR), 69_786);
    assert_eq!(params(ModelSpec::Resnet, DataShape::CIFAR), 77_706);
}

#[test]
fn initial_parameters_depend_on_the_seed_alone() {
    for spec in MODELS {
        let model = build(spec, DataShape::MNIST).unwrap();
        assert_eq!(model.init(1), build(spec, DataShape::MNIST).unwrap().init(1));
        assert_ne!(model.init(1), model.init(2));
    }
    let first = build(ModelSpec::Cnn, DataShape::MNIST).unwrap().init(1);
    assert_eq!(first[..3], [-0.183_686_45, 0.075_623_41, 0.192_610_76]);
}

#[test]
fn convolutions_take_other_sizes_and_refuse_what_is_too_small() {
    let shape = |channels, height, width| DataShape { channels, height, width, classes: 10 };
    let pixels: Vec<u8> = (0..17 * 30 * 3u32).map(|i| (i * i % 251) as u8).collect();
    let grey = Dataset::new("odd", shape(1, 17, 30), pixels.clone(), vec![1, 2, 3]).unwrap();
    let odd = Dataset::new("odd", shape(3, 17, 30), pixels, vec![1]).unwrap();
    for (spec, side) in [(ModelSpec::Cnn, 14), (ModelSpec::Resnet, 8)] {
        for data in [&grey, &odd] {
            let (mut model, _) = model(spec, data);
            let (sum, grad) = gradient(&mut *model, data, &[0]);
            assert!(sum.loss.is_finite() && norm(&grad) > 0.0);
        }
        for refused in [shape(3, side - 1, 28), shape(1, 28, 2)] {
            let error = build(spec, refused).err().unwrap().to_string();
            let needs = format!("{spec} needs images of at least {side}×{side}");
            assert_eq!(error, format!("{needs}, the data is {refused}"));
        }
    }
}

#[test]
fn what_is_no_longer_wanted_is_given_up_between_layers() {
    let data = data();
    for spec in MODELS {
        let (mut model, _) = model(spec, &data);
        let samples: Vec<u32> = (0..80).collect();
        let (sum, whole) = gradient(&mut *model, &data, &samples);
        let asked = std::cell::Cell::new(0);
        let mut while_asked = |times: u32| {
            asked.set(0);
            let wanted = || asked.replace(asked.get() + 1) < times;
            let mut grad = vec![0.0; whole.len()];
            let sum = model.gradient_while(&data, &samples, &mut grad, &wanted);
            sum.map(|sum| (sum, grad))
        };
        assert_eq!(while_asked(u32::MAX), Some((sum, whole.clone())), "{spec}");
        let often = asked.get();
        assert!(often >= 4, "{spec} asked {often} times");
        assert_eq!(while_asked(often - 1), None, "{spec}");
        assert_eq!(asked.get(), often, "{spec} went on");
    }
}
