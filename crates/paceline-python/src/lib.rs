//! `paceline._native`, the native module of the Python package: conversion only.

mod command_line;
mod worker;

use pyo3::pymodule;

/// The native part of the package `paceline`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::command_line::main;
    #[pymodule_export]
    use crate::worker::{Worker, hash_values, lr_factor, offer};
}
