//! Paceline's data sets and native models.
//!
//! A worker loads the training half of a [`DataSource`], [`build`]s a [`Model`] for its shape, takes
//! flat parameters in and gives summed gradients out. Layers are written by hand on
//! [`paceline_params::matmul`] and a convolution of our own: on one core, in batches of 64, the CNN
//! runs seven times as fast as the same network on burn's autodiff, the MLP twice. burn is the
//! reference in a test instead (feature `burn`).
//!
//! [`Workload`] is a model with both halves of its data; [`NativeCompute`] computes its gradients for a
//! worker.

mod adjoint;
mod average;
mod bordered;
mod cifar;
mod conv;
mod costs;
mod dataset;
pub mod embedded;
mod error;
mod file;
mod idx;
mod kernel;
mod layer;
mod linear;
mod loss;
mod model;
mod network;
mod params;
mod pool;
mod residual;
mod rng;
mod source;
mod spec;
mod standard;
mod synthetic;
mod threads;
mod workload;
mod zoo;

pub use costs::CostSpec;
pub use dataset::{DataShape, Dataset};
pub use error::{CifarFault, DataError, IdxFault};
pub use model::{Evaluation, KeptParams, LossSum, Model, ModelError, build, total_elements};
pub use paceline_params::TensorSpec;
pub use source::{Data, DataSource, Split};
pub use spec::ModelSpec;
pub use threads::single_threaded;
pub use workload::{NativeCompute, Workload, WorkloadError};
