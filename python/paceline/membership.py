"""This worker's place in the run: how it joins, loses, rejoins and leaves it."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Sequence

from . import _native
from .errors import PacelineError, RunEnded, run_ended
from .joining import join
from .launch import Run, find_run
from .replica import Replica
from .replication import PARTING, Replication
from .server_optimizer import check_fresh

log = logging.getLogger("paceline")

_REJOINS = 3
"""How often a worker that contributes nothing joins again."""


class Membership:
    """Holds the connection to the run, and what the worker joined with: it joins again after a loss.

    ``optimizers`` describes the optimizers for the shards (mode ``"server"``); without it the worker steps its
    own. ``stepping`` says what else changes a step, and has to be alike on all workers. ``clears`` says that gradients may be removed again: under a loss scale, if a later one overflows.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        run: Run | None,
        optimizers: Sequence[str] | None,
        stepping: str,
        seed: int,
        epochs: int | None,
        hash_every: int,
        settings: dict[str, str],
        clears: bool,
        close: Callable[[], None],
    ) -> None:
        self.run = run
        """The run, once it is found."""
        self.epochs = epochs
        """Epochs after which the run is over."""
        self.worker: _native.Worker | None = None
        """The connected worker; ``None`` before the session connects, and after it is closed."""
        self.replication: Replication | None = None
        """What keeps this replica equal to others; ``None`` before the session connects."""
        self.workers = 1
        """Workers that the run was started for."""
        self.full_weight = 1.0
        """Samples of a round to which every worker contributes its whole batch."""
        self.hands_out = False
        """Whether the run hands out the samples."""
        self.lost = False
        """Whether the connection is lost, and the worker has to join again."""
        self.takes_state = False
        """Whether the worker has to take the run's state before it may contribute."""
        self._replica = replica
        self._optimizers = optimizers
        self._stepping = stepping
        self._seed = seed
        self._hash_every = hash_every
        self._settings = settings
        self._clears = clears
        self._close = close
        # The data that it joined with: samples, batch and leases ahead.
        self._data: tuple[int | None, int, int, bool] = (None, 1, 0, True)
        # In mode "server": whether frozen values differ from those of the run, and the hash of the first ones.
        self._takes_frozen = False
        self._frozen_hash: int | None = None
        self._rejoins = 0
        self._closed = False
        self._check_fresh()

    def _check_fresh(self) -> None:
        if not self.steps_here:
            check_fresh(self._replica.optimizers)

    @property
    def steps_here(self) -> bool:
        """Whether this worker steps its own optimizers, rather than the shards."""
        return self._optimizers is None

    @property
    def needs_state(self) -> bool:
        """Whether the worker has to take the run's state, or to join again, before it may contribute."""
        return self.lost or self.takes_state

    def connected(self) -> _native.Worker:
        """The connected worker; an error if there is none."""
        if self.worker is None:
            raise PacelineError("the session is closed, or not connected yet")
        return self.worker

    def replicating(self) -> Replication:
        """The replication of a session that is connected; an error before."""
        if self.replication is None:
            raise PacelineError("the session is not connected yet")
        return self.replication

    # -- Joining ----------------------------------------------------------------------------------------

    def connect(
        self, samples: int | None, batch: int, ahead: int = 0, shuffle: bool = True
    ) -> None:
        """Joins the run with this data, and takes its state if that is needed."""
        self._join(samples, batch, ahead, shuffle)
        self.make_ready()

    def connect_unchanged(self, samples: int | None, batch: int) -> None:
        """Joins the run without a change to the replica: a state to take is taken by :meth:`make_ready`."""
        self._join(samples, batch)
        if not (self.takes_state and (self.steps_here or self._takes_frozen)):
            self.make_ready()

    def _steppers(self, shuffle: bool) -> list[str]:
        """What the server compares: how a worker steps, and the order of its samples."""
        *others, last = self._replica.kinds() or ["nothing"]
        order = "" if shuffle else " with samples in order"
        return [*others, f"{last}{self._stepping}{order}"]

    def _join(
        self, samples: int | None, batch: int, ahead: int = 0, shuffle: bool = True
    ) -> None:
        if self.worker is not None:
            raise PacelineError(
                "the session is connected already: call session.loader() once, and before the first "
                "forward pass in training mode"
            )
        if self._closed:
            raise PacelineError("the session is closed: call paceline.init again")
        self._check_fresh()
        self.run = run = self.run or find_run()
        self._data = (samples, batch, ahead, shuffle)
        if self._frozen_hash is None:
            self._frozen_hash = self._replica.frozen_hash()
        tensors = self._replica.flat.tensors
        worker, taken = join(
            run,
            tensors=tensors,
            hashes=self._replica.hashes()[: len(tensors)],
            frozen_bytes=self._replica.frozen_bytes,
            frozen_hash=self._frozen_hash,
            optimizers=self._optimizers,
            steppers=self._steppers(shuffle),
            samples=samples,
            batch=batch,
            seed=self._seed,
            epochs=self.epochs,
            settings=self._settings,
            state=lambda: bytes(self._replica.capture(0, epoch=0)),
        )
        self.worker = worker
        self.workers = worker.workers
        self.full_weight = float(batch * worker.workers)
        self.replication = Replication(
            worker, self._replica, self._hash_every, is_late=taken is not None
        )
        self.hands_out = samples is not None
        self.takes_state = taken is not None
        self._takes_frozen = not self.steps_here and len(tensors) in (taken or ())
        atexit.register(self._close)

    def make_ready(self) -> None:
        """The worker may be given work, once it has the run's state."""
        worker, (samples, _, ahead, _) = self.connected(), self._data
        version = worker.version
        if self.takes_state:
            replication, begins = self.replicating(), self._rejoins == 0
            if self._takes_frozen:
                replication.take_frozen()
                self._frozen_hash = self._replica.frozen_hash()
                self._takes_frozen = False
            version = replication.join_run(version, has_optimizer=self.steps_here, begins=begins)
            self.takes_state = False
        worker.ready(version, samples, ahead, clears=self._clears)

    # -- Losing the run ---------------------------------------------------------------------------------

    def lose(self, reason: object) -> None:
        """The connection is lost. The worker has to join again before it contributes."""
        log.warning("worker %d lost the run (%s): it joins again", self.connected().number, reason)
        self.lost = True

    def join_again(self) -> None:
        """Joins with the data of the first time, and takes the run's state."""
        worker, self.worker = self.connected(), None
        self.lost = False
        self._rejoins += 1
        try:
            worker.leave(PARTING)
        except RuntimeError:
            log.debug("the connection was lost before")
        try:
            if self._rejoins > _REJOINS:
                raise PacelineError("it was lost again and again")
            self.connect(*self._data)
        except RuntimeError as error:
            raise RunEnded(f"the run is lost, and this worker cannot join again: {error}") from None

    def round_came(self) -> None:
        """A round has closed while this worker was connected: losses are counted anew."""
        self._rejoins = 0

    def is_lost(self, error: RuntimeError) -> bool:
        """Whether the connection is lost, and the run may go on without this worker."""
        worker = self.connected()
        return worker.lost() or (isinstance(error, _native.ConnectionLost) and worker.ended() is None)

    def _is_over(self) -> bool:
        """Whether the run has reached its end, for all workers."""
        worker = self.connected()
        return worker.ended() is not None and not worker.failed() and not worker.lost()

    def says_over(self, error: RuntimeError) -> bool:
        """Whether this error means only that the run has reached its end."""
        return isinstance(error, RunEnded | _native.ConnectionLost) and self._is_over()

    def goes_on(self) -> bool:
        """Whether a loop over the epochs goes on. A worker that has lost the run joins again."""
        if self.worker is None:
            return False
        if self.worker.failed():
            raise run_ended(self.worker)
        return not self._is_over()

    # -- Leaving ----------------------------------------------------------------------------------------

    def leave(self, *, has_stepped: bool) -> None:
        """Leaves the run. With ``has_stepped`` others get the record of the step on the last mean."""
        worker, self.worker = self.worker, None
        self._closed = True
        if worker is None:
            return
        atexit.unregister(self._close)
        deadline = time.monotonic() + PARTING
        if self.replication is not None:
            if has_stepped:
                self.replication.tell_last_step(worker.taken())
            self.replication.finish_uploads(deadline)
        try:
            worker.leave(max(0.0, deadline - time.monotonic()))
        except RuntimeError as error:
            log.warning("the run was lost before this worker left it: %s", error)
