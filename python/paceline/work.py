"""This worker's work: the samples of its next contribution, and how the worker waits for them."""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple

from .data import Portion
from .errors import run_ended
from .membership import Membership
from .replication import PATIENCE
from .update import Update

log = logging.getLogger("paceline")

class Work(NamedTuple):
    """What the run hands out for one contribution."""

    version: int
    """The version to compute from."""
    epoch: int
    """The epoch."""
    ranges: list[tuple[int, int]]
    """Ranges of positions in the epoch's order; none if the loop has its own data."""

    @property
    def portion(self) -> Portion:
        """Its samples, for a loader."""
        return self.epoch, tuple(self.ranges)


class WorkSource:
    """Gets work from the run, and holds it until its contribution is complete.

    A worker that is behind the run catches up while it waits. ``batch`` is the size of a contribution over the
    loop's own data.
    """

    def __init__(self, membership: Membership, update: Update, batch: int) -> None:
        self.current: Work | None = None
        """The work under way."""
        self._membership = membership
        self._update = update
        self._batch = batch

    @property
    def samples(self) -> int:
        """Samples of the work under way."""
        if self.current is None or not self.current.ranges:
            return self._batch
        return sum(end - start for start, end in self.current.ranges)

    def next(self, epoch: int | None = None) -> Work | None:
        """The next work. ``None`` when the run or ``epoch`` is over."""
        while True:
            try:
                turn = self._turn(epoch)
            except RuntimeError as error:
                if self._membership.says_over(error):
                    number = self._membership.connected().number
                    log.warning("the run ended before worker %d had caught up with it", number)
                    return None
                if not self._membership.is_lost(error):
                    raise
                self._membership.lose(error)
                self._update.join_again()
                continue
            if turn != "wait":
                return turn

    def _turn(self, epoch: int | None) -> Work | None | Literal["wait"]:
        worker, epochs = self._membership.connected(), self._membership.epochs
        turn = worker.next(PATIENCE)
        if isinstance(turn, tuple):
            return Work(*turn) if epoch in (None, turn[1]) else None
        if turn == "loaded":
            self._update.take_missed()
            self._membership.replicating().caught_up()
        elif worker.ended() is not None:
            is_complete = epochs is not None and worker.epochs() >= epochs
            if worker.failed() or (worker.lost() and not is_complete):
                raise run_ended(worker)
            return None
        elif epoch is not None and worker.epochs() > epoch and not worker.is_behind():
            # After the last epoch a replica stays until all have stepped its last round: a slower one may
            # need its state.
            if not self._membership.steps_here or epochs is None or epoch + 1 < epochs:
                return None
        self._update.serve(new_loop=epoch is None and self._membership.hands_out)
        return "wait"

    def get(self) -> None:
        """Gets work for a loop over its own data."""
        if self._membership.worker is None:
            self._membership.connect(None, self._batch)
        if self.current is None:
            self.current = self.next()
            if self.current is None:
                raise run_ended(self._membership.connected())
            self._membership.replicating().enter(self.current.epoch, new_loop=False)

    def claim(self) -> None:
        """Gets work without a change to the replica: none if this worker is behind the run."""
        membership = self._membership
        if membership.worker is None:
            membership.connect_unchanged(None, self._batch)
        worker, replication = membership.connected(), membership.replicating()
        while not membership.needs_state:
            turn = worker.next(PATIENCE)
            if isinstance(turn, tuple):
                self.current = Work(*turn)
                replication.enter(self.current.epoch, new_loop=False)
                return
            if turn == "loaded":
                return
            if (ended := worker.ended()) is not None:
                if not worker.lost():
                    raise run_ended(worker)
                membership.lose(ended)
            else:
                self._update.serve()
