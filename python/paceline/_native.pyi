"""The native part of the package `paceline`."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, final

from numpy import float32
from numpy.typing import NDArray

__all__ = [
    "ConnectionLost",
    "Trace",
    "Worker",
    "__version__",
    "analyze",
    "hash_values",
    "lr_factor",
    "main",
    "offer",
    "simulate",
]

__version__: str
"""The version of the package."""

class ConnectionLost(RuntimeError):
    """The connection to the run failed, or the run refused this worker."""

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

@final
class Worker:
    """A worker of a run. A thread of its own talks to the run; the methods hand over gradients and
    versions."""

    @staticmethod
    def join(
        address: str, token: str | None, wish: int | None, name: str, tcp: bool = False
    ) -> Worker:
        """Joins the run at `address`."""

    @property
    def number(self) -> int:
        """The worker's number in the run."""

    @property
    def version(self) -> int:
        """The version of the run when the worker joined."""

    def ready(self, version: int, samples: int | None, ahead: int, clears: bool) -> None:
        """May be given work, from this version on, with `ahead` portions leased before their rounds. A
        worker that `clears` may call `clear`; nothing of a gradient leaves before it is whole."""

    def restored(self, version: int) -> None:
        """The worker's state was replaced by the run's state of this version."""

    def next(self, seconds: float) -> tuple[int, int, list[tuple[int, int]]] | str | None:
        """Waits for work, given as version, epoch and ranges, or for a version (`"loaded"`)."""

    def next_version(self, seconds: float) -> int | None:
        """Waits for a version to take."""

    def newest(self) -> int:
        """The newest version that was loaded."""

    def taken(self) -> int:
        """The version that was taken last."""

    def is_next_waiting(self) -> bool:
        """Whether the version after the one taken last is waiting."""

    def take(self, values: NDArray[float32]) -> int | None:
        """Copies the oldest version that waits into `values`; returns it."""

    def begin(self, parts: int) -> bool:
        """Begins to compute the current work in `parts` micro-batches; false if it is over."""

    def write(self, at: int, values: NDArray[float32], scale: float) -> bool | None:
        """Adds `scale` times `values` to the gradient. Returns whether it is finite; `None` after a
        cut."""

    def skip(self, at: int, len: int) -> bool:
        """These elements have no gradient in the current micro-batch."""

    def clear(self, at: int, len: int) -> None:
        """Removes everything that was written to these elements. Only for a worker that `clears`."""

    def restart(self) -> bool:
        """The current micro-batch is computed again from its start. False if it cannot be: a part of it
        was added to earlier ones."""

    def finish(self, weight: float, loss: float | None, rates: Sequence[float]) -> bool:
        """The current micro-batch is done; returns whether the rest may still count."""

    def is_cut(self) -> bool:
        """Whether the work that the loop was given no longer counts."""

    def forget(self) -> None:
        """Gives up the work that no longer counts."""

    def closed(self, base: int) -> tuple[float, int, float, float, str] | None:
        """The close of the round on this version, if it is one of the last: weight used of this worker,
        contributions, weight, seconds to the cut, reason."""

    @property
    def workers(self) -> int:
        """The number of workers that the run was started for."""

    def epoch_of(self, version: int) -> int | None:
        """The epoch of the round that made a version; `None` if it is not known yet."""

    def epochs(self) -> int:
        """Epochs of which every sample was used."""

    def leases(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Portions leased to this worker for later rounds, in order."""

    def indices(self, epoch: int, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Samples of ranges of an epoch, as indices into the data."""

    def messages(self) -> list[tuple[str, Any]]:
        """The coordinator's messages since the last call, as kind and value."""

    def wait_for_message(self, seconds: float) -> None:
        """Waits until the coordinator has a message."""

    def stepped(self, version: int, record: bytes) -> None:
        """Tells the coordinator how a version was stepped."""

    def want_records(self, first: int, last: int) -> None:
        """Asks how these versions were stepped."""

    def send_hashes(self, version: int, hashes: Sequence[int]) -> None:
        """Reports the hashes of the state after a version."""

    def want_state(self, at_least: int) -> None:
        """Asks for the state of this version or a newer one."""

    def upload_state(self, version: int, state: bytes) -> None:
        """Sends the server this worker's state of a version."""

    def download_state(self) -> bytes:
        """The newest state that the server has."""

    def is_behind(self) -> bool:
        """Whether a round has closed whose version was not taken."""

    def ended(self) -> str | None:
        """The reason why the run is over, if it is."""

    def lost(self) -> bool:
        """Whether the run is over for this worker alone: it lost the connection, or was dismissed."""

    def failed(self) -> bool:
        """Whether the run is over for all workers because it failed."""

    def leave(self, seconds: float) -> None:
        """Leaves the run. Waits for a server that does not answer for this long."""

def offer(
    address: str,
    token: str | None,
    *,
    tensors: Sequence[tuple[str, Sequence[int], int]],
    hashes: Sequence[int],
    frozen_bytes: int,
    frozen_hash: int,
    optimizers: Sequence[str] | None,
    steppers: Sequence[str],
    samples: int | None,
    batch: int,
    seed: int,
    micro_batches: int,
    settings: dict[str, str],
    state: Callable[[], bytes],
) -> tuple[int, list[int]] | None:
    """Offers a model to the server. If the offer defines the run, sends the state that `state` returns.
    Returns `None` if the worker keeps its own state, else the version of the run's state that it must
    take, and the places of tensors whose initial values differ; the place after the last tensor stands for
    what is frozen."""

def lr_factor(rule: str, weight: float, reference: float) -> float:
    """The factor on the learning rate of an update of this weight."""

def hash_values(values: NDArray[float32]) -> int:
    """The hash of an array."""
