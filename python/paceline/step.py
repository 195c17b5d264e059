"""What became of a contribution."""

from __future__ import annotations

from dataclasses import dataclass

from . import _native


@dataclass(frozen=True)
class Step:
    """The outcome of the last contribution."""

    round: int
    """The round."""
    used: bool
    """Whether the round used this worker's contribution."""
    share: float
    """The share of this worker's batch that was used, 0 to 1."""
    contributors: int
    """How many workers contributed."""
    weight: float
    """Samples behind the update."""
    cut_after: float
    """Seconds from the round's opening to its cut."""
    reason: str
    """Why the round was cut."""
    missed: int = 0
    """Rounds that this worker missed and has replayed before this step."""


def unused(base: int, reason: str, missed: int = 0) -> Step:
    """The step of a contribution that no round has used."""
    return Step(base, False, 0.0, 0, 0.0, 0.0, reason, missed)


def last_step(worker: _native.Worker, base: int, samples: float, missed: int = 0) -> Step:
    """The close of the round on ``base``, as a worker that was given ``samples`` samples sees it."""
    closed = worker.closed(base)
    if closed is None:
        return unused(base, "the round was cut too long ago", missed)
    used, accepted, weight, cut_after, reason = closed
    share = min(1.0, used / max(samples, 1))
    return Step(base, used > 0, share, accepted, weight, cut_after, reason, missed)
