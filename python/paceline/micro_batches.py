"""The micro-batches of a contribution."""

from __future__ import annotations

from typing import TypeVar

from .data import split
from .errors import PacelineError

T = TypeVar("T")


class MicroBatches:
    """Which micro-batch of a contribution is under way, and which are finished.

    A contribution outside the loop over ``session.micro_batches()`` is a single one.
    """

    def __init__(self) -> None:
        self.in_loop = False
        """Whether the loop over ``session.micro_batches()`` is under way."""
        self.count = 1
        """Micro-batches of the contribution."""
        self.divisor = 1
        """What the loop divides its losses by."""
        self.samples = 0
        """Samples of the micro-batch under way; 0 outside the loop."""
        self.unfinished: dict[int, int] = {}
        """Samples of the micro-batches of the loop that are not done, by place."""
        self.finished = 0
        """Micro-batches of the contribution that are done."""
        self._place = 0

    def begin(self, samples: list[int], divisor: int) -> None:
        """A loop over micro-batches begins: the samples of each, and what the loop divides its losses by."""
        self.count, self.divisor, self.in_loop = len(samples), divisor, True
        self.finished = 0
        self.unfinished = dict(enumerate(samples))

    def enter(self, place: int, samples: int) -> None:
        """The loop gets its next micro-batch."""
        self._place, self.samples = place, samples

    def end(self) -> None:
        """The loop has ended, or there is none."""
        self.count, self._place, self.samples, self.divisor = 1, 0, 0, 1
        self.unfinished, self.in_loop = {}, False

    def finish(self) -> None:
        """The micro-batch under way is done."""
        self.unfinished.pop(self._place, None)
        self.finished += 1

    @property
    def is_finished(self) -> bool:
        """Whether the micro-batch under way is done already."""
        return self.in_loop and self._place not in self.unfinished

    @property
    def is_last(self) -> bool:
        """Whether no micro-batch follows the one under way."""
        return self.count == 1 or self._place == self.count - 1


def split_work(batch: T, n: int, samples: int, accumulate: int) -> list[tuple[T, int]]:
    """Splits a batch of the loader, each part with the samples behind its rows: a ``collate_fn`` may make more
    or fewer rows than samples."""
    parts = list(split(batch, n))
    if accumulate > 1:
        raise PacelineError(
            f"micro_batches() with paceline.init(accumulate={accumulate}): leave accumulate out, and "
            "give the loader the whole batch"
        )
    rows = sum(count for _, count in parts)
    if any(samples * count % rows for _, count in parts):
        raise PacelineError(
            f"a batch of {rows} rows from {samples} samples cannot be split into {n} micro-batches of whole "
            "samples: choose another n, or split it yourself and accumulate inside session.no_sync()"
        )
    return [(part, samples * count // rows) for part, count in parts]
