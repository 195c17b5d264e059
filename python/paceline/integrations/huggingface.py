"""A callback for the Trainer of Hugging Face Transformers."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from paceline.recorder import Recorder, record


class RecordCallback(TrainerCallback):
    """Records the run-times of training, as :func:`paceline.record` does::

        trainer = Trainer(model, args, callbacks=[RecordCallback("runs/trace")])

    Under distributed data parallelism waits for other ranks are left out.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._recorder: Recorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the recording."""
        self._close()
        self._recorder = record(self._path)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the recording."""
        self._close()

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
