"""This worker's contribution to a round, made by the hooks of its backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .data import split
from .errors import PacelineError, RunEnded, wrapped_in_ddp
from .gradients import GradientWriter
from .membership import Membership
from .micro_batches import MicroBatches, split_work
from .replica import Replica
from .update import Update
from .work import WorkSource

T = TypeVar("T")


class _Cut(Exception):
    """Ends a backward pass whose round is cut."""


class Contribution:
    """Sends the gradients of backward passes from their hooks, until the contribution is complete.

    A contribution has several passes under ``no_sync`` and with micro-batches. ``accumulate`` is the number of
    batches of the loader in one; ``knows_samples`` says whether the samples behind each batch of the loop's own
    data are known.
    """

    def __init__(
        self,
        membership: Membership,
        work: WorkSource,
        update: Update,
        replica: Replica,
        gradients: GradientWriter,
        *,
        accumulate: int,
        knows_samples: bool,
    ) -> None:
        self.under_way = False
        """Whether a pass has begun the contribution, and none has completed it."""
        self._membership = membership
        self._work = work
        self._update = update
        self._replica = replica
        self._gradients = gradients
        self._accumulate = accumulate
        self._knows_samples = knows_samples
        self._parts = MicroBatches()
        # The graph task of the backward pass under way.
        self._in_backward: int | None = None
        self._syncs = True
        # The loss scale of the pass.
        self._scale = 1.0
        # In a pass of session.backward(): its loss, and whether a hook may end it.
        self._loss: Tensor | None = None
        self._may_raise = False

    # -- The backward pass ------------------------------------------------------------------------------

    def watch(self) -> list[Any]:
        """Registers the hooks of the parameters; returns handles that end them."""
        return [
            slot.tensor.register_post_accumulate_grad_hook(self._hook(place))  # type: ignore[no-untyped-call]
            for place, slot in enumerate(self._replica.flat.params)
        ]

    def _hook(self, place: int) -> Callable[[Tensor], None]:
        def hook(param: Tensor) -> None:
            if not self._syncs:
                return
            # An exception may have ended the last backward pass before its end.
            if self._in_backward != torch._C._current_graph_task_id():
                self._begin_backward()
            worker = self._membership.worker
            assert worker is not None and param.grad is not None
            if not self._gradients.write(worker, place, param.grad, self._factor()) and self._may_raise:
                raise _Cut

        return hook

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Computes gradients, and stops in the middle when the round is cut."""
        self._loss = loss.detach()
        self._may_raise = loss.device.type == "cpu"
        try:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call]
        except _Cut:
            self._in_backward = None
            self._gradients.drop()
            if self._parts.count == 1:
                self._complete()
        finally:
            self._loss = None
            self._may_raise = False

    def _begin_backward(self) -> None:
        if self._update.awaits_step and not self.under_way:
            self._update.check_stepped()
        if not self._parts.in_loop:
            self.check_parts_finished()
        # A contribution may begin with another scale, for the losses to come.
        scale = self._replica.loss_scale
        if not self.under_way:
            self._begin()
        elif self._parts.is_finished:
            raise PacelineError(
                "backward() was called twice for one micro-batch: sum the losses of the micro-batch and "
                "call backward() once"
            )
        elif self._gradients.has_written and not self._membership.connected().restart():
            raise PacelineError(
                "the last backward() ended with an error inside a micro-batch, and a part of its gradient "
                'was added to earlier micro-batches: with straggler="salvage" it could be repeated'
            )
        self._in_backward = torch._C._current_graph_task_id()
        self._gradients.begin_pass()
        self._scale = scale
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _begin(self) -> None:
        """Inside a backward pass, which needs the parameters that it began with: a worker that is behind
        contributes nothing, and catches up after the pass."""
        if not self._membership.lost:
            self._update.end_step()
        if self._membership.hands_out and self._work.current is None:
            raise PacelineError(
                "backward() was called for a batch whose contribution is complete. Each batch of the "
                "loader makes one step: sum the losses, or accumulate inside session.no_sync()"
            )
        if self._work.current is None:
            self._work.claim()
        self._gradients.begin()
        self.under_way = True
        self._parts.finished = 0
        self._membership.connected().begin(self._parts.count)

    def _end_backward(self) -> None:
        """All gradients of a backward pass are there."""
        self._in_backward = None
        worker, samples = self._membership.connected(), self._samples()
        if self._gradients.write_rest(worker, self._factor(), samples):
            loss = self._loss_sum(samples)
            self._parts.finish()
            worker.finish(samples, loss, self._update.rates())
        self._gradients.begin_pass()
        if self._parts.is_last:
            self._complete()

    def _samples(self) -> float:
        """Samples of the micro-batch under way, or of the whole contribution."""
        return float(self._parts.samples or self._work.samples)

    def _factor(self) -> float:
        """From a gradient in ``.grad`` to the micro-batch's gradient sum."""
        return self._samples() * self._parts.divisor / self._scale

    def _loss_sum(self, samples: float) -> float | None:
        if self._loss is None or self._loss.numel() != 1:
            return None
        loss = float(self._loss) * self._parts.divisor / self._scale
        return loss * samples if loss == loss and abs(loss) != float("inf") else None

    def _complete(self) -> None:
        """Waits for the round, and takes its outcome."""
        worker = self._membership.connected()
        base = worker.taken()
        samples = self._work.samples
        self._finish_skipped()
        self.under_way = False
        self._work.current = None
        worker.forget()
        self._update.complete(base, samples)

    def _finish_skipped(self) -> None:
        """Micro-batches for which the loop did not call ``backward()`` count as gradients of zero, as they
        do where gradients are added up in ``.grad``."""
        worker = self._membership.connected()
        for samples in self._parts.unfinished.values():
            if worker.is_cut():
                break
            self._gradients.write_zeros(worker, samples)
            worker.finish(samples, None, self._update.rates())
        self._parts.unfinished = {}

    # -- Several passes ---------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside it accumulate in ``.grad`` and contribute nothing."""
        if self._parts.in_loop:
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
        """The micro-batches of a batch, until the round is cut. Completes the contribution at the end."""
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        if not self._syncs:
            raise PacelineError("micro_batches() inside no_sync(): give it all batches of the step at once")
        if not self._membership.hands_out and not self._knows_samples:
            raise PacelineError(
                "micro_batches() of a stream needs paceline.init(batch_size=), the samples behind each "
                "contribution: without it a cut salvages nothing"
            )
        self.check_parts_finished()
        self._update.end_step()
        if not self._membership.hands_out:
            self._work.get()
        parts = self._split(batch, n)
        self._parts.begin([samples for _, samples in parts], n)
        try:
            for place, (part, samples) in enumerate(parts):
                self._parts.enter(place, samples)
                if place > 0 and self._membership.connected().is_cut():
                    break
                yield part
                if self._update.holds_mean:
                    return
            if self.under_way and not self._update.holds_mean:
                self._complete()
        finally:
            self._parts.end()

    def _split(self, batch: T, n: int) -> list[tuple[T, int]]:
        if not self._membership.hands_out or self._work.current is None:
            return list(split(batch, n))
        return split_work(batch, n, self._work.samples, self._accumulate)

    def check_parts_finished(self) -> None:
        """Refuses to go on after a loop over micro-batches that was left early."""
        if self.under_way and self._parts.finished:
            raise PacelineError(
                "the loop over micro_batches() was left early: let it run to its end, which a cut brings about as "
                "well, or call session.close()"
            )

    # -- Between two passes -----------------------------------------------------------------------------

    def repeats(self) -> bool:
        """Whether the contribution under way, which an exception has ended, begins again with its batch. It
        does not if its round was cut meanwhile."""
        worker = self._membership.connected()
        if worker.is_cut():
            self.under_way = False
            worker.forget()
            return False
        if self._parts.finished:
            raise PacelineError(
                "the last loop was left after a part of its batch had been contributed: call "
                "session.close(), and paceline.init again"
            )
        return True

    def before_forward(self, model: nn.Module) -> None:
        """A loop over its own data joins and catches up before the forward pass, not inside ``backward()``."""
        # Inside a compiled function this hook would break the graph.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None) is not None:
            raise wrapped_in_ddp()
        if self._membership.hands_out or self.under_way or torch._C._current_graph_task_id() != -1:
            return
        if self._update.awaits_step and not self._update.has_stepped():
            return
        # In evaluation mode this may be the pass of a loop that trains, or have nothing to do with the run.
        if self._membership.worker is None and not self._knows_samples and not model.training:
            return
        try:
            self._update.end_step()
            self._work.get()
        except RunEnded:
            if model.training:
                raise
