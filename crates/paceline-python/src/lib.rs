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
    #[pymodule_export]
    use crate::{
        analysis::{analyze, simulate},
        command_line::main,
        trace::Trace,
        worker::{ConnectionLost, Worker, hash_values, lr_factor, offer},
    };
}
