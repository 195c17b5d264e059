//! States: what workers exchange through the server, as bytes of a safetensors file.

use std::sync::Arc;

use paceline_core::Version;
use paceline_params::{FlatVec, Half, TensorSpec, all_finite, widen};
use paceline_wire::{frame::MAX_CHUNK, offer::StateHead};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// Bytes that a state may have for each parameter: the parameter, its optimizer's state, and as much again.
const BYTES_PER_PARAMETER: u64 = 64;

/// Bytes that any state may have besides.
const BYTES_BESIDES: u64 = 64 << 20;

/// The most bytes of frozen parameters and buffers: the server keeps a state in memory.
pub(crate) const MAX_FROZEN_BYTES: u64 = 64 << 30;

/// Prefix of the parameters' names in a state.
const PARAMETERS: &str = "model.";

/// A state and the version that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct StateBlob {
    pub(crate) version: Version,
    pub(crate) bytes: Arc<Vec<u8>>,
}

impl StateBlob {
    /// The longest state of a model with `parameters` that are trained, and `frozen_bytes` of others.
    pub(crate) fn bound(parameters: usize, frozen_bytes: u64) -> u64 {
        let trained = BYTES_PER_PARAMETER.saturating_mul(parameters as u64);
        BYTES_BESIDES.saturating_add(trained).saturating_add(frozen_bytes)
    }

    pub(crate) fn head(&self) -> StateHead {
        StateHead { version: self.version, bytes: self.bytes.len() as u64 }
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(MAX_CHUNK)
    }

    /// Whether the state is a safetensors file, without looking at the tensors.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.file().map(drop)
    }

    fn file(&self) -> Result<SafeTensors<'_>, String> {
        SafeTensors::deserialize(&self.bytes)
            .map_err(|error| format!("the state is no safetensors file: {error}"))
    }

    /// The values of `tensors`, one after the other.
    pub(crate) fn parameters(&self, tensors: &[TensorSpec]) -> Result<FlatVec, String> {
        let file = self.file()?;
        let mut values = Vec::new();
        for TensorSpec { name, shape, .. } in tensors {
            let tensor = file
                .tensor(&format!("{PARAMETERS}{name}"))
                .map_err(|_| format!("the state has no tensor `{PARAMETERS}{name}`"))?;
            if tensor.shape() != shape {
                return Err(format!(
                    "tensor `{name}` has shape {:?} in the state and {shape:?} in the offer",
                    tensor.shape()
                ));
            }
            let before = values.len();
            append(&tensor, &mut values).map_err(|error| format!("tensor `{name}`: {error}"))?;
            if all_finite(&values[before..]).is_err() {
                return Err(format!("tensor `{name}` has values that are not finite"));
            }
        }
        Ok(FlatVec::from(values))
    }
}

fn append(tensor: &TensorView<'_>, values: &mut Vec<f32>) -> Result<(), String> {
    let half = match tensor.dtype() {
        Dtype::F32 => None,
        Dtype::F16 => Some(Half::F16),
        Dtype::BF16 => Some(Half::Bf16),
        other => return Err(format!("its type is {other:?}; use F32, F16 or BF16")),
    };
    let Some(half) = half else {
        let (four, _) = tensor.data().as_chunks();
        values.extend(four.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        return Ok(());
    };
    let (two, _) = tensor.data().as_chunks();
    let bits: Vec<u16> = two.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect();
    let before = values.len();
    values.resize(before + bits.len(), 0.0);
    widen(half, &bits, &mut values[before..]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with one tensor.
    fn state(name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> StateBlob {
        let tensor = TensorView::new(dtype, shape.to_vec(), data).unwrap();
        let bytes = safetensors::serialize([(name, tensor)], None).unwrap();
        StateBlob { version: Version(0), bytes: Arc::new(bytes) }
    }

    fn error(blob: &StateBlob) -> String {
        blob.parameters(&[TensorSpec::new("w", [2])]).unwrap_err()
    }

    #[test]
    fn parameters_are_read_from_floats_and_halves() {
        let wanted = [TensorSpec::new("w", [2])];
        let values = [1.5f32, -2.0];
        let cases: [(Dtype, Vec<u8>); 3] = [
            (Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            (Dtype::F16, [0x3e00u16, 0xc000].iter().flat_map(|v| v.to_le_bytes()).collect()),
            (Dtype::BF16, [0x3fc0u16, 0xc000].iter().flat_map(|v| v.to_le_bytes()).collect()),
        ];
        for (dtype, data) in cases {
            let read = state("model.w", dtype, &[2], &data).parameters(&wanted).unwrap();
            assert_eq!(read.into_vec(), values, "{dtype:?}");
        }
    }

    #[test]
    fn states_that_do_not_fit_are_refused_by_tensor() {
        let eight = [0; 8];
        assert!(
            error(&StateBlob { version: Version(0), bytes: Arc::new(vec![7; 20]) })
                .contains("no safe")
        );
        let other = error(&state("w", Dtype::F32, &[2], &eight));
        assert_eq!(other, "the state has no tensor `model.w`");
        let shape = error(&state("model.w", Dtype::F32, &[2, 1], &eight));
        assert_eq!(shape, "tensor `w` has shape [2, 1] in the state and [2] in the offer");
        let wide = error(&state("model.w", Dtype::F64, &[2], &[0; 16]));
        assert_eq!(wide, "tensor `w`: its type is F64; use F32, F16 or BF16");
        let infinite: Vec<u8> = [f32::INFINITY; 2].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(error(&state("model.w", Dtype::F32, &[2], &infinite)).contains("not finite"));
    }
}
