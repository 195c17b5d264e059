"""The samples that the run hands to a loop over a loader, contribution by contribution."""

from __future__ import annotations

from .contribution import Contribution
from .data import Portion
from .errors import PacelineError
from .membership import Membership
from .update import Update
from .work import WorkSource


class Portions:
    """Hands each portion to the loader once the step on the last one is over."""

    def __init__(
        self, membership: Membership, work: WorkSource, update: Update, contribution: Contribution
    ) -> None:
        self._membership = membership
        self._work = work
        self._update = update
        self._contribution = contribution

    @property
    def workers(self) -> int:
        """Workers that share the samples of an epoch, when no worker is slow or dead."""
        return self._membership.workers

    @property
    def is_pending(self) -> bool:
        """Whether the contribution of the last portion is not complete yet."""
        return self._work.current is not None

    def next(self, epoch: int | None) -> Portion | None:
        """The next portion of a loop that is in ``epoch``; ``None`` when the epoch or the run is over.

        A loop that begins, without an epoch yet, gets the portion again that the last one left in the middle.
        """
        work = self._work
        self._update.end_step()
        if epoch is None and work.current is not None:
            if self._contribution.under_way and self._contribution.repeats():
                return work.current.portion
            work.current = None
        if work.current is not None:
            self._contribution.check_parts_finished()
            raise PacelineError(
                "the last batch was not used: call backward() for every batch, or leave the loop"
            )
        if epoch is None and self._membership.replicating().finish_epoch():
            return None
        work.current = work.next(epoch)
        if work.current is None:
            return None
        self._membership.replicating().enter(work.current.epoch, new_loop=epoch is None)
        return work.current.portion

    def finish(self, epoch: int) -> None:
        """The last epoch is over. Others may have made steps of it after this worker's last batch: takes them
        over."""
        self._update.end_step()
        self._work.current = None
        self._work.next(epoch)

    def leases(self) -> list[Portion]:
        """The portion under way, and those that are leased to this worker for its next rounds, in order."""
        leased = self._membership.connected().leases()
        leases = [(epoch, tuple(ranges)) for epoch, ranges in leased]
        if self._work.current is not None:
            leases.insert(0, self._work.current.portion)
        return leases

    def indices(self, portion: Portion) -> list[int]:
        """The samples of a portion, as indices into the data."""
        epoch, ranges = portion
        return self._membership.connected().indices(epoch, list(ranges))

    def goes_on(self) -> bool:
        """Whether a loop over the epochs goes on."""
        return self._membership.goes_on()
