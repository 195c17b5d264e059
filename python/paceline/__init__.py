"""Synchronous SGD on machines that do not all keep the same pace.

Importing this package imports neither torch nor NumPy and does nothing else either: each name below
is loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import Any

# Each public name and the module that defines it.
_MODULES: dict[str, str] = {}

__all__ = list(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
