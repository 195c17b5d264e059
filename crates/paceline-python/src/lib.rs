//! `paceline._native`, the native module of the Python package: conversion only.

mod analysis;
mod command_line;
mod interrupt;
mod trace;
mod worker;

use pyo3::pymodule;

/// The native part of the package `paceline`.
#[pymodule]
mod _native {
    /// The version of the package.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python has for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::{
        analysis::{analyze, simulate},
        command_line::main,
        trace::Trace,
        worker::{ConnectionLost, Worker, hash_values, lr_factor, offer},
    };
}
