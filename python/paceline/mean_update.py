"""Mode ``"mean"``: the loop's own optimizers step the mean gradient of each round."""

from __future__ import annotations

from typing import Any

from . import _native
from .errors import PacelineError
from .membership import Membership
from .replica import Replica
from .replication import Replication
from .step import last_step, unused
from .update import Update


class MeanUpdate(Update):
    """Puts the mean of a round into ``.grad``, after it has replayed the rounds that this worker missed."""

    def __init__(self, membership: Membership, replica: Replica, lr_scaling: str | None) -> None:
        super().__init__(membership, replica)
        self._lr_scaling = lr_scaling
        # Samples behind the mean.
        self._weight = 1.0
        # Rounds that were replayed while the worker waited for work.
        self._missed = 0
        # Whether the mean is infinite, so that a GradScaler skips its step.
        self._overflow = False
        # Whether the loop has called skip_step() for this mean.
        self._skipped = False

    def watch(self) -> list[Any]:
        steps = self._replica.steps
        handles = steps.watch()
        steps.check = self._check_mean
        if self._lr_scaling is not None:
            steps.lr_factor = self._lr_factor
        return handles

    def release(self) -> None:
        """The handles of :meth:`watch` are all there is to remove."""

    def _check_mean(self) -> None:
        # Before it has joined, a worker may change its initial values as it likes.
        if self._membership.worker is not None and not self.holds_mean:
            raise PacelineError(
                "optimizer.step() came before the last backward() of the step: .grad has no mean yet. Call it "
                "once per step, after the loop over micro_batches() or the backward() outside no_sync()"
            )

    def _lr_factor(self) -> float:
        assert self._lr_scaling is not None
        return _native.lr_factor(self._lr_scaling, self._weight, self._membership.full_weight)

    @property
    def awaits_step(self) -> bool:
        return self.holds_mean

    def has_stepped(self) -> bool:
        return any(self._replica.steps.done) or self._overflow or self._skipped

    def skip_step(self) -> None:
        if self.is_contributing():
            raise PacelineError("skip_step() came before the last backward() of the step")
        if any(self._replica.steps.done):
            raise PacelineError("skip_step() came after optimizer.step()")
        self._skipped = True

    def rates(self) -> list[float]:
        return []

    def _end_step(self, worker: _native.Worker, replication: Replication) -> None:
        if self.holds_mean:
            self.check_stepped()
            self.holds_mean = False
            replication.tell_stepped(worker.taken())
        else:
            replication.begin_step()

    def _forget(self) -> None:
        self.holds_mean = False
        self._missed = 0

    def take_missed(self) -> None:
        replication = self._membership.replicating()
        self._missed += replication.catch_up(takes_last=False)
        replication.tell_replayed(self._membership.connected().taken())

    def serve(self, *, new_loop: bool = False) -> None:
        version = self._membership.connected().taken()
        self._membership.replicating().serve(version, new_loop=new_loop)

    def complete(self, base: int, samples: int) -> None:
        if not self._membership.needs_state:
            self._take_mean(base, samples)
            return
        self._join_late()
        self._replica.steps.forget()
        self._replica.skip_step()
        self.last = unused(base, "this worker joined the run")

    def _take_mean(self, base: int, samples: int) -> None:
        worker, replication = self._membership.connected(), self._membership.replicating()
        try:
            self._wait_for_version(while_waiting=lambda: replication.serve(base))
            missed = replication.catch_up(takes_last=True) + self._missed
        except RuntimeError as error:
            self._has_no_outcome(base, error)
            return
        self._membership.round_came()
        self._missed = 0
        self._replica.steps.forget()
        if worker.newest() == worker.taken():
            self._replica.skip_step()
            replication.tell_replayed(worker.taken())
            self.last = last_step(worker, base, samples, missed)
            return
        replication.step_taken()
        flat = self._replica.flat
        worker.take(flat.array)
        flat.remember()
        flat.statistics()
        self._overflow, self._skipped = flat.overflowed, False
        flat.grads(self._replica.loss_scale, overflow=self._overflow)
        self.holds_mean = True
        closed = worker.closed(worker.taken() - 1)
        self._weight = closed[2] if closed is not None else self._membership.full_weight
        self.last = last_step(worker, base, samples, missed)

    def _step_nothing(self, base: int, reason: str) -> None:
        self._replica.flat.clear()
        self._replica.skip_step()
        self.last = unused(base, reason)
