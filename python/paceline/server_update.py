"""Mode ``"server"``: the shards step, and the loop's ``optimizer.step()`` loads the new parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _native
from .errors import PacelineError
from .membership import Membership
from .replica import Replica
from .replication import Replication
from .server_optimizer import describe, rates
from .step import last_step
from .update import Update


class ServerUpdate(Update):
    """Loads the parameters that the shards have stepped, when the loop calls ``optimizer.step()``.

    ``described`` are the optimizers as the shards know them: only the learning rate may change.
    """

    def __init__(self, membership: Membership, replica: Replica, described: Sequence[str]) -> None:
        super().__init__(membership, replica)
        self._described = described
        # The contribution that waits for its step: the version it is for, and its samples.
        self._pending: tuple[int, int] | None = None
        # The version that the last step loaded, and whether rounds were missed.
        self._loaded: int | None = None
        self._behind = False
        self._function: Callable[..., None] | None = None

    def watch(self) -> list[Any]:
        self._function = self._step_function()
        for optimizer in self._replica.optimizers:
            vars(optimizer)["step"] = self._function
        return []

    def release(self) -> None:
        # Another session may have taken over an optimizer since.
        for optimizer in self._replica.optimizers:
            if vars(optimizer).get("step") is self._function:
                del vars(optimizer)["step"]

    def _step_function(self) -> Callable[..., None]:
        def step(closure: Any = None) -> None:
            self._step(closure)

        # Else a scheduler warns that it cannot see whether the optimizer has stepped.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        return step

    def _step(self, closure: Any) -> None:
        """``optimizer.step()``: loads the new parameters."""
        if closure is not None:
            raise PacelineError('step(closure) is not supported in mode "server"')
        if self.is_contributing():
            raise PacelineError("optimizer.step() came before the last backward() of the step")
        if self._pending is None:
            # Another optimizer of the session has stepped: the shards step all of them at once.
            return
        (base, samples), self._pending = self._pending, None
        try:
            self._wait_for_version(while_waiting=lambda: None)
        except RuntimeError as error:
            self._has_no_outcome(base, error)
            return
        self._membership.round_came()
        worker = self._membership.connected()
        self._load_parameters(worker)
        self._loaded = worker.taken()
        self._behind = self._loaded != base + 1
        self.last = last_step(worker, base, samples)
        for optimizer in self._replica.optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]

    def _load_parameters(self, worker: _native.Worker) -> None:
        flat = self._replica.flat
        worker.take(flat.array)
        with torch.no_grad():
            for slot in flat.params:
                slot.tensor.copy_(flat.values[slot.range].view(slot.tensor.shape))

    @property
    def awaits_step(self) -> bool:
        return self._pending is not None

    def has_stepped(self) -> bool:
        return self._pending is None

    def skip_step(self) -> None:
        raise PacelineError('skip_step() needs mode="mean": in mode "server" the shards step')

    def rates(self) -> list[float]:
        """The learning rates of this step. Other options are those of the first step."""
        optimizers = self._replica.optimizers
        for first, now in zip(self._described, describe(optimizers)):
            if first != now:
                raise PacelineError(
                    f"the options of the optimizer changed from {first} to {now}: in mode \"server\" only "
                    'the learning rate may change. Use mode="mean" (or cycle_momentum=False)'
                )
        return rates(optimizers)

    def _end_step(self, worker: _native.Worker, replication: Replication) -> None:
        """Gives others the learning rates after this step, or takes theirs over."""
        if self._behind:
            replication.follow_run(worker.taken())
        elif self._loaded is not None:
            replication.tell_stepped(self._loaded)
        self._behind, self._loaded = False, None

    def _forget(self) -> None:
        self._behind, self._loaded = False, None

    def take_missed(self) -> None:
        worker = self._membership.connected()
        self._load_parameters(worker)
        if worker.taken() > 0:
            self._membership.replicating().follow_run(worker.taken())

    def serve(self, *, new_loop: bool = False) -> None:
        """The shards have all that other workers need."""

    def complete(self, base: int, samples: int) -> None:
        if self._membership.needs_state:
            self._join_late()
        self._pending = (base, samples)
