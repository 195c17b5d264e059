//! Paceline's data sets and native models.
//!
//! A worker loads the training half of a [`DataSource`], [`build`]s a [`Model`] for its shape, takes
//! flat parameters in and gives summed gradients out. Layers are written by hand on the [`gemm`]
//! crate and a convolution of our own: on one core the CNN runs five times as fast as on a general
//! autodiff library, which serves as the reference in tests instead.

mod conv;
mod dataset;
pub mod embedded;
mod error;
mod idx;
mod kernel;
mod layer;
mod linear;
mod loss;
mod matmul;
mod model;
mod network;
mod pool;
mod rng;
mod source;
mod spec;
mod synthetic;
mod tensor;
mod threads;
mod zoo;

pub use dataset::{DataShape, Dataset};
pub use error::{DataError, IdxFault};
pub use model::{Evaluation, LossSum, Model, ModelError, build};
pub use source::{Data, DataSource, Half};
pub use spec::ModelSpec;
pub use tensor::{TensorSpec, total_elements};
pub use threads::single_threaded;
