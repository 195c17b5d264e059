"""How a worker joins a run: it offers its model, and sends the initial state if it is the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from . import _native
from .errors import PacelineError
from .launch import Run

RESOLUTION = 64
"""Parts of a batch in which progress is reported to the coordinator."""

Tensor = tuple[str, list[int], int]
"""A tensor's name, shape and optimizer group."""


def join(
    run: Run,
    *,
    tensors: Sequence[Tensor],
    hashes: Sequence[int],
    optimizers: Sequence[str] | None,
    samples: int | None,
    batch: int,
    seed: int,
    epochs: int | None,
    settings: Mapping[str, str],
    state: Callable[[], bytes],
) -> tuple[_native.Worker, bool]:
    """Joins a run. Returns the worker, and whether it must take the run's state before it is ready."""
    parts = max(1, min(RESOLUTION, batch))
    named = {"straggler": "salvage" if parts > 1 else "abort", **settings}
    if epochs is not None:
        named.setdefault("epochs", str(epochs))
    try:
        takes_state = _native.offer(
            run.address,
            run.token,
            tensors=list(tensors),
            hashes=list(hashes),
            optimizers=None if optimizers is None else list(optimizers),
            samples=samples,
            batch=batch,
            seed=seed,
            micro_batches=parts,
            settings=named,
            state=state,
        )
        worker = _native.Worker.join(run.address, run.token, run.wish, run.name)
    except RuntimeError as error:
        raise PacelineError(
            f"{error}. Check that the server at {run.address} runs, and that every worker has the same "
            "model, data and settings"
        ) from None
    return worker, takes_state
