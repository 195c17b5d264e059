"""The state of a replica as bytes: a safetensors file with the model and the optimizers in it.

Workers that join late or have to be repaired take it from another worker. It is never pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .safetensors import Entry, read, write

_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}

Json = Any
"""A value that ``json`` writes."""


def pack(tensors: Mapping[str, Tensor], meta: Json) -> bytearray:
    """Writes tensors and a JSON value as a safetensors file."""
    entries = ((name, _entry(tensor)) for name, tensor in tensors.items())
    return write(entries, {"paceline": json.dumps(meta)})


def unpack(blob: bytes | bytearray) -> tuple[dict[str, Tensor], Json]:
    """Reads what :func:`pack` wrote."""
    entries, metadata = read(bytearray(blob))
    tensors = {name: _tensor(entry) for name, entry in entries.items()}
    return tensors, json.loads(metadata["paceline"])


def _entry(tensor: Tensor) -> Entry:
    shape = tuple(tensor.shape)
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Entry(_DTYPES[tensor.dtype], shape, flat.numpy().data)


def _tensor(entry: Entry) -> Tensor:
    dtype = _NAMES[entry.dtype]
    if not entry.data.nbytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(entry.data, dtype=dtype).reshape(entry.shape)


def plain(value: Any) -> Json:
    """The part of ``value`` that JSON can hold: numbers, texts, lists and dicts of them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, Mapping):
        held = ((str(key), plain(inner)) for key, inner in value.items())
        return {key: inner for key, inner in held if inner is not None}
    if isinstance(value, Sequence):
        return [plain(inner) for inner in value]
    return None
