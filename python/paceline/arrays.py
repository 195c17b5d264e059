"""Training without torch: NumPy arrays, whose optimizer runs on the shards."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from . import _native
from .errors import PacelineError, run_ended
from .joining import as_texts, join
from .launch import Run, find_run
from .safetensors import Entry, write
from .step import Step, last_step, unused

log = logging.getLogger("paceline")

Array = npt.NDArray[np.float32]

_PATIENCE = 0.1

_PARTING = 10.0
"""Seconds that a worker that leaves waits for the server."""


class ArraySession:
    """Trains NumPy arrays together with the other workers of a run.

    Create it with :func:`paceline.init_arrays`. ``params`` has the parameters, which :meth:`step` updates
    in place, ``lr`` is the learning rate of the next step, and ``last`` the :class:`Step` of the last
    contribution.
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        worker: _native.Worker,
        samples: int,
        lr: float,
    ) -> None:
        self.params = dict(params)
        """The parameters. :meth:`step` updates them in place."""
        self.lr = lr
        """The learning rate of the next step."""
        self.last: Step | None = None
        self._worker = worker
        self._flat = np.zeros(sum(array.size for array in params.values()), np.float32)
        self._work: tuple[int, int, list[tuple[int, int]]] | None = None
        worker.ready(worker.version, samples, 0, clears=False)
        atexit.register(self.close)

    def batches(self) -> Iterator[npt.NDArray[np.int64]]:
        """The samples that the run hands to this worker, by batch, until the run is over.

        Call :meth:`step` with the gradient of each batch. The iteration ends when the run reaches its end: its
        epochs, or a limit such as ``time_limit``. Raises :class:`RunEnded` if the run fails, or if this worker
        loses the connection.
        """
        while (work := self._next_work()) is not None:
            self._work = work
            yield np.asarray(self._worker.indices(work[1], work[2]), np.int64)
            if self._work is not None:
                raise PacelineError("the last batch was not used: call step() for every batch")

    def _next_work(self) -> tuple[int, int, list[tuple[int, int]]] | None:
        while True:
            turn = self._worker.next(_PATIENCE)
            if isinstance(turn, tuple):
                return turn
            if turn == "loaded":
                self._load()
            elif self._end() is not None:
                return None

    def _end(self) -> str | None:
        """The reason why the run is over, once it has reached its end. Raises an error if it failed."""
        ended = self._worker.ended()
        if ended is not None and (self._worker.failed() or self._worker.lost()):
            raise run_ended(self._worker)
        return ended

    def step(self, grads: Mapping[str, Array], loss: float | None = None) -> Step:
        """Contributes the mean gradient of the batch and loads the new parameters.

        ``loss`` is the mean loss of the batch, for display. Returns what became of the contribution. If the run
        reaches its end meanwhile, the contribution is not used and the parameters stay as they are.
        """
        if self._work is None:
            raise PacelineError("step() without a batch: iterate over batches()")
        if grads.keys() != self.params.keys():
            odd = sorted(grads.keys() ^ self.params.keys())[0]
            raise PacelineError(f"gradient and parameters differ in `{odd}`")
        count = sum(end - start for start, end in self._work[2])
        self._work = None
        worker = self._worker
        base = worker.taken()
        if worker.begin(1) and self._write(grads, count):
            worker.finish(count, None if loss is None else loss * count, [self.lr])
        worker.forget()
        while worker.next_version(_PATIENCE) is None:
            if (ended := self._end()) is not None:
                self.last = unused(base, f"the run is over: {ended}")
                return self.last
        self._load()
        self.last = last_step(worker, base, count)
        return self.last

    def _write(self, grads: Mapping[str, Array], count: int) -> bool:
        at = 0
        for name, array in self.params.items():
            grad = np.ascontiguousarray(grads[name], np.float32)
            if grad.shape != array.shape:
                self.close()
                raise PacelineError(
                    f"the gradient of `{name}` has shape {grad.shape}, not {array.shape}"
                )
            finite = self._worker.write(at, grad.reshape(-1), count)
            if finite is None:
                return False
            if not finite:
                self.close()
                raise PacelineError(
                    f"the gradient of `{name}` is not finite (worker {self._worker.number}, round "
                    f"{self._worker.taken()})"
                )
            at += array.size
        return True

    def _load(self) -> None:
        self._worker.take(self._flat)
        at = 0
        for array in self.params.values():
            array.reshape(-1)[:] = self._flat[at : at + array.size]
            at += array.size

    def close(self) -> None:
        """Leaves the run. Without it the session leaves when the interpreter exits."""
        atexit.unregister(self.close)
        try:
            self._worker.leave(_PARTING)
        except RuntimeError as error:
            log.warning("the run was lost before this worker left it: %s", error)


def init_arrays(
    params: Mapping[str, Array],
    *,
    samples: int,
    batch_size: int,
    optimizer: str = "sgd",
    lr: float = 0.1,
    epochs: int | None = None,
    seed: int = 0,
    server: str | None = None,
    **settings: object,
) -> ArraySession:
    """Joins a run with NumPy arrays as parameters. The optimizer runs on the shards.

    Args:
        params: The parameters, by name: contiguous ``float32`` arrays, which training updates in place.
        samples: Number of samples in an epoch.
        batch_size: Number of samples per worker and round.
        optimizer: ``"sgd"``, ``"momentum:0.9"``, ``"adam"`` or ``"adamw"``, with options as in
            ``paceline train --optimizer``.
        lr: The learning rate. Change :attr:`ArraySession.lr` to schedule it.
        epochs: Number of epochs after which the run ends. By default it ends when all workers have left.
        seed: Seed of the order of samples. Default: 0.
        server: Address of the server, ``HOST:PORT``. By default ``PACELINE_SERVER``, or a server that the
            script starts.
        settings: Further settings of the run, by their names in a config file, such as ``policy="full"``.
    """
    for name, array in params.items():
        if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
            raise PacelineError(f"parameter `{name}` is not a contiguous, writeable float32 array")
    worker, _ = join(
        Run.at(server) if server else find_run(),
        tensors=[(name, list(array.shape), 0) for name, array in params.items()],
        hashes=[_native.hash_values(array.reshape(-1)) for array in params.values()],
        frozen_bytes=0,
        optimizers=[optimizer],
        samples=samples,
        batch=batch_size,
        seed=seed,
        epochs=epochs,
        settings=as_texts(settings),
        state=lambda: bytes(_state(params)),
    )
    return ArraySession(params, worker, samples, lr)


def _state(params: Mapping[str, Array]) -> bytearray:
    entries = (
        (f"model.{name}", Entry("F32", array.shape, array.reshape(-1).data))
        for name, array in params.items()
    )
    return write(entries, {})
