"""A callback for Lightning, under its names ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

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
