"""A training session: the user's loop computes, a Rust worker beside it talks to the run."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _native
from .data import LedgerLoader, Portion, split
from .errors import PacelineError, RunEnded, run_ended, wrapped_in_ddp
from .forward_hook import ForwardHook
from .joining import join
from .launch import Run, find_run
from .parameters import FlatVector, as_array
from .replica import Replica
from .replication import PARTING, PATIENCE, Replication
from .server_optimizer import check_fresh, describe, rates
from .step import Step, last_step, unused

log = logging.getLogger("paceline")
T = TypeVar("T")

Work = tuple[int, int, list[tuple[int, int]]]
"""The version to compute from, the epoch, and ranges of positions in its order."""

_REJOINS = 3
"""How often a worker that contributes nothing joins again."""


class _Cut(Exception):
    """Ends a backward pass whose round is cut."""


class Session:
    """Trains one or several models together with the other workers of a run.

    Create it with :func:`paceline.init`. The session connects when :meth:`loader` is called, or at the
    first ``backward()`` of a loop over its own data. Use it as a context manager, or call :meth:`close`.

    ``last`` is the :class:`Step` of the last contribution, and ``None`` before the first.
    """

    def __init__(
        self,
        models: dict[str, nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        scaler: Any | None,
        *,
        mode: str,
        batch_size: int | None,
        accumulate: int,
        seed: int,
        epochs: int | None,
        hash_every: int,
        lr_scaling: str | None,
        run: Run | None,
        settings: dict[str, str],
    ) -> None:
        _check_free(models)
        self.mode = mode
        self.accumulate = accumulate
        self.seed = seed
        self.last: Step | None = None
        self._averages = mode == "mean"
        # A scaler that is switched off neither scales nor skips.
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        if not self._averages and scaler is not None:
            raise PacelineError(
                'GradScaler needs mode="mean": in mode "server" the shards cannot skip a step'
            )
        self._flat = FlatVector(
            models, optimizers, by_group=not self._averages, presence=self._averages
        )
        self._replica = Replica(self._flat, models, optimizers, schedulers, scaler)
        self._described = [] if self._averages else describe(optimizers)
        self._check_fresh()
        self._scaler = scaler
        self._replication: Replication | None = None
        self._hash_every = hash_every
        self._lr_scaling = lr_scaling
        self._batch_size = batch_size
        self._epochs = epochs
        self._run = run
        self._settings = settings
        self._worker: _native.Worker | None = None
        self._process = os.getpid()
        self._workers = 1
        self._reference = 1.0
        self._mean_weight = 1.0
        self._missed = 0
        self._pending: tuple[int, int] | None = None
        self._work: Work | None = None

        # The data that it joined with: samples, batch and leases ahead.
        self._joined: tuple[int | None, int, int] = (None, 1, 0)
        self._takes_state = False
        # In mode "server": whether frozen values differ from those of the run, and the hash of the first ones.
        self._takes_frozen = False
        self._frozen_hash: int | None = None
        self._lost = False
        self._rejoins = 0

        # The contribution under way.
        self._written: list[bool] = [False] * len(self._flat.params)
        self._in_backward: int | None = None
        self._begun = False
        self._hands_out = False
        self._holds_mean = False
        # Whether the loop has called skip_step() for this mean.
        self._skipped = False
        # In mode "server": the version that the last step loaded, and whether rounds were missed.
        self._loaded: int | None = None
        self._behind = False
        self._syncs = True
        self._parts = 1
        self._divisor = 1
        self._part = 0
        self._in_parts = False
        self._part_samples = 0
        self._unfinished: dict[int, int] = {}
        self._done_parts = 0
        self._scale = 1.0
        self._overflow = False
        self._loss: Tensor | None = None
        self._may_raise = False

        self._handles: list[Any] = [
            slot.tensor.register_post_accumulate_grad_hook(self._hook(place))  # type: ignore[no-untyped-call]
            for place, slot in enumerate(self._flat.params)
        ]
        # A loop over its own data joins and catches up before the forward pass, not inside backward().
        self._handles += [m.register_forward_pre_hook(ForwardHook(self)) for m in models.values()]
        if self._averages:
            self._handles += self._replica.steps.watch()
            self._replica.steps.check = self._check_mean
            if lr_scaling is not None:
                self._replica.steps.lr_factor = self._lr_factor
        else:
            for optimizer in optimizers:
                vars(optimizer)["step"] = self._server_step()

    def _check_fresh(self) -> None:
        if not self._averages:
            check_fresh(self._replica.optimizers)

    # -- What the training loop calls ---------------------------------------------------------------

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Computes gradients like ``loss.backward()``, and stops in the middle when the round is cut.

        On a CPU in eager mode this returns at the next gradient after a cut. Under ``torch.compile`` and
        on CUDA a cut takes effect between micro-batches. Arguments are those of ``Tensor.backward``.
        """
        self._loss = loss.detach()
        self._may_raise = loss.device.type == "cpu"
        try:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call]
        except _Cut:
            self._in_backward = None
            self._drop_grads()
            if self._parts == 1:
                self._complete()
        finally:
            self._loss = None
            self._may_raise = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which ``backward()`` accumulates in ``.grad`` without contributing, as under DDP.

        The first ``backward()`` after it contributes the sum.
        """
        if self._in_parts:
            raise PacelineError(
                "no_sync() inside micro_batches(): micro-batches are added up without it, and the round "
                "closes when the last one is done"
            )
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def micro_batches(self, batch: T, n: int) -> Iterator[T]:
        """Splits a batch into ``n`` micro-batches; ends early when the round is cut.

        A batch is a tensor, or a tuple, list or mapping of batches; it is split along its first
        dimension. Divide the loss of each micro-batch by ``n``. Finished micro-batches count with the
        weight of their samples. ``.grad`` holds the mean when the loop has ended.

        A batch of :meth:`loader` may have several rows per sample, or one for several samples, if its
        micro-batches hold whole samples.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        if not self._syncs:
            raise PacelineError("micro_batches() inside no_sync(): give it all batches of the step at once")
        if not self._hands_out and self._batch_size is None:
            raise PacelineError(
                "micro_batches() of a stream needs paceline.init(batch_size=), the samples behind each "
                "contribution: without it a cut salvages nothing"
            )
        self._check_parts_finished()
        self._boundary()
        if not self._hands_out:
            self._get_work()
        parts = self._weighed(list(split(batch, n)), n)
        self._parts, self._divisor, self._in_parts = len(parts), n, True
        self._done_parts = 0
        self._unfinished = {place: samples for place, (_, samples) in enumerate(parts)}
        try:
            for self._part, (part, samples) in enumerate(parts):
                self._part_samples = samples
                if self._part > 0 and self._connected().is_cut():
                    break
                yield part
                if self._holds_mean:
                    return
            if self._begun and not self._holds_mean:
                self._complete()
        finally:
            self._parts, self._part, self._part_samples, self._divisor = 1, 0, 0, 1
            self._unfinished, self._in_parts = {}, False

    def _weighed(self, parts: list[tuple[T, int]], n: int) -> list[tuple[T, int]]:
        """Parts of a batch with the samples behind their rows: a ``collate_fn`` may make more or fewer rows."""
        if not self._hands_out or self._work is None:
            return parts
        if self.accumulate > 1:
            raise PacelineError(
                f"micro_batches() with paceline.init(accumulate={self.accumulate}): leave accumulate out, and "
                "give the loader the whole batch"
            )
        rows, samples = sum(count for _, count in parts), self._samples_of_work()
        if any(samples * count % rows for _, count in parts):
            raise PacelineError(
                f"a batch of {rows} rows from {samples} samples cannot be split into {n} micro-batches of whole "
                "samples: choose another n, or split it yourself and accumulate inside session.no_sync()"
            )
        return [(part, samples * count // rows) for part, count in parts]

    def skip_step(self) -> None:
        """Ends a step without ``optimizer.step()``, for example because the norm of the gradient is too large.

        Call it instead of ``optimizer.step()``, on every worker alike: decide by what all workers share, such as
        the mean in ``.grad`` or :attr:`round`, and not by the loss of the own batch. A worker that missed the
        round skips the step as well. Only in mode ``"mean"``.
        """
        if not self._averages:
            raise PacelineError('skip_step() needs mode="mean": in mode "server" the shards step')
        if self._begun:
            raise PacelineError("skip_step() came before the last backward() of the step")
        if any(self._replica.steps.done):
            raise PacelineError("skip_step() came after optimizer.step()")
        self._skipped = True

    def loader(self, dataset: Any, batch_size: int = 1, **kwargs: Any) -> LedgerLoader:
        """A data loader whose samples the run hands out: every sample is used once per epoch.

        Further arguments go to :class:`torch.utils.data.DataLoader`, such as ``num_workers`` and
        ``collate_fn``. ``shuffle=False`` keeps the order of the data.
        """
        return LedgerLoader(self, dataset, batch_size, **kwargs)

    def epochs(self, total: int) -> Iterator[int]:
        """The epochs from the run's current one to ``total - 1``. A worker that joins late, or resumes a run,
        skips the ones that are over.

        If the run stopped right after the last batch of an epoch, that epoch comes first, without batches:
        for what the loop does after an epoch.

        Call :meth:`loader` before. The iteration ends with the run, and with the first epoch whose loop over
        the loader was left before its end.
        """
        if not self._hands_out:
            raise PacelineError(
                "session.epochs() counts the epochs of session.loader(): call session.loader() before it. A "
                "stream has no epochs"
            )
        while (epoch := self.epoch) < total and self._goes_on():
            yield epoch
            if self.epoch == epoch and self._goes_on():
                log.warning(
                    "worker %d leaves session.epochs(), because the loop of epoch %d ended before all "
                    "samples of the epoch were used: iterate over the whole loader in every epoch",
                    self.number,
                    epoch,
                )
                return

    @property
    def epoch(self) -> int:
        """The number of epochs of which every sample was used."""
        if self._worker is None:
            return 0
        unfinished = self._replication.unfinished if self._replication is not None else None
        return self._worker.epochs() if unfinished is None else unfinished

    @property
    def round(self) -> int:
        """The round that the next contribution is for."""
        return self._worker.taken() if self._worker is not None else 0

    @property
    def number(self) -> int:
        """This worker's number in the run."""
        return self._connected().number

    def close(self) -> None:
        """Leaves the run. Without it the session leaves when the interpreter exits."""
        if os.getpid() != self._process:
            # A forked process has the parent's connections, and none of its threads.
            return
        worker, self._worker = self._worker, None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if not self._averages:
            for optimizer in self._replica.optimizers:
                vars(optimizer).pop("step", None)
        if worker is not None:
            atexit.unregister(self.close)
            deadline = time.monotonic() + PARTING
            if self._replication is not None:
                if self._holds_mean and self._has_stepped():
                    self._replication.tell_last_step(worker.taken())
                self._replication.finish_uploads(deadline)
            try:
                worker.leave(max(0.0, deadline - time.monotonic()))
            except RuntimeError as error:
                log.warning("the run was lost before this worker left it: %s", error)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- Joining the run ------------------------------------------------------------------------------

    def connect(self, samples: int | None, batch: int, ahead: int = 0) -> None:
        """Joins the run with this data; :meth:`loader` and the first ``backward()`` do it."""
        self._join(samples, batch, ahead)
        self._make_ready()

    def _join(self, samples: int | None, batch: int, ahead: int = 0) -> None:
        if self._worker is not None:
            raise PacelineError(
                "the session is connected already: call session.loader() once, and before the first "
                "forward pass in training mode"
            )
        self._check_fresh()
        self._run = run = self._run or find_run()
        self._joined = (samples, batch, ahead)
        if self._frozen_hash is None:
            self._frozen_hash = self._replica.frozen_hash()
        worker, taken = join(
            run,
            tensors=self._flat.tensors,
            hashes=self._replica.hashes()[: len(self._flat.tensors)],
            frozen_bytes=self._replica.frozen_bytes,
            frozen_hash=self._frozen_hash,
            optimizers=None if self._averages else self._described,
            steppers=self._replica.kinds() if self._averages else [],
            samples=samples,
            batch=batch,
            seed=self.seed,
            epochs=self._epochs,
            settings=self._settings,
            state=lambda: bytes(self._replica.capture(0, epoch=0)),
        )
        self._worker = worker
        self._workers = worker.workers
        self._reference = float(batch * worker.workers)
        self._replication = Replication(
            worker, self._replica, self._hash_every, is_late=taken is not None
        )
        self._hands_out = samples is not None
        self._takes_state = taken is not None
        self._takes_frozen = not self._averages and len(self._flat.tensors) in (taken or ())
        atexit.register(self.close)

    def _make_ready(self) -> None:
        """The worker may be given work, once it has the run's state."""
        worker, (samples, _, ahead) = self._connected(), self._joined
        version = worker.version
        if self._takes_state:
            replication, begins = self._connected_replication(), self._rejoins == 0
            if self._takes_frozen:
                replication.take_frozen()
                self._frozen_hash = self._replica.frozen_hash()
                self._takes_frozen = False
            version = replication.join_run(version, has_optimizer=self._averages, begins=begins)
            self._takes_state = False
        # Under a loss scale a gradient is removed again if a later one overflows.
        worker.ready(version, samples, ahead, clears=self._scaler is not None)

    def _lose(self, base: int, error: RuntimeError) -> None:
        """Ends a step whose contribution is lost with the connection. Before the next step the worker
        joins again and takes the run's state, so what this one does to the replica does not matter."""
        log.warning("worker %d lost the run (%s): it joins again", self.number, error)
        self._lost = True
        self._step_nothing(base, "this worker lost the run")

    def _step_nothing(self, base: int, reason: str) -> None:
        """Ends a step without a mean: the training loop's own step changes nothing."""
        self._replica.flat.clear()
        if self._averages:
            self._replica.skip_step()
        self.last = unused(base, reason)

    def _is_lost(self, error: RuntimeError) -> bool:
        """Whether the connection is lost, and the run may go on without this worker."""
        worker = self._connected()
        return worker.lost() or (isinstance(error, _native.ConnectionLost) and worker.ended() is None)

    def _is_over(self) -> bool:
        """Whether the run has reached its end, for all workers."""
        worker = self._connected()
        return worker.ended() is not None and not worker.failed() and not worker.lost()

    def _says_over(self, error: RuntimeError) -> bool:
        """Whether this error means only that the run has reached its end."""
        return isinstance(error, RunEnded | _native.ConnectionLost) and self._is_over()

    def _has_no_mean(self, base: int, error: RuntimeError) -> None:
        """Ends a step whose wait for the round has failed, or raises the error. A loop over the loader ends
        by itself."""
        if self._is_lost(error):
            self._lose(base, error)
        elif self._hands_out and self._says_over(error):
            self._step_nothing(base, f"the run is over: {self._connected().ended()}")
        elif isinstance(error, _native.ConnectionLost):
            raise run_ended(self._connected()) from error
        else:
            raise error

    def _join_again(self) -> None:
        worker, self._worker = self._connected(), None
        self._lost = self._overflow = self._holds_mean = self._behind = False
        self._loaded = None
        self._replica.steps.forget()
        self._rejoins += 1
        self._missed = 0
        try:
            worker.leave(PARTING)
        except RuntimeError:
            log.debug("the connection was lost before")
        try:
            if self._rejoins > _REJOINS:
                raise PacelineError("it was lost again and again")
            self.connect(*self._joined)
        except RuntimeError as error:
            raise RunEnded(f"the run is lost, and this worker cannot join again: {error}") from None

    def _connected(self) -> _native.Worker:
        if self._worker is None:
            raise PacelineError("the session is closed, or not connected yet")
        return self._worker

    def _connected_replication(self) -> Replication:
        if self._replication is None:
            raise PacelineError("the session is not connected yet")
        return self._replication

    def _goes_on(self) -> bool:
        """Whether a loop over the epochs goes on. A worker that has lost the run joins again."""
        if self._worker is None:
            return False
        if self._worker.failed():
            raise run_ended(self._worker)
        return not self._is_over()

    # -- The backward pass ----------------------------------------------------------------------------

    def _hook(self, place: int) -> Callable[[Tensor], None]:
        slot = self._flat.params[place]

        def hook(param: Tensor) -> None:
            if not self._syncs:
                return
            # An exception may have ended the last backward pass before its end.
            if self._in_backward != torch._C._current_graph_task_id():
                self._begin_backward()
            worker = self._worker
            assert worker is not None and param.grad is not None
            self._written[place] = True
            finite = worker.write(slot.offset, as_array(param.grad), self._factor())
            param.grad = None
            if finite is None:
                if self._may_raise:
                    raise _Cut
            elif not finite:
                self._not_finite(slot.name)

        return hook

    def _begin_backward(self) -> None:
        if (self._holds_mean or self._pending is not None) and not self._begun:
            self._check_stepped()
        if not self._in_parts:
            self._check_parts_finished()
        # A contribution may begin with another scale, for the losses to come.
        scale = self._loss_scale()
        if not self._begun:
            self._begin_contribution()
        elif self._in_parts and self._part not in self._unfinished:
            raise PacelineError(
                "backward() was called twice for one micro-batch: sum the losses of the micro-batch and "
                "call backward() once"
            )
        elif any(self._written) and not self._connected().restart():
            raise PacelineError(
                "the last backward() ended with an error inside a micro-batch, and a part of its gradient "
                'was added to earlier micro-batches: with straggler="salvage" it could be repeated'
            )
        self._in_backward = torch._C._current_graph_task_id()
        self._written = [False] * len(self._flat.params)
        self._scale = scale
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _check_parts_finished(self) -> None:
        if self._begun and self._done_parts:
            raise PacelineError(
                "the loop over micro_batches() was left early: let it run to its end, which a cut brings about as "
                "well, or call session.close()"
            )

    def _check_stepped(self) -> None:
        if not self._has_stepped():
            raise PacelineError(
                "backward() was called twice without optimizer.step() in between. Call step() after "
                "each backward(), or session.skip_step() to leave a step out, or accumulate inside "
                "session.no_sync() or session.micro_batches()"
            )

    def _check_mean(self) -> None:
        # Before it has joined, a worker may change its initial values as it likes.
        if self._worker is not None and not self._holds_mean:
            raise PacelineError(
                "optimizer.step() came before the last backward() of the step: .grad has no mean yet. Call it "
                "once per step, after the loop over micro_batches() or the backward() outside no_sync()"
            )

    def _has_stepped(self) -> bool:
        if not self._averages:
            return self._pending is None
        return any(self._replica.steps.done) or self._overflow or self._skipped

    def _begin_contribution(self) -> None:
        """Inside a backward pass, which needs the parameters that it began with: a worker that is behind
        contributes nothing, and catches up after the pass."""
        if not self._lost:
            self._boundary()
        if self._hands_out and self._work is None:
            raise PacelineError(
                "backward() was called for a batch whose contribution is complete. Each batch of the "
                "loader makes one step: sum the losses, or accumulate inside session.no_sync()"
            )
        if self._work is None:
            self._claim_work()
        self._overflow = self._skipped = False
        self._begun = True
        self._done_parts = 0
        self._connected().begin(self._parts)

    def _get_work(self) -> None:
        """Gets work for a loop over its own data."""
        if self._worker is None:
            self.connect(None, (self._batch_size or 1) * self.accumulate)
        if self._work is None:
            self._work = self._next_work()
            if self._work is None:
                raise run_ended(self._connected())
            self._connected_replication().enter(self._work[1], new_loop=False)

    def _claim_work(self) -> None:
        """Gets work without a change to the replica: none if this worker is behind the run."""
        if self._worker is None:
            self._join(None, (self._batch_size or 1) * self.accumulate)
            if not (self._takes_state and (self._averages or self._takes_frozen)):
                self._make_ready()
        worker, replication = self._connected(), self._connected_replication()
        while not self._takes_state and not self._lost:
            turn = worker.next(PATIENCE)
            if isinstance(turn, tuple):
                self._work = turn
                replication.enter(turn[1], new_loop=False)
                return
            if turn == "loaded":
                return
            if (ended := worker.ended()) is not None:
                if not worker.lost():
                    raise run_ended(worker)
                log.warning("worker %d lost the run (%s): it joins again", self.number, ended)
                self._lost = True
            elif self._averages:
                replication.serve(worker.taken())

    def _before_forward(self, model: nn.Module) -> None:
        # Inside a compiled function this hook would break the graph.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None) is not None:
            raise wrapped_in_ddp()
        if self._hands_out or self._begun or torch._C._current_graph_task_id() != -1:
            return
        if (self._holds_mean or self._pending is not None) and not self._has_stepped():
            return
        # In evaluation mode this may be the pass of a loop that trains, or have nothing to do with the run.
        if self._worker is None and self._batch_size is None and not model.training:
            return
        try:
            self._boundary()
            self._get_work()
        except RunEnded:
            if model.training:
                raise

    def _factor(self) -> float:
        """From a gradient in ``.grad`` to the part's gradient sum."""
        return self._samples() * self._divisor / self._scale

    def _samples(self) -> float:
        if self._part_samples:
            return float(self._part_samples)
        if self._work is not None and self._work[2]:
            return float(sum(end - start for start, end in self._work[2]))
        return float((self._batch_size or 1) * self.accumulate)

    def _not_finite(self, name: str) -> None:
        if self._scaler is None:
            self._refuse(name, "gradient")
        self._overflow = True

    def _refuse(self, name: str, what: str) -> None:
        number, base = self.number, self.round
        self.close()
        raise PacelineError(
            f"the {what} of `{name}` is not finite (worker {number}, round {base}). The other workers go "
            "on without this one. Lower the learning rate, clip, or give paceline.init(scaler=) your "
            "GradScaler"
        )

    def _end_backward(self) -> None:
        """All gradients of a backward pass are there."""
        self._in_backward = None
        worker = self._connected()
        if self._write_rest(worker):
            samples = self._samples()
            loss = self._loss_sum(samples)
            self._unfinished.pop(self._part, None)
            self._done_parts += 1
            worker.finish(samples, loss, self._rates())
        self._written = [False] * len(self._flat.params)
        if self._parts == 1 or self._part == self._parts - 1:
            self._complete()

    def _rates(self) -> list[float]:
        """The learning rates of this step, in mode "server". Other options are those of the first step."""
        if self._averages:
            return []
        optimizers = self._replica.optimizers
        for first, now in zip(self._described, describe(optimizers)):
            if first != now:
                raise PacelineError(
                    f"the options of the optimizer changed from {first} to {now}: in mode \"server\" only "
                    'the learning rate may change. Use mode="mean" (or cycle_momentum=False)'
                )
        return rates(optimizers)

    def _finish_skipped(self) -> None:
        """Micro-batches for which the loop did not call ``backward()`` count as gradients of zero, as they
        do where gradients are added up in ``.grad``. Their running statistics are those of now."""
        worker, flat = self._connected(), self._flat
        for samples in self._unfinished.values():
            if worker.is_cut():
                break
            worker.skip(0, flat.params_end)
            self._write_statistics(worker, samples)
            worker.skip(flat.presence_at, flat.length - flat.presence_at)
            worker.finish(samples, None, self._rates())
        self._unfinished = {}

    def _write_rest(self, worker: _native.Worker) -> bool:
        """Writes what no hook has written: accumulated and absent gradients, statistics, presence."""
        factor, flat = self._factor(), self._flat
        for place, slot in enumerate(flat.params):
            grad = slot.tensor.grad
            if self._written[place]:
                continue
            if grad is None:
                worker.skip(slot.offset, slot.size)
                continue
            self._written[place] = True
            finite = worker.write(slot.offset, as_array(grad), factor)
            slot.tensor.grad = None
            if finite is False:
                self._not_finite(slot.name)
        if not flat.has_presence:
            return not worker.is_cut()
        weight = self._samples()
        self._write_statistics(worker, weight)
        presence = torch.tensor([*self._written, self._overflow], dtype=torch.float32, device="cpu")
        if self._overflow:
            worker.clear(0, flat.params_end)
        return worker.write(flat.presence_at, presence.numpy(), weight) is not None

    def _write_statistics(self, worker: _native.Worker, weight: float) -> None:
        for buffer in self._flat.buffers:
            if worker.write(buffer.offset, as_array(buffer.tensor), weight) is False:
                self._refuse(buffer.name, "running statistics")

    def _loss_sum(self, samples: float) -> float | None:
        if self._loss is None or self._loss.numel() != 1:
            return None
        loss = float(self._loss) * self._divisor / self._scale
        return loss * samples if loss == loss and abs(loss) != float("inf") else None

    def _drop_grads(self) -> None:
        """Nothing of an unfinished micro-batch stays in ``.grad``."""
        self._written = [False] * len(self._flat.params)
        self._flat.drop_grads()

    # -- Between the contribution and the step -------------------------------------------------------

    def _complete(self) -> None:
        """Waits for the round, replays rounds that were missed, and puts the mean into ``.grad``."""
        worker = self._connected()
        base = worker.taken()
        samples = self._samples_of_work()
        self._finish_skipped()
        self._begun = False
        self._work = None
        worker.forget()
        if self._lost or self._takes_state:
            self._join_late(base)
        elif self._averages:
            self._take_mean(base, samples)
        if not self._averages:
            self._pending = (base, samples)

    def _join_late(self, base: int) -> None:
        """Gets the run's state after a backward pass that had none to contribute to."""
        if self._lost:
            self._join_again()
        else:
            self._make_ready()
        if self._averages:
            self._replica.steps.forget()
            self._replica.skip_step()
            self.last = unused(base, "this worker joined the run")

    def _take_mean(self, base: int, samples: int) -> None:
        worker, replication = self._connected(), self._connected_replication()
        try:
            self._wait_for_version(while_waiting=lambda: replication.serve(base))
            missed = replication.catch_up(takes_last=True) + self._missed
        except RuntimeError as error:
            self._has_no_mean(base, error)
            return
        self._rejoins = self._missed = 0
        self._replica.steps.forget()
        if worker.newest() == worker.taken():
            self._overflow = False
            self._replica.skip_step()
            replication.tell_replayed(worker.taken())
            self.last = last_step(worker, base, samples, missed)
            return
        replication.step_taken()
        worker.take(self._flat.array)
        self._flat.remember()
        self._flat.statistics()
        self._overflow = self._flat.overflowed
        self._flat.grads(self._loss_scale(), overflow=self._overflow)
        self._holds_mean = True
        closed = worker.closed(worker.taken() - 1)
        self._mean_weight = closed[2] if closed is not None else self._reference
        self.last = last_step(worker, base, samples, missed)

    def _loss_scale(self) -> float:
        return self._scaler.get_scale() if self._scaler is not None else 1.0

    def _samples_of_work(self) -> int:
        if self._work is None or not self._work[2]:
            return int((self._batch_size or 1) * self.accumulate)
        return sum(end - start for start, end in self._work[2])

    def _wait_for_version(self, while_waiting: Callable[[], None]) -> None:
        worker = self._connected()
        while_waiting()
        while worker.next_version(PATIENCE) is None:
            if worker.ended() is not None:
                raise run_ended(worker)
            while_waiting()

    # -- Around the step --------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """The step on the last mean is over: its record goes to workers that will miss it."""
        self._flat.check_frozen()
        if self._lost:
            self._join_again()
        replication = self._replication
        if replication is None or self._worker is None:
            return
        if not self._averages:
            self._follow_run(replication)
        elif self._holds_mean:
            self._check_stepped()
            self._holds_mean = False
            replication.tell_stepped(self._worker.taken())
        else:
            replication.begin_step()

    def _follow_run(self, replication: Replication) -> None:
        """In mode "server": gives others the learning rates after this step, or takes theirs over."""
        if self._behind:
            replication.follow_run(self._connected().taken())
        elif self._loaded is not None:
            replication.tell_stepped(self._loaded)
        self._behind, self._loaded = False, None

    def _lr_factor(self) -> float:
        assert self._lr_scaling is not None
        return _native.lr_factor(self._lr_scaling, self._mean_weight, self._reference)

    def _next_work(self, epoch: int | None = None) -> Work | None:
        """The next work: version, epoch, ranges. ``None`` when the run or ``epoch`` is over."""
        while True:
            try:
                turn = self._turn(epoch)
            except RuntimeError as error:
                if self._says_over(error):
                    log.warning("the run ended before worker %d had caught up with it", self.number)
                    return None
                if not self._is_lost(error):
                    raise
                log.warning("worker %d lost the run (%s): it joins again", self.number, error)
                self._join_again()
                continue
            if turn != "wait":
                return turn

    def _turn(self, epoch: int | None) -> Work | None | Literal["wait"]:
        worker = self._connected()
        turn = worker.next(PATIENCE)
        if isinstance(turn, tuple):
            return turn if epoch in (None, turn[1]) else None
        if turn == "loaded":
            replication = self._connected_replication()
            if self._averages:
                self._missed += replication.catch_up(takes_last=False)
                replication.tell_replayed(worker.taken())
            else:
                self._load_parameters()
                if worker.taken() > 0:
                    replication.follow_run(worker.taken())
            replication.caught_up()
        elif worker.ended() is not None:
            is_complete = self._epochs is not None and worker.epochs() >= self._epochs
            if worker.failed() or (worker.lost() and not is_complete):
                raise run_ended(worker)
            return None
        elif epoch is not None and worker.epochs() > epoch and not worker.is_behind():
            # After the last epoch a replica stays until all have stepped its last round: a slower one may
            # need its state.
            if not self._averages or self._epochs is None or epoch + 1 < self._epochs:
                return None
        if self._averages:
            new_loop = epoch is None and self._hands_out
            self._connected_replication().serve(worker.taken(), new_loop=new_loop)
        return "wait"

    def _next_portion(self, epoch: int | None) -> Portion | None:
        """The samples of the next work, for the loader."""
        self._boundary()
        if epoch is None and self._work is not None:
            # The last iteration was left in the middle: its batch comes again.
            if self._begun and self._repeats_contribution():
                return self._work[1], tuple(self._work[2])
            self._work = None
        if self._work is not None:
            self._check_parts_finished()
            raise PacelineError(
                "the last batch was not used: call backward() for every batch, or leave the loop"
            )
        if epoch is None and self._connected_replication().finish_epoch():
            return None
        self._work = self._next_work(epoch)
        if self._work is None:
            return None
        self._connected_replication().enter(self._work[1], new_loop=epoch is None)
        return self._work[1], tuple(self._work[2])

    def _repeats_contribution(self) -> bool:
        """Whether the contribution under way, which an exception has ended, begins again with its batch. It
        does not if its round was cut meanwhile."""
        worker = self._connected()
        if worker.is_cut():
            self._begun = False
            worker.forget()
            return False
        if self._done_parts:
            raise PacelineError(
                "the last loop was left after a part of its batch had been contributed: call "
                "session.close(), and paceline.init again"
            )
        return True

    def _leases(self) -> list[Portion]:
        """The samples of this worker's work and of its next rounds, in order."""
        leases = [(epoch, tuple(ranges)) for epoch, ranges in self._connected().leases()]
        if self._work is not None:
            leases.insert(0, (self._work[1], tuple(self._work[2])))
        return leases

    def _server_step(self) -> Callable[..., None]:
        def step(closure: Any = None) -> None:
            self._step_on_server(closure)

        # Else a scheduler warns that it cannot see whether the optimizer has stepped.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        return step

    def _step_on_server(self, closure: Any = None) -> None:
        """``optimizer.step()`` where the optimizer runs on the shards: loads the new parameters."""
        if closure is not None:
            raise PacelineError('step(closure) is not supported in mode "server"')
        if self._begun:
            raise PacelineError("optimizer.step() came before the last backward() of the step")
        if self._pending is None:
            # Another optimizer of the session has stepped: the shards step all of them at once.
            return
        (base, samples), self._pending = self._pending, None
        try:
            self._wait_for_version(while_waiting=lambda: None)
        except RuntimeError as error:
            self._has_no_mean(base, error)
            return
        self._rejoins = 0
        self._load_parameters()
        self._loaded = self._connected().taken()
        self._behind = self._loaded != base + 1
        self.last = last_step(self._connected(), base, samples)
        for optimizer in self._replica.optimizers:
            optimizer._opt_called = True  # type: ignore[attr-defined]

    def _load_parameters(self) -> None:
        self._connected().take(self._flat.array)
        with torch.no_grad():
            for slot in self._flat.params:
                slot.tensor.copy_(self._flat.values[slot.range].view(slot.tensor.shape))


def _check_free(models: dict[str, nn.Module]) -> None:
    """Refuses models that another session trains: both would contribute their gradients."""
    for model in models.values():
        for hook in model._forward_pre_hooks.values():
            if isinstance(hook, ForwardHook) and hook.session is not None:
                raise PacelineError(
                    "the model belongs to an earlier session already: call close() on that one first"
                )
