"""How a worker joins a run: it offers its model, and sends the initial state if it is the first."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from . import _native
from .errors import PacelineError
from .launch import Run

log = logging.getLogger("paceline")

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
    frozen_bytes: int = 0,
    frozen_hash: int = 0,
    steppers: Sequence[str] = (),
) -> tuple[_native.Worker, list[int] | None]:
    """Joins a run. Returns the worker, and ``None`` if it keeps its own state.

    Otherwise it must take the run's state before it is ready. The list has the places of tensors whose initial
    values differ; the place after the last tensor stands for frozen parameters and buffers.
    """
    parts = max(1, min(RESOLUTION, batch))
    named = {"straggler": "salvage" if parts > 1 else "abort", **settings}
    if epochs is not None:
        named.setdefault("epochs", str(epochs))
    try:
        taken = _native.offer(
            run.address,
            run.token,
            tensors=list(tensors),
            hashes=list(hashes),
            frozen_bytes=frozen_bytes,
            frozen_hash=frozen_hash,
            optimizers=None if optimizers is None else list(optimizers),
            steppers=list(steppers),
            samples=samples,
            batch=batch,
            seed=seed,
            micro_batches=parts,
            settings=named,
            state=state,
        )
        run.announce()
        tcp = os.environ.get("PACELINE_TRANSPORT") == "tcp"
        worker = _native.Worker.join(run.address, run.token, run.wish, run.name, tcp)
    except RuntimeError as error:
        raise PacelineError(_advised(str(error), run.address)) from None
    if taken is None:
        return worker, None
    names = [f"`{name}`" for name, _, _ in tensors]
    _warn_of_other_values(worker.number, *taken, [*names, "frozen parameters or buffers"])
    return worker, taken[1]


def as_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings given as keyword arguments, as a config file has them. Those that are ``None`` are left out."""
    return {name.replace("_", "-"): str(value) for name, value in settings.items() if value is not None}


def _advised(error: str, address: str) -> str:
    if "refused: " in error:
        return error
    return f"{error}. Check PACELINE_SERVER and server=, and that the run at {address} is not over"


def _warn_of_other_values(
    worker: int, version: int, places: Sequence[int], names: Sequence[str]
) -> None:
    """A worker that joins late has other values than the run of course; one that starts with it should not."""
    if version == 0 and places:
        named = ", ".join(names[place] for place in places[:3])
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        log.warning(
            "worker %d starts with other values than the run in %s%s: it takes the run's. Call "
            "torch.manual_seed before the model is made",
            worker,
            named,
            more,
        )
