"""Callbacks for Lightning, under its names ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from paceline.data import LedgerLoader
from paceline.recorder import Recorder, record

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    # Both may be installed; the base class must be that of the trainer in use.
    _names = ["lightning.pytorch", "pytorch_lightning"]
    _name = next((name for name in _names if name in sys.modules), None)
    if _name is None:
        _name = next((n for n in _names if importlib.util.find_spec(n.split(".")[0])), _names[0])
    Callback = importlib.import_module(_name).Callback


class RecordCallback(Callback):
    """Records the run-times of training, as :func:`paceline.record` does::

        trainer = Trainer(callbacks=[RecordCallback("runs/trace")])

    Under ``strategy="ddp"`` waits for other ranks are left out, unless the strategy has a
    communication hook of its own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._recorder: Recorder | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts the recording."""
        self._recorder = record(self._path)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the recording."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends the recording."""
        self._close()

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None


class LedgerCallback(Callback):
    """Makes an epoch of the trainer an epoch of the run, for training with :meth:`paceline.Session.loader`::

        loader = session.loader(dataset, batch_size=32)
        trainer = Trainer(max_epochs=10, devices=1, callbacks=[LedgerCallback(loader)])

    Lightning ends an epoch after ``len(loader)`` batches, which is only nominal here. With this callback it
    ends with the run's epoch on every worker: validation, checkpoints and schedulers that step by epoch
    follow. A worker that joins late or resumes a run begins with the run's epoch, and training stops when
    the run is over. With ``limit_train_batches`` or ``fast_dev_run`` the trainer ends its epochs itself.
    """

    def __init__(self, loader: LedgerLoader) -> None:
        self._loader = loader

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins with the run's epoch."""
        epoch = self._loader.session.epoch
        if epoch > 0:
            progress = trainer.fit_loop.epoch_progress.current
            progress.ready = progress.started = progress.processed = progress.completed = epoch

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The number of batches is not known, as with an iterable data set."""
        if _has_all_batches(trainer):
            trainer.fit_loop.max_batches = math.inf
            if trainer.val_check_interval == 1.0 and isinstance(trainer.val_check_interval, float):
                trainer.val_check_batch = math.inf

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """No batch is known to be the last one before its step is done."""
        if _has_all_batches(trainer):
            fetcher = trainer.fit_loop._data_fetcher
            fetcher.length, fetcher.done = None, False
            trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the epoch after its last batch."""
        if _has_all_batches(trainer) and self._loader.at_end():
            _end_epoch(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Goes on with the run's epoch: a slow worker may have missed a whole one."""
        session, portions = self._loader.session, self._loader.portions
        loop = trainer.fit_loop
        if _has_all_batches(trainer) and not trainer.is_last_batch and portions.goes_on():
            # The run had stopped right after the last batch of this epoch.
            _end_epoch(trainer)
        progress = loop.epoch_progress.current
        progress.processed = max(progress.processed, session.epoch)
        progress.completed = progress.processed - 1
        if not portions.goes_on():
            trainer.should_stop = True


def _has_all_batches(trainer: Any) -> bool:
    """Whether an epoch of the trainer has all batches of the loader."""
    return isinstance(trainer.limit_train_batches, float) and trainer.limit_train_batches == 1.0


def _end_epoch(trainer: Any) -> None:
    """Does what the trainer does once it knows that a batch is the last one."""
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.is_last_batch = True
    loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
