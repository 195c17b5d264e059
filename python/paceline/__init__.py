"""Synchronous SGD on machines that do not all keep the same pace.

Importing this package imports neither torch nor NumPy and does nothing else: each name below is
loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline._native import __version__ as __version__
    from paceline.analysis import Analysis, Simulation, analyze, simulate
    from paceline.arrays import ArraySession, init_arrays
    from paceline.data import LedgerLoader
    from paceline.errors import PacelineError, RunEnded
    from paceline.prepare import init
    from paceline.recorder import Recorder, record
    from paceline.session import Session
    from paceline.step import Step

__all__ = [
    "Analysis",
    "ArraySession",
    "LedgerLoader",
    "PacelineError",
    "Recorder",
    "RunEnded",
    "Session",
    "Simulation",
    "Step",
    "analyze",
    "init",
    "init_arrays",
    "record",
    "simulate",
]

# The module of each name.
_MODULES = {
    "Analysis": "paceline.analysis",
    "ArraySession": "paceline.arrays",
    "LedgerLoader": "paceline.data",
    "PacelineError": "paceline.errors",
    "Recorder": "paceline.recorder",
    "RunEnded": "paceline.errors",
    "Session": "paceline.session",
    "Simulation": "paceline.analysis",
    "Step": "paceline.step",
    "__version__": "paceline._native",
    "analyze": "paceline.analysis",
    "init": "paceline.prepare",
    "init_arrays": "paceline.arrays",
    "record": "paceline.recorder",
    "simulate": "paceline.analysis",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
