"""The state of a replica as bytes: a safetensors file with the model and the optimizers in it.

Workers that join late or have to be repaired take it from another worker. It is never pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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
    header: dict[str, Any] = {"__metadata__": {"paceline": json.dumps(meta)}}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    blob = bytearray(8 + len(head) + at)
    blob[:8] = len(head).to_bytes(8, "little")
    blob[8 : 8 + len(head)] = head
    body = memoryview(blob)[8 + len(head) :]
    for name, tensor in tensors.items():
        start, end = header[name]["data_offsets"]
        if start < end:
            body[start:end] = _bytes_of(tensor)
    return blob


def unpack(blob: bytes | bytearray) -> tuple[dict[str, Tensor], Json]:
    """Reads what :func:`pack` wrote. Tensors share the memory of ``blob``."""
    buffer = bytearray(blob) if isinstance(blob, bytes) else blob
    length = int.from_bytes(buffer[:8], "little")
    header = json.loads(bytes(buffer[8 : 8 + length]))
    meta = json.loads(header.pop("__metadata__")["paceline"])
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        dtype, shape = _NAMES[entry["dtype"]], entry["shape"]
        if start == end:
            tensors[name] = torch.empty(shape, dtype=dtype)
            continue
        offset = 8 + length + start
        count = (end - start) // dtype.itemsize
        flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
        tensors[name] = flat.reshape(shape)
    return tensors, meta


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())


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
