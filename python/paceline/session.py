"""A training session: the user's loop computes, a Rust worker beside it talks to the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from .contribution import Contribution
from .data import LedgerLoader
from .errors import PacelineError
from .forward_hook import ForwardHook
from .gradients import GradientWriter
from .launch import Run
from .mean_update import MeanUpdate
from .membership import Membership
from .parameters import FlatVector
from .portions import Portions
from .replica import Replica
from .server_optimizer import describe
from .server_update import ServerUpdate
from .step import Step
from .update import Update
from .work import WorkSource

log = logging.getLogger("paceline")
T = TypeVar("T")


class Session:
    """Trains one or several models together with the other workers of a run.

    Create it with :func:`paceline.init`. The session connects when :meth:`loader` is called, or at the
    first ``backward()`` of a loop over its own data. Use it as a context manager, or call :meth:`close`.
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
        averages = mode == "mean"
        # A scaler that is switched off neither scales nor skips.
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        if not averages and scaler is not None:
            raise PacelineError(
                'GradScaler needs mode="mean": in mode "server" the shards cannot skip a step'
            )
        flat = FlatVector(models, optimizers, by_group=not averages, presence=averages)
        self._replica = replica = Replica(flat, models, optimizers, schedulers, scaler)
        described = [] if averages else describe(optimizers)
        self._membership = membership = Membership(
            replica,
            run=run,
            optimizers=None if averages else described,
            stepping=_stepping(lr_scaling, scaler),
            seed=seed,
            epochs=epochs,
            hash_every=hash_every,
            settings=settings,
            clears=scaler is not None,
            close=self.close,
        )
        self._update: Update = (
            MeanUpdate(membership, replica, lr_scaling)
            if averages
            else ServerUpdate(membership, replica, described)
        )
        work = WorkSource(membership, self._update, (batch_size or 1) * accumulate)
        self._contribution = Contribution(
            membership,
            work,
            self._update,
            replica,
            GradientWriter(membership, flat, scaled=scaler is not None, close=self.close),
            accumulate=accumulate,
            knows_samples=batch_size is not None,
        )
        self._update.is_contributing = lambda: self._contribution.under_way
        self._portions = Portions(membership, work, self._update, self._contribution)
        self._process = os.getpid()

        self._handles = self._contribution.watch()
        hook = ForwardHook(self._contribution)
        self._handles += [model.register_forward_pre_hook(hook) for model in models.values()]
        self._handles += self._update.watch()

    @property
    def last(self) -> Step | None:
        """The :class:`Step` of the last contribution, or ``None`` before the first."""
        return self._update.last

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Computes gradients like ``loss.backward()``, and stops early when the round is cut.

        In eager mode on a CPU it returns at the next gradient after the cut. Under ``torch.compile`` and on
        CUDA a cut takes effect between micro-batches. Takes the arguments of ``Tensor.backward``.
        """
        self._contribution.backward(loss, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager in which ``backward()`` accumulates in ``.grad`` without contributing, as in DDP.

        The first ``backward()`` after the context contributes the sum.
        """
        with self._contribution.no_sync():
            yield

    def micro_batches(self, batch: T, n: int) -> Iterator[T]:
        """Iterates over ``n`` micro-batches of a batch, and ends early when the round is cut.

        The batch is a tensor, or a tuple, list or mapping of batches. It is split along its first dimension.
        Divide the loss of each micro-batch by ``n``. Finished micro-batches count with the weight of their
        samples. After the loop ``.grad`` holds the mean.

        A batch of :meth:`loader` may have several rows per sample, or one row for several samples, if every
        micro-batch holds whole samples.
        """
        return self._contribution.micro_batches(batch, n)

    def skip_step(self) -> None:
        """Skips a step, for example because the norm of the gradient is too large.

        Call it instead of ``optimizer.step()``. All workers must make the same decision: base it on values that
        they share, such as the mean in ``.grad`` or :attr:`round`, and not on the loss of the local batch. A
        worker that missed the round skips the step as well. Only in mode ``"mean"``.
        """
        self._update.skip_step()

    def loader(self, dataset: Any, batch_size: int = 1, **kwargs: Any) -> LedgerLoader:
        """Returns a data loader for the samples that the run assigns: every sample is used once per epoch.

        ``batch_size`` is the number of samples per batch. Further arguments, such as ``num_workers`` and
        ``collate_fn``, are passed to :class:`torch.utils.data.DataLoader`. ``shuffle=False`` keeps the order of
        the data.
        """
        return LedgerLoader(self, self._portions, dataset, batch_size, **kwargs)

    def epochs(self, total: int) -> Iterator[int]:
        """Iterates over the epochs from the run's current one to ``total - 1``.

        A worker that joins late, or resumes a run, skips completed epochs. If the run stopped right after the
        last batch of an epoch, that epoch comes first, without batches, so that the loop does its work after
        the epoch.

        Call :meth:`loader` first. The iteration ends with the run, or after an epoch whose loop over the loader
        was left early.
        """
        if not self._membership.hands_out:
            raise PacelineError(
                "session.epochs() counts the epochs of session.loader(): call session.loader() before it. A "
                "stream has no epochs"
            )
        while (epoch := self.epoch) < total and self._membership.goes_on():
            yield epoch
            if self.epoch == epoch and self._membership.goes_on():
                log.warning(
                    "worker %d leaves session.epochs(), because the loop of epoch %d ended before all "
                    "samples of the epoch were used: iterate over the whole loader in every epoch",
                    self.number,
                    epoch,
                )
                return
        if self._membership.worker is not None:
            self._portions.finish(total - 1)

    @property
    def epoch(self) -> int:
        """The number of completed epochs."""
        worker, replication = self._membership.worker, self._membership.replication
        if worker is None:
            return 0
        unfinished = replication.unfinished if replication is not None else None
        return worker.epochs() if unfinished is None else unfinished

    @property
    def round(self) -> int:
        """The number of the round that the next contribution is for."""
        worker = self._membership.worker
        return worker.taken() if worker is not None else 0

    @property
    def number(self) -> int:
        """The number of this worker in the run."""
        return self._membership.connected().number

    def connect(
        self, samples: int | None, batch: int, ahead: int = 0, shuffle: bool = True
    ) -> None:
        """Joins the run with this data. :meth:`loader` and the first ``backward()`` call it."""
        self._membership.connect(samples, batch, ahead, shuffle)

    def close(self) -> None:
        """Leaves the run. A session that is not closed leaves when the interpreter exits."""
        if os.getpid() != self._process:
            # A forked process has the parent's connections, and none of its threads.
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._update.release()
        self._membership.leave(has_stepped=self._update.holds_mean and self._update.has_stepped())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stepping(lr_scaling: str | None, scaler: Any) -> str:
    """What changes a step beside the optimizer, in words."""
    rule = "" if lr_scaling in (None, "none") else f' with lr_scaling="{lr_scaling}"'
    return rule + ("" if scaler is None else " with a GradScaler")


def _check_free(models: dict[str, nn.Module]) -> None:
    """Refuses models that another session trains: both would contribute their gradients."""
    for model in models.values():
        for hook in model._forward_pre_hooks.values():
            if isinstance(hook, ForwardHook) and hook.contribution is not None:
                raise PacelineError(
                    "the model belongs to an earlier session already: call close() on that one first"
                )
