"""How a replica stays equal to the others of a run: hashes, records of missed steps, and whole states."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable

from . import _native
from .errors import PacelineError, RunEnded, run_ended
from .replica import Replica, can_replay
from .state import Json

log = logging.getLogger("paceline")

PATIENCE = 0.1
"""Seconds between two looks for Ctrl-C while a worker waits."""

_RECORD_PATIENCE = 1.0
"""Seconds that the learning rates of other workers may take, where the optimizer is on the shards."""

_STATE_PATIENCE = 300.0
"""Seconds that the state of another worker may take."""

PARTING = 10.0
"""Seconds that a worker that leaves waits for the server."""

_MAX_RECORD = 1 << 20
"""The longest record that the server takes, in bytes."""

_NO_RECORD = b"null"
"""In place of a longer one: a worker that missed the step takes the run's state."""


class Replication:
    """Compares this worker's replica with the others', replays what it missed, gives and takes states.

    One per connection to a run: what the coordinator said goes with the connection.

    Schedulers need care, because the training loop steps them itself, after a step or after an epoch. A
    worker that replayed the steps of others takes their schedulers over, and the loop then steps them once
    more. Hence it takes them over again when the loop has arrived where the record was written: at the next
    step of the same epoch, or at the first step of the record's epoch.
    """

    def __init__(
        self, worker: _native.Worker, replica: Replica, hash_every: int, *, is_late: bool
    ) -> None:
        self._worker = worker
        self._replica = replica
        self._hash_every = hash_every
        self._hashed = 0
        self._diverged = False
        # The epoch of the batches that the training loop gets, and of the settings that it has.
        self._loop_epoch: int | None = None
        self._settings_epoch: int | None = None
        self._is_late = is_late
        # The last record or state, while the training loop may step schedulers beyond it.
        self._follows: Json = None
        # The last version whose record was followed instead of a step.
        self._followed: int | None = None

        self.unfinished: int | None = None
        """The epoch that the state of a joining worker is at the end of: no sample of it is left, but the
        loop that the state is from had not done yet what it does after an epoch."""

        # What the coordinator has said.
        self._state_wanted: int | None = None
        self._state_ready: int | None = None
        self._records: dict[int, bytes] = {}
        self._records_from: int | None = None
        self._uploads: list[threading.Thread] = []

    def serve(self, version: int, *, new_loop: bool = False) -> None:
        """While the round is open: hashes and state of the version that was stepped last.

        ``new_loop`` says that the training loop waits for the first batch of a loop over the data.
        """
        worker = self._worker
        self._hear()
        if self._hash_every and version % self._hash_every == 0 and version != self._hashed:
            self._hashed = version
            worker.send_hashes(version, self._replica.hashes())
        if self._state_wanted is not None and version >= self._state_wanted:
            self._state_wanted = None
            blob = bytes(self._replica.capture(version, self._epoch_of_settings(new_loop)))
            upload = threading.Thread(target=self._upload, args=(version, blob), daemon=True)
            self._uploads = [each for each in self._uploads if each.is_alive()] + [upload]
            upload.start()

    def _upload(self, version: int, blob: bytes) -> None:
        try:
            self._worker.upload_state(version, blob)
        except _native.ConnectionLost as error:
            log.debug("the server asks another worker for its state: %s", error)

    def finish_uploads(self, deadline: float) -> None:
        """Waits until the states of this worker have left, or the deadline has passed."""
        for upload in self._uploads:
            upload.join(max(0.0, deadline - time.monotonic()))

    # -- Catching up ------------------------------------------------------------------------------------

    def catch_up(self, *, takes_last: bool) -> int:
        """Replays the versions that wait; returns how many.

        With ``takes_last`` the training loop steps the last of them itself. It cannot if that step belongs
        to a later epoch than the loop is in, or if it does not know the settings: then all are replayed.
        """
        worker = self._worker
        replayed = 0
        while True:
            waiting = worker.newest() - worker.taken()
            self._hear()
            if self._diverged or (waiting > 0 and not worker.is_next_waiting()):
                self._diverged = False
                self.take_state(at_least=worker.newest())
                continue
            if waiting == 0 or (waiting == 1 and takes_last and self._may_step(worker.newest())):
                return replayed
            if not self._replay_one():
                self._diverged = True
            replayed += 1

    def take_state(self, at_least: int) -> int:
        """Takes the run's state from another worker, by way of the server; returns its version."""
        version, settings = self._replica.restore(self._fetch_state(at_least))
        self._follow(settings)
        self._worker.restored(version)
        return version

    def take_frozen(self) -> None:
        """Takes frozen parameters and buffers from the state that the run began with, where the optimizer is
        on the shards."""
        self._replica.restore_frozen(self._fetch_state(at_least=0))

    def _fetch_state(self, at_least: int) -> bytes:
        worker = self._worker
        self._state_ready = None
        worker.want_state(at_least)
        deadline = time.monotonic() + _STATE_PATIENCE
        self._wait_for_message(lambda: self._state_ready is not None, until=deadline)
        if self._state_ready is None:
            raise PacelineError(
                f"no other worker sent the run's state within {_STATE_PATIENCE:.0f} s: start this "
                "worker again once others train"
            )
        return worker.download_state()

    def join_run(self, version: int, *, has_optimizer: bool, begins: bool) -> int:
        """Takes over the run's state of this version or a newer one; returns the version.

        ``begins`` says that the training loop has not begun: it may have to end an epoch first.
        """
        taken = version
        if has_optimizer:
            taken = self.take_state(at_least=version)
        elif version > 0:
            self.follow_run(version)
        ends = taken == version and self._settings_epoch == self._worker.epochs() - 1
        self.unfinished = self._settings_epoch if begins and ends else None
        return taken

    def follow_run(self, version: int) -> None:
        """Takes over the schedulers of the run where this worker loads a version that it missed.

        For runs whose optimizer is on the shards: there is nothing to replay.
        """
        if version == self._followed:
            return
        try:
            deadline = time.monotonic() + _RECORD_PATIENCE
            record = self._record_of(version, until=deadline)
        except RunEnded:
            return
        entry = json.loads(record) if record is not None else None
        if entry is not None:
            self._followed = version
            self._follow(entry)
            self.caught_up()

    def finish_epoch(self) -> bool:
        """Whether the first loop over the data is for an epoch of which no samples are left."""
        epoch, self.unfinished = self.unfinished, None
        if epoch is None:
            return False
        for optimizer in self._replica.optimizers:
            # It has stepped in this epoch, on another worker: else a scheduler warns that it has not.
            optimizer._opt_called = True  # type: ignore[attr-defined]
        self.enter(epoch, new_loop=True)
        return True

    def _may_step(self, version: int) -> bool:
        """Whether the training loop has the settings of the step that makes this version."""
        epoch = self._worker.epoch_of(version)
        if epoch is None:
            self._wait_for_message(lambda: self._worker.epoch_of(version) is not None)
            epoch = self._worker.epoch_of(version)
        return epoch == self._loop_epoch == self._settings_epoch

    def _replay_one(self) -> bool:
        worker = self._worker
        version = worker.taken() + 1
        if version not in self._records and not self._ask_for_records(version):
            return False
        record = self._records.pop(version, None)
        worker.take(self._replica.flat.array)
        if record is None:
            # No other worker is left to step this version, so this worker's own settings count.
            self._replica.step_alone()
            self._follows, self._settings_epoch = None, self._loop_epoch
            return True
        entry = json.loads(record)
        if entry is None:
            return False
        replayed = self._replica.replay(entry)
        self._follow(entry)
        return replayed

    def _record_of(self, version: int, until: float) -> bytes | None:
        return self._records.pop(version, None) if self._ask_for_records(version, until) else None

    def _ask_for_records(self, version: int, until: float | None = None) -> bool:
        """Asks for the records from this version on; returns false if its record is no longer kept."""
        worker = self._worker
        self._records_from = None
        worker.want_records(version, max(version, worker.newest() - 1))
        self._wait_for_message(lambda: self._records_from is not None, until)
        return self._records_from == version

    # -- Schedulers -------------------------------------------------------------------------------------

    @property
    def _epoch(self) -> int:
        return self._loop_epoch or 0

    def _epoch_of_settings(self, new_loop: bool) -> int:
        if self._loop_epoch is None:
            return self._settings_epoch or 0
        # Before the first batch of an epoch, the loop has done what it does between two epochs.
        ended = self._settings_epoch == self._loop_epoch < self._worker.epochs()
        return self._loop_epoch + 1 if new_loop and ended else self._loop_epoch

    def _follow(self, settings: Json) -> None:
        self._replica.follow(settings)
        self._follows, self._settings_epoch = settings, settings["epoch"]

    def begin_step(self) -> None:
        """A step begins. If the last one was another worker's, its schedulers are taken over again."""
        if self._follows is not None and self._follows["epoch"] == self._loop_epoch:
            self._follow(self._follows)
            self._follows = None

    def caught_up(self) -> None:
        """Steps were replayed between two batches: the loop has stepped no scheduler meanwhile."""
        if self._follows is not None and self._follows["epoch"] == self._loop_epoch:
            self._follows = None

    def step_taken(self) -> None:
        """The training loop is about to step a mean itself: schedulers follow from its own calls."""
        self._follows = None

    def enter(self, epoch: int, *, new_loop: bool) -> None:
        """The training loop gets a batch of this epoch, the first of a new loop over the data or not."""
        if self._follows is not None:
            self._follow(self._follows)
            self._follows = None
        elif self._settings_epoch is None and not self._is_late:
            self._settings_epoch = epoch
        elif new_loop and self._settings_epoch == self._loop_epoch and epoch == self._epoch + 1:
            # The loop itself did what it does between two epochs.
            self._settings_epoch = epoch
        self._loop_epoch = epoch

    def tell_stepped(self, version: int) -> None:
        """Gives the run the record of this worker's step, for workers that miss it."""
        record = self._replica.record(version, self._epoch)
        self._tell(version, record if len(record) <= _MAX_RECORD else _NO_RECORD)

    def tell_last_step(self, version: int) -> None:
        """As :meth:`tell_stepped`, for a worker that leaves. If its record cannot be replayed, others would ask
        for a state that no worker may have."""
        record = self._replica.record(version, self._epoch)
        if len(record) <= _MAX_RECORD and can_replay(json.loads(record)):
            self._tell(version, record)

    def tell_replayed(self, version: int) -> None:
        """Tells the run that this worker has replayed the steps up to this version."""
        self._tell(version, b"")

    def _tell(self, version: int, record: bytes) -> None:
        try:
            self._worker.stepped(version, record)
        except RuntimeError as error:
            log.debug("the next wait for the run says why this failed: %s", error)

    # -- Messages ---------------------------------------------------------------------------------------

    def _wait_for_message(self, arrived: Callable[[], bool], until: float | None = None) -> None:
        worker = self._worker
        while not arrived() and (until is None or time.monotonic() < until):
            worker.wait_for_message(PATIENCE)
            self._hear()
            if worker.ended() is not None and not arrived():
                raise run_ended(worker)

    def _hear(self) -> None:
        """Acts on the coordinator's messages."""
        for kind, value in self._worker.messages():
            if kind == "send_state":
                self._state_wanted = value
            elif kind == "mismatch":
                self._diverged = True
                self._warn_of_mismatch(*value)
            elif kind == "records":
                self._records_from, self._records = value
            elif kind == "state_ready":
                self._state_ready = value

    def _warn_of_mismatch(self, version: int, places: list[int]) -> None:
        names = [name for name, _, _ in self._replica.flat.tensors]
        names += [f"optimizer state of {name}" for name in names]
        log.warning(
            "worker %d has other values than most workers after version %d (%s): it takes the run's state",
            self._worker.number,
            version,
            ", ".join(names[place] for place in places[:3]),
        )
