"""What becomes of a contribution: the wait for its round, and the loop's step on the outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from . import _native
from .errors import PacelineError, run_ended
from .membership import Membership
from .replica import Replica
from .replication import PATIENCE, Replication
from .step import Step, unused


class Update(ABC):
    """Takes a round's outcome when a contribution is complete, and observes the loop's step on it.

    Each mode has its own: in mode ``"mean"`` the loop steps the mean gradient, in mode ``"server"`` it loads the
    parameters that the shards have stepped.
    """

    def __init__(self, membership: Membership, replica: Replica) -> None:
        self.last: Step | None = None
        """What became of the last contribution."""
        self.holds_mean = False
        """Whether the loop's step is one on the mean in ``.grad``. Only in mode ``"mean"``."""
        self.is_contributing: Callable[[], bool] = lambda: False
        """Whether a contribution is under way. The session sets it."""
        self._membership = membership
        self._replica = replica

    @abstractmethod
    def watch(self) -> list[Any]:
        """Observes the loop's optimizers; returns handles that end it."""

    @abstractmethod
    def release(self) -> None:
        """Gives the optimizers back as they were."""

    @property
    @abstractmethod
    def awaits_step(self) -> bool:
        """Whether a round's outcome is there for the loop to step on."""

    @abstractmethod
    def has_stepped(self) -> bool:
        """Whether the loop has stepped, or skipped, the last outcome."""

    def check_stepped(self) -> None:
        """Refuses a contribution before the step on the last one."""
        if not self.has_stepped():
            raise PacelineError(
                "backward() was called twice without optimizer.step() in between. Call step() after "
                "each backward(), or session.skip_step() to leave a step out, or accumulate inside "
                "session.no_sync() or session.micro_batches()"
            )

    @abstractmethod
    def skip_step(self) -> None:
        """The loop leaves out the step on the last outcome."""

    @abstractmethod
    def rates(self) -> list[float]:
        """The learning rates that travel with a contribution."""

    # -- Before the next contribution -------------------------------------------------------------------

    def end_step(self) -> None:
        """The step on the last outcome is over: its record goes to workers that will miss it."""
        self._replica.flat.check_frozen()
        if self._membership.lost:
            self.join_again()
        replication, worker = self._membership.replication, self._membership.worker
        if replication is not None and worker is not None:
            self._end_step(worker, replication)

    @abstractmethod
    def _end_step(self, worker: _native.Worker, replication: Replication) -> None: ...

    def join_again(self) -> None:
        """Joins the run again and takes its state. The last outcome is forgotten."""
        self._membership.connected()
        self._forget()
        self._replica.steps.forget()
        self._membership.join_again()

    @abstractmethod
    def _forget(self) -> None: ...

    @abstractmethod
    def take_missed(self) -> None:
        """Takes over the versions that were loaded while the worker waited for work."""

    @abstractmethod
    def serve(self, *, new_loop: bool = False) -> None:
        """While the worker waits: what other workers need of this replica."""

    # -- After a contribution ---------------------------------------------------------------------------

    @abstractmethod
    def complete(self, base: int, samples: int) -> None:
        """The contribution of ``samples`` samples to the round on ``base`` is complete."""

    def _join_late(self) -> None:
        """Gets the run's state after a backward pass that had none to contribute to."""
        if self._membership.lost:
            self.join_again()
        else:
            self._membership.make_ready()

    def _wait_for_version(self, while_waiting: Callable[[], None]) -> None:
        worker = self._membership.connected()
        while_waiting()
        while worker.next_version(PATIENCE) is None:
            if worker.ended() is not None:
                raise run_ended(worker)
            while_waiting()

    def _has_no_outcome(self, base: int, error: RuntimeError) -> None:
        """Ends a step whose wait for the round has failed, or raises the error. A loop over the loader ends
        by itself."""
        membership = self._membership
        if membership.is_lost(error):
            # Before the next step the worker joins again and takes the run's state, so what this one does to
            # the replica does not matter.
            membership.lose(error)
            self._step_nothing(base, "this worker lost the run")
        elif membership.hands_out and membership.says_over(error):
            self._step_nothing(base, f"the run is over: {membership.connected().ended()}")
        elif isinstance(error, _native.ConnectionLost):
            raise run_ended(membership.connected()) from error
        else:
            raise error

    def _step_nothing(self, base: int, reason: str) -> None:
        """Ends a step without an outcome: the training loop's own step changes nothing."""
        self._replica.flat.clear()
        self.last = unused(base, reason)
