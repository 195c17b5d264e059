"""The exceptions of Paceline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import Worker


class PacelineError(RuntimeError):
    """Something that stops training: the message says what, where and what to do."""


class RunEnded(PacelineError):
    """The run is over while the training loop still computes.

    Iterating over :meth:`paceline.Session.loader` or :meth:`paceline.ArraySession.batches` ends by itself
    when the run reaches its end: its epochs, or a limit such as ``time_limit``. A loop over its own data gets
    this exception from ``backward()`` instead. Every loop gets it when the run fails, or when this worker has
    lost the run and cannot join again: parameters are those of a run that did not finish.
    """


def wrapped_in_ddp() -> PacelineError:
    """The error for a model inside DistributedDataParallel."""
    return PacelineError(
        "the model is wrapped in DistributedDataParallel, which waits for all ranks in every "
        "backward pass. Train the model itself: Paceline exchanges the gradients"
    )


def run_ended(worker: Worker) -> RunEnded:
    """The error for a loop that cannot go on, because the worker's run is over."""
    what = "has failed" if worker.failed() else "is over"
    return RunEnded(f"the run {what}: {worker.ended()}")
