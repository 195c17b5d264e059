//! The networks by name.

use crate::conv::Conv;
use crate::kernel::LANES;
use crate::linear::Linear;
use crate::network::Network;
use crate::pool::Pool;
use crate::{DataShape, ModelError, ModelSpec};

/// The least height and width of an image for the CNN.
const CNN_SIDE: usize = 14;

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
/// parameters for MNIST.
///
/// # Errors
///
/// Refuses images in colour (pixels of a data set lie channel by channel, those of a layer side by
/// side) and images too small to be pooled twice.
pub(crate) fn cnn(shape: DataShape) -> Result<Network, ModelError> {
    let DataShape { channels, height, width, classes } = shape;
    if channels != 1 || height.min(width) < CNN_SIDE {
        return Err(ModelError::Images { model: ModelSpec::Cnn, side: CNN_SIDE, shape });
    }
    let (half, quarter) = ([height / 2, width / 2], [height / 4, width / 4]);
    Ok(Network::new(
        shape,
        vec![
            Box::new(Conv::new("conv1", [height, width, 1], 5)),
            Box::new(Pool::new([height, width])),
            Box::new(Conv::new("conv2", [half[0], half[1], LANES], 3)),
            Box::new(Pool::new(half)),
            Box::new(Linear::new("fc1", quarter[0] * quarter[1] * LANES, 64).rectified()),
            Box::new(Linear::new("fc2", 64, classes)),
        ],
    ))
}
