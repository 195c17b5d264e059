//! The networks by name.

use crate::average::Average;
use crate::bordered::Filters;
use crate::conv::Conv;
use crate::kernel::LANES;
use crate::layer::Layer;
use crate::linear::Linear;
use crate::network::Network;
use crate::pool::Pool;
use crate::residual::{GAIN, Residual};
use crate::standard::Standard;
use crate::{DataShape, ModelError, ModelSpec};

/// The least height and width of an image for the CNN, which pools twice.
const CNN_SIDE: usize = 14;

/// The least height and width of an image for the residual network: 2×2 are left to average.
const RESNET_SIDE: usize = 8;

/// Softmax regression: scores are linear in the pixels; 7,850 parameters for MNIST.
pub(crate) fn softmax(shape: DataShape) -> Network {
    Network::new(shape, vec![Box::new(Linear::new("fc", shape.pixels(), shape.classes))])
}

/// Two hidden layers of 256 and 128; 235,146 parameters for MNIST.
pub(crate) fn mlp(shape: DataShape) -> Network {
    Network::new(
        shape,
        vec![
            Box::new(Linear::new("fc1", shape.pixels(), 256).rectified()),
            Box::new(Linear::new("fc2", 256, 128).rectified()),
            Box::new(Linear::new("fc3", 128, shape.classes)),
        ],
    )
}

/// Convolutions of 5×5 and 3×3 with 16 filters each, both pooled, and a hidden layer of 64; 53,626
/// parameters for MNIST, 69,786 for CIFAR-10.
///
/// # Errors
///
/// Refuses images too small to be pooled twice.
pub(crate) fn cnn(shape: DataShape) -> Result<Network, ModelError> {
    let DataShape { channels, height, width, classes } = shape;
    check_side(ModelSpec::Cnn, CNN_SIDE, shape)?;
    let (half, quarter) = ([height / 2, width / 2], [height / 4, width / 4]);
    let filters = |side| Filters { count: LANES, side, stride: 1 };
    Ok(Network::new(
        shape,
        vec![
            Box::new(Conv::new("conv1", [height, width, channels], filters(5))),
            Box::new(Pool::new([height, width])),
            Box::new(Conv::new("conv2", [half[0], half[1], LANES], filters(3))),
            Box::new(Pool::new(half)),
            Box::new(Linear::new("fc1", quarter[0] * quarter[1] * LANES, 64).rectified()),
            Box::new(Linear::new("fc2", 64, classes)),
        ],
    ))
}

/// A convolution of 3×3, three residual blocks of 16, 32 and 64 channels, the last two with half the
/// height and width of the one before, an average over all pixels and a linear layer; 77,706
/// parameters for CIFAR-10, 77,418 for MNIST.
///
/// # Errors
///
/// Refuses images too small to be halved twice.
pub(crate) fn resnet(shape: DataShape) -> Result<Network, ModelError> {
    let DataShape { channels, height, width, classes } = shape;
    check_side(ModelSpec::Resnet, RESNET_SIDE, shape)?;
    let filters = Filters { count: 16, side: 3, stride: 1 };
    let stem = Conv::new("conv", [height, width, channels], filters).gain(GAIN);
    let block1 = Residual::new("block1", stem.size_out(), 16, 1);
    let block2 = Residual::new("block2", block1.size_out(), 32, 2);
    let block3 = Residual::new("block3", block2.size_out(), 64, 2);
    let standard = Standard::new(block3.outputs());
    let average = Average::new(block3.size_out());
    let linear = Linear::new("fc", average.outputs(), classes);
    Ok(Network::new(
        shape,
        vec![
            Box::new(stem),
            Box::new(block1),
            Box::new(block2),
            Box::new(block3),
            Box::new(standard),
            Box::new(average),
            Box::new(linear),
        ],
    ))
}

fn check_side(model: ModelSpec, side: usize, shape: DataShape) -> Result<(), ModelError> {
    if shape.height.min(shape.width) < side {
        return Err(ModelError::Images { model, side, shape });
    }
    Ok(())
}
