"""The native part of the package `paceline`."""

from collections.abc import Sequence
from os import PathLike
from typing import final

def main(arguments: Sequence[str], program: Sequence[str]) -> int:
    """Runs the command line with these arguments and returns its exit code. `program` is the command
    that starts it again, for the processes of a run."""

def analyze(
    trace: Trace, overhead: float, noise_scale: float | None, run_hours: float
) -> tuple[str, str, str]:
    """Analyses a trace; returns the analysis as JSON, as text and as an HTML page."""

def simulate(
    trace: Trace,
    policies: Sequence[str],
    seeds: int,
    straggler: str,
    overhead: str,
    quorum: int,
) -> tuple[list[str], str, str]:
    """Replays a trace under policies; returns each replay as JSON, and all as text and as an HTML
    page."""

@final
class Trace:
    """A trace of run-times."""

    @staticmethod
    def read(path: str | PathLike[str]) -> Trace:
        """Reads a file or a folder."""

    @staticmethod
    def from_cells(name: str, workers: int, cells: bytes) -> Trace:
        """Makes a trace of 64-bit floats in native byte order, round by round; NaN is an absent
        worker."""

    @property
    def waits_included(self) -> bool:
        """Whether run-times include waits for other workers."""
