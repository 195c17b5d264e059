"""The safetensors format: a header in JSON, then the bytes of all tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: its type and shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def write(entries: Iterable[tuple[str, Entry]], metadata: dict[str, str]) -> bytearray:
    """A file with these tensors."""
    listed = list(entries)
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, entry in listed:
        end = at + entry.data.nbytes
        header[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, end],
        }
        at = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    file = bytearray(8 + len(head) + at)
    file[:8] = len(head).to_bytes(8, "little")
    file[8 : 8 + len(head)] = head
    body = memoryview(file)[8 + len(head) :]
    for name, entry in listed:
        start, end = header[name]["data_offsets"]
        body[start:end] = entry.data.cast("B")
    return file


def read(file: bytearray) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors of a file, which share its memory, and its metadata."""
    length = int.from_bytes(file[:8], "little")
    header = json.loads(bytes(file[8 : 8 + length]))
    metadata = header.pop("__metadata__", {})
    body = memoryview(file)[8 + length :]
    entries = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        entries[name] = Entry(entry["dtype"], tuple(entry["shape"]), body[start:end])
    return entries, metadata
