"""The state of a replica as bytes: a safetensors file with the model and the optimizers in it.

Workers that join late or have to be repaired take it from another worker. It is never pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import PacelineError
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
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}

Json = Any
"""A value that ``json`` writes."""


def pack(tensors: Mapping[str, Tensor], meta: Json) -> bytearray:
    """Writes tensors and a JSON value as a safetensors file."""
    entries = ((name, _entry(name, tensor)) for name, tensor in tensors.items())
    return write(entries, {"paceline": json.dumps(meta)})


def unpack(blob: bytes | bytearray) -> tuple[dict[str, Tensor], Json]:
    """Reads what :func:`pack` wrote."""
    entries, metadata = read(bytearray(blob))
    tensors = {name: _tensor(entry) for name, entry in entries.items()}
    return tensors, json.loads(metadata["paceline"])


def _entry(name: str, tensor: Tensor) -> Entry:
    if tensor.dtype not in _DTYPES:
        raise PacelineError(
            f"`{name.removeprefix('model.')}` is {tensor.dtype}, which a safetensors file cannot hold: convert "
            "it, or register the buffer with persistent=False"
        )
    shape = tuple(tensor.shape)
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Entry(_DTYPES[tensor.dtype], shape, flat.numpy().data)


def _tensor(entry: Entry) -> Tensor:
    dtype = _NAMES[entry.dtype]
    if not entry.data.nbytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(entry.data, dtype=dtype).reshape(entry.shape)


_PLACE = "paceline.tensor"
"""The key under which :func:`without_tensors` notes a tensor's path."""


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors inside a value, with their paths."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from tensors_in(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from tensors_in(inner, f"{path}/{place}")


def without_tensors(value: Any, path: str) -> Json:
    """A value with the paths of its tensors in their place, for :func:`with_tensors`."""
    if isinstance(value, Tensor):
        return {_PLACE: path}
    if isinstance(value, Mapping):
        return {str(key): without_tensors(inner, f"{path}/{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_tensors(inner, f"{path}/{place}") for place, inner in enumerate(value)]
    return plain(value)


def with_tensors(value: Json, tensor: Callable[[str], Tensor]) -> Any:
    """A value with the tensors that ``tensor`` finds at their paths."""
    if isinstance(value, dict):
        if _PLACE in value:
            return tensor(value[_PLACE])
        return {key: with_tensors(inner, tensor) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_tensors(inner, tensor) for inner in value]
    return value


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
