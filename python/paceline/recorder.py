"""Records the run-times of a training loop as a trace for ``paceline analyze`` and ``simulate``."""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

# After a restart by torchrun, iterations continue here, above all iterations of the earlier attempts.
_ITERATIONS_PER_ATTEMPT = 1_000_000_000

# The begin and end of a step, and the waits inside it, as moments of a clock.
_Step = tuple[Any, Any, list[tuple[Any, Any]]]


def record(
    path: str | os.PathLike[str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
) -> Recorder:
    """Starts to record how long each step takes, into the folder ``path``.

    Works around any training loop, without a server. Use it as a context manager, or call
    :meth:`Recorder.close` at the end::

        with paceline.record("runs/trace"):
            train(model, loader, optimizer)

    Then ``paceline analyze runs/trace`` says what stragglers cost, and ``paceline simulate
    runs/trace`` what policies would have given. Every process writes its own file ``rank-N.csv``,
    line by line, so that nothing is lost if it is killed. Start the recorder in all processes before
    the same step.

    How a step is detected:

    * It calls a ``DistributedDataParallel`` model: the time from the end of one gradient
      synchronisation to the moment at which the last bucket of the next is ready. The wait for
      other ranks is left out, also that for buffers such as BatchNorm's (but not if such a model is
      compiled). Communication hooks are left as they are.
    * It steps a ``torch.optim`` optimizer: the time between two steps of the first optimizer seen.
    * Anything else: the time between two calls of :meth:`Recorder.step`.

    In the last two cases a process of several (``world_size`` > 1) may have waited for the others
    inside the step, which cannot be told apart. The trace says so, and ``paceline analyze`` warns.

    The first step only marks the beginning and is not recorded, nor is the second of DDP, in which
    DDP waits for other ranks to arrange its buckets.

    Args:
        path: the folder. An earlier recording of the same rank in it is replaced.
        rank: the number of this process; by default that of ``torch.distributed`` or ``RANK``.
        world_size: the number of processes; by default that of ``torch.distributed`` or
            ``WORLD_SIZE``.
    """
    return Recorder(path, rank=rank, world_size=world_size)


class Recorder:
    """A recording in progress. Made by :func:`paceline.record`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        group_rank, group_size = _group()
        self._rank = group_rank if rank is None else rank
        self._world_size = group_size if world_size is None else world_size
        if not 0 <= self._rank < self._world_size:
            raise ValueError(f"rank {self._rank} is not below the world size {self._world_size}")
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        self._iteration = attempt * _ITERATIONS_PER_ATTEMPT
        self._folder = Path(path)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_earlier(attempt)
        self._file: int | None = None
        self._closed = False
        self._clock: _Clock = _Clock()
        self._begin: Any = None
        # Steps whose end a GPU has not reached yet.
        self._pending: list[_Step] = []
        self._source: Any = None
        self._handles: list[Any] = []
        self._forward_handle: Any = None
        if "torch" in sys.modules:
            self._follow_torch()

    @property
    def path(self) -> Path:
        """The folder of the recording."""
        return self._folder

    @property
    def waits_included(self) -> bool:
        """Whether run-times include the wait for other ranks, as far as known so far."""
        apart = isinstance(self._source, _DdpSteps) and self._source.waits_apart
        return self._world_size > 1 and not apart

    def step(self) -> None:
        """Marks the end of a step, in loops without a torch optimizer.

        Does nothing where the recorder follows a ``DistributedDataParallel`` model.
        """
        if isinstance(self._source, _DdpSteps) or self._closed:
            return
        if self._source is not self:
            self._source, self._begin = self, None
            self._stop_following()
        self._mark()

    def watch(self, model: DistributedDataParallel) -> None:
        """Records the steps of a ``DistributedDataParallel`` model.

        The recorder finds the model of a loop by itself at its first forward pass. Call this before
        that if there are several, or if the model is compiled: ``torch.compile`` warns of the global
        hook by which the recorder finds it.
        """
        if self._file is not None:
            raise RuntimeError("the recording has begun: call watch() before the first step")
        self._stop_following()
        self._source, self._begin = _DdpSteps(self, model), None
        self._handles = self._source.handles

    def close(self) -> None:
        """Ends the recording. Later steps are not recorded."""
        if self._closed:
            return
        self._closed = True
        self._stop_following()
        self._flush(wait=True)
        if self._file is not None:
            os.close(self._file)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _follow_torch(self) -> None:
        """Finds the DDP model or the optimizer of the loop by torch's global hooks."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.nn.parallel import DistributedDataParallel
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def before_forward(module: Any, _: Any) -> None:
            if isinstance(getattr(module, "_orig_mod", module), DistributedDataParallel):
                self.watch(module)

        def after_step(optimizer: Any, *_: Any) -> None:
            if self._source is None:
                self._source = weakref.ref(optimizer)
            if isinstance(self._source, weakref.ref) and self._source() is optimizer:
                self._mark()

        if self._world_size > 1:
            self._forward_handle = register_module_forward_pre_hook(before_forward)
        self._handles.append(register_optimizer_step_post_hook(after_step))

    def _stop_looking_for_models(self) -> None:
        if self._forward_handle is not None:
            self._forward_handle.remove()
            self._forward_handle = None

    def _stop_following(self) -> None:
        self._stop_looking_for_models()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _mark(self) -> None:
        """The end of a step, which is the beginning of the next."""
        now = self._clock.now()
        if self._begin is not None:
            self._add(self._begin, now)
        self._begin = now

    def _add(self, begin: Any, end: Any, waits: list[tuple[Any, Any]] | None = None) -> None:
        self._pending.append((begin, end, waits or []))
        self._flush(wait=False)

    def _flush(self, *, wait: bool) -> None:
        """Writes the steps whose end is known."""
        while self._pending and self._clock.reached(self._pending[0][1], wait):
            begin, end, waits = self._pending.pop(0)
            seconds = self._clock.seconds(begin, end)
            for wait_begin, wait_end in waits:
                seconds -= self._clock.seconds(wait_begin, wait_end)
            try:
                self._write(f"{self._iteration},{self._rank},{max(seconds, 1e-9):.9f}\n")
                self._iteration += 1
            except OSError as error:
                # Training goes on without its recording.
                self._pending.clear()
                self.close()
                warnings.warn(f"paceline.record stopped: {error}", stacklevel=2)

    def _write(self, line: str) -> None:
        if self._file is None:
            self._stop_looking_for_models()
            path = self._file_of(self._rank)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            if os.fstat(self._file).st_size == 0:
                waits = "included" if self.waits_included else "excluded"
                line = f"# waits: {waits}\niteration,worker,seconds\n{line}"
        os.write(self._file, line.encode())

    def _file_of(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.csv"

    def _remove_earlier(self, attempt: int) -> None:
        """Removes an earlier recording: the file of this rank and those of ranks that are no more."""
        if attempt > 0:
            return
        self._file_of(self._rank).unlink(missing_ok=True)
        for file in self._folder.glob("rank-*.csv"):
            rank = file.stem.removeprefix("rank-")
            if rank.isdecimal() and int(rank) >= self._world_size:
                file.unlink(missing_ok=True)


class _DdpSteps:
    """The steps of a DDP model, without its waits for other ranks.

    Gradients are ready when the backward pass is through; then DDP waits for their reduction, in a
    callback at the end of the pass. A callback queued before DDP's marks the one moment, a callback
    queued by the first, and so after DDP's, marks the other. A communication hook could tell the
    same, but it would replace DDP's own all-reduce, and run Python on the threads that communicate.
    """

    def __init__(self, recorder: Recorder, model: DistributedDataParallel) -> None:
        from torch.autograd import Variable

        # Has a callback run at the end of the backward pass in progress; FSDP uses it, too.
        self._queue_callback: Any = Variable._execution_engine.queue_callback
        compiled = _is_compiled(model) or _is_compiled(getattr(model, "module", model))
        model = getattr(model, "_orig_mod", model)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if parameters[0].is_cuda:
            recorder._clock = _CudaClock()
        self._recorder = recorder
        self._model = model
        self._queued = False
        self._synchronisations = 0
        # The waits for buffers in this step, and the beginning of one.
        self._waits: list[tuple[Any, Any]] = []
        self._wait_begin: Any = None
        # One of the two gets a gradient in every step, save in unusual models.
        ends = {id(parameter): parameter for parameter in (parameters[0], parameters[-1])}
        self.handles: list[Any] = [
            end.register_post_accumulate_grad_hook(self._in_backward) for end in ends.values()
        ]
        # A hook inside a compiled model would break its graph.
        waits_for_buffers = model.will_sync_module_buffers()
        self.waits_apart = not (waits_for_buffers and compiled)
        if waits_for_buffers and not compiled:
            self.handles += [
                model.register_forward_pre_hook(self._before_buffers),
                model.module.register_forward_pre_hook(self._after_buffers, prepend=True),
            ]

    def _in_backward(self, _: Any) -> None:
        if not self._queued and self._model.require_backward_grad_sync:
            self._queued = True
            self._queue_callback(self._ready)

    def _ready(self) -> None:
        recorder, now = self._recorder, self._recorder._clock.now()
        self._queue_callback(self._reduced)
        self._queued = False
        self._synchronisations += 1
        waits, self._waits = self._waits, []
        # The second step waits for other ranks when DDP rebuilds its buckets.
        if recorder._begin is not None and self._synchronisations > 2:
            recorder._add(recorder._begin, now, waits)

    def _reduced(self) -> None:
        self._recorder._begin = self._recorder._clock.now()

    def _before_buffers(self, *_: Any) -> None:
        self._wait_begin = self._recorder._clock.now()

    def _after_buffers(self, *_: Any) -> None:
        if self._wait_begin is not None:
            self._waits.append((self._wait_begin, self._recorder._clock.now()))
            self._wait_begin = None


class _Clock:
    """Moments of this process."""

    def now(self) -> Any:
        return time.perf_counter()

    def reached(self, moment: Any, wait: bool) -> bool:
        return True

    def seconds(self, begin: Any, end: Any) -> float:
        return float(end - begin)


class _CudaClock(_Clock):
    """Moments of a CUDA stream, which runs behind this process."""

    def now(self) -> Any:
        import torch

        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def reached(self, moment: Any, wait: bool) -> bool:
        if wait:
            moment.synchronize()
        return bool(moment.query())

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000.0


def _is_compiled(module: Any) -> bool:
    """Whether ``torch.compile()`` or ``module.compile()`` was called for this module."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _group() -> tuple[int, int]:
    """Rank and world size of this process, if it is one of several."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def cost(steps: int = 20_000) -> float:
    """Measures what the recorder adds to a step on this machine, in microseconds."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, record(folder, rank=0, world_size=1) as recorder:
        recorder.step()
        began = time.perf_counter()
        for _ in range(steps):
            recorder.step()
        return (time.perf_counter() - began) / steps * 1e6


if __name__ == "__main__":
    print(f"{cost():.2f} µs per step")
