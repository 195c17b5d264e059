"""The gradients of a contribution on their way to the run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import _native
from .errors import PacelineError
from .membership import Membership
from .parameters import FlatVector, as_array


class GradientWriter:
    """Writes the gradients of a backward pass to the run, and what goes with them.

    Under a loss scale (``scaled``) a gradient that is not finite makes the whole contribution overflow; without
    one it is an error, which closes the session.
    """

    def __init__(
        self, membership: Membership, flat: FlatVector, *, scaled: bool, close: Callable[[], None]
    ) -> None:
        self._membership = membership
        self._flat = flat
        self._scaled = scaled
        self._close = close
        # Which parameters have a gradient in this pass.
        self._written: list[bool] = []
        # Whether a gradient of this contribution was not finite.
        self._overflow = False
        self.begin_pass()

    def begin(self) -> None:
        """A contribution begins."""
        self._overflow = False

    def begin_pass(self) -> None:
        """No gradient of the micro-batch is written yet."""
        self._written = [False] * len(self._flat.params)

    @property
    def has_written(self) -> bool:
        """Whether a gradient of the micro-batch is written."""
        return any(self._written)

    def write(self, worker: _native.Worker, place: int, grad: torch.Tensor, factor: float) -> bool:
        """Writes ``factor`` times the gradient of one parameter, and takes it out of ``.grad``.

        Returns false after a cut.
        """
        slot = self._flat.params[place]
        self._written[place] = True
        finite = worker.write(slot.offset, as_array(grad), factor)
        slot.tensor.grad = None
        if finite is False:
            if not self._scaled:
                self._refuse(slot.name, "gradient")
            self._overflow = True
        return finite is not None

    def write_rest(self, worker: _native.Worker, factor: float, weight: float) -> bool:
        """Writes what :meth:`write` has not: accumulated and absent gradients, statistics, presence.

        Returns false after a cut.
        """
        flat = self._flat
        for place, slot in enumerate(flat.params):
            grad = slot.tensor.grad
            if self._written[place]:
                continue
            if grad is None:
                worker.skip(slot.offset, slot.size)
            else:
                self.write(worker, place, grad, factor)
        if not flat.has_presence:
            return not worker.is_cut()
        self._write_statistics(worker, weight)
        presence = torch.tensor([*self._written, self._overflow], dtype=torch.float32, device="cpu")
        if self._overflow:
            worker.clear(0, flat.params_end)
        return worker.write(flat.presence_at, presence.numpy(), weight) is not None

    def write_zeros(self, worker: _native.Worker, weight: float) -> None:
        """A micro-batch without gradients. Its running statistics are those of now."""
        flat = self._flat
        worker.skip(0, flat.params_end)
        self._write_statistics(worker, weight)
        worker.skip(flat.presence_at, flat.length - flat.presence_at)

    def _write_statistics(self, worker: _native.Worker, weight: float) -> None:
        for buffer in self._flat.buffers:
            if worker.write(buffer.offset, as_array(buffer.tensor), weight) is False:
                self._refuse(buffer.name, "running statistics")

    def _refuse(self, name: str, what: str) -> None:
        worker = self._membership.connected()
        number, base = worker.number, worker.taken()
        self._close()
        raise PacelineError(
            f"the {what} of `{name}` is not finite (worker {number}, round {base}). The other workers go "
            "on without this one. Lower the learning rate, clip, or give paceline.init(scaler=) your "
            "GradScaler"
        )

    def drop(self) -> None:
        """Nothing of an unfinished micro-batch stays in ``.grad``."""
        self.begin_pass()
        self._flat.drop_grads()
