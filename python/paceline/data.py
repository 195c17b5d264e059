"""Data from the ledger: every sample is used once per epoch, whatever was dropped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .errors import PacelineError

if TYPE_CHECKING:
    from .portions import Portions
    from .session import Session

log = logging.getLogger("paceline")
T = TypeVar("T")

Portion = tuple[int, tuple[tuple[int, int], ...]]
"""An epoch, and ranges of positions in its order: one worker's samples of one round."""


class LedgerLoader:
    """Loads the samples that the run hands to this worker.

    Iterating over it yields batches until the ledger's epoch is complete. Worker processes of the inner
    ``DataLoader`` prefetch the samples that are leased to this worker ahead of their rounds. A batch whose
    lease was revoked meanwhile is discarded.

    ``len()`` is the nominal number of batches per epoch. It is not a ``DataLoader`` itself, so launchers
    do not replace its sampler.
    """

    def __init__(
        self,
        session: Session,
        portions: Portions,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = True,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        drop_last: bool = False,
        in_order: bool = True,
        **kwargs: Any,
    ) -> None:
        for name in ("sampler", "batch_sampler"):
            if name in kwargs:
                raise PacelineError(f"{name} cannot be given: the run hands out the samples")
        if drop_last:
            raise PacelineError("drop_last cannot be given: every sample is used once per epoch")
        if not in_order:
            raise PacelineError("in_order=False cannot be given: a round needs the samples it was given")
        if not hasattr(dataset, "__len__") or isinstance(dataset, torch.utils.data.IterableDataset):
            raise PacelineError(
                "the dataset is a stream, whose samples cannot be handed out: iterate over your own DataLoader instead and give "
                "paceline.init its batch_size; only weights are counted then"
            )
        self.session = session
        self.portions = portions
        self.dataset = dataset
        self.batch_size = batch_size
        depth = num_workers * (prefetch_factor or 2)
        per_lease = session.accumulate
        self._sampler = LeaseSampler(portions, len(dataset), batch_size, per_lease, shuffle)
        self._keeps_workers = persistent_workers
        if num_workers > 0:
            # Prefetching may begin again in the middle of an epoch, which would start new processes.
            kwargs.update(prefetch_factor=prefetch_factor or 2, persistent_workers=True)
        self._make_inner: Callable[[], DataLoader[Any]] = lambda: DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=num_workers,
            pin_memory=pin_memory,
            **kwargs,
        )
        self._inner = self._make_inner()
        self._pins = pin_memory and torch.cuda.is_available()
        self._pin: Callable[[Any], Any] = torch.utils.data._utils.pin_memory.pin_memory
        # One lease more than are prefetched, so that the sampler always has the next one.
        ahead = -(-depth // per_lease) + 1 if depth else 0
        # The loop over the data: its epoch, the portion that `at_end` has got for it, and its batches so far.
        self._epoch: int | None = None
        self._ahead: Portion | None = None
        self._yielded = 0
        self._warns = True
        session.connect(len(dataset), batch_size * per_lease, ahead, shuffle)

    def __len__(self) -> int:
        return self._sampler.__len__()

    def __iter__(self) -> Iterator[Any]:
        prefetched = Prefetched(self._inner, self._sampler) if self._inner.num_workers > 0 else None
        last, batches = self._epoch, self._yielded
        self._epoch, self._ahead, self._yielded = None, None, 0
        try:
            while (portion := self._next_portion()) is not None:
                if portion[0] == last and batches == len(self):
                    self._warn_of_nominal_length()
                last, self._epoch = None, portion[0]
                self._sampler.epoch = portion[0]
                for batch in self._batches_of(portion, prefetched):
                    self._yielded += 1
                    yield batch
        finally:
            if prefetched is not None and not self._keeps_workers:
                self._inner = self._make_inner()

    def at_end(self) -> bool:
        """Whether the loop over this loader will get no more batches. Call it after ``optimizer.step()``.

        Waits, as the next iteration would, until the run has samples for this worker or the epoch is
        complete. It is for trainers that must know the last batch of an epoch before they go on.
        """
        if self._ahead is None and not self.portions.is_pending:
            self._ahead = self.portions.next(self._epoch)
        return not self.portions.is_pending

    def _next_portion(self) -> Portion | None:
        portion, self._ahead = self._ahead, None
        return portion if portion is not None else self.portions.next(self._epoch)

    def _warn_of_nominal_length(self) -> None:
        if self._warns:
            log.warning(
                "a loop over the loader ended after len(loader) batches and before the end of the epoch: "
                "len() is nominal, and workers do different numbers of batches. With Lightning, give the "
                "Trainer paceline.integrations.lightning.LedgerCallback(loader)"
            )
        self._warns = False

    def _batches_of(self, portion: Portion, prefetched: Prefetched | None) -> Iterator[Any]:
        """The batches of one portion: prefetched, or loaded here."""
        if prefetched is not None and prefetched.reaches(portion):
            yield from prefetched.batches(portion)
            return
        for indices in self._sampler.batches(portion):
            items = getattr(self.dataset, "__getitems__", None)
            samples = items(indices) if items is not None else [self.dataset[i] for i in indices]
            batch = self._inner.collate_fn(samples)
            yield self._pin(batch) if self._pins else batch


class Prefetched:
    """The batches that worker processes load ahead, in the order in which their portions were leased."""

    def __init__(self, loader: DataLoader[Any], sampler: LeaseSampler) -> None:
        self._loader = loader
        self._sampler = sampler
        self._batches: Iterator[Any] | None = None

    def reaches(self, portion: Portion) -> bool:
        """Whether the batches of this portion are under way. Begins anew if no others are wanted.

        The processes ask for the next lease whenever a batch was taken. If none of the batches under way
        is, because their leases were revoked or there were none, they would not load any more.
        """
        if self._batches is None or not self._sampler.is_wanted():
            self._sampler.begin()
            self._batches = iter(self._loader)
        return self._sampler.is_under_way(portion)

    def batches(self, portion: Portion) -> Iterator[Any]:
        """The batches of a portion that is under way. Others before it are discarded."""
        assert self._batches is not None
        self._sampler.deliver(portion)
        while True:
            found, part, parts = self._sampler.next_delivered()
            batch = next(self._batches)
            if found == portion:
                yield batch
                if part + 1 == parts:
                    return


class LeaseSampler:
    """Yields the indices of leased portions, in the order in which they will become work."""

    def __init__(
        self, portions: Portions, samples: int, batch_size: int, per_lease: int, shuffle: bool
    ) -> None:
        self.epoch = 0
        self._portions = portions
        self._samples = samples
        self._batch_size = batch_size
        # The least batches of a portion.
        self._per_lease = per_lease
        self._shuffle = shuffle
        # The batches that are under way, with the number of parts of their portions.
        self._under_way: deque[tuple[Portion, int, int]] = deque()
        self._delivering: Portion | None = None

    def __len__(self) -> int:
        per_round = self._batch_size * self._portions.workers
        return max(1, -(-self._samples // per_round))

    def begin(self) -> None:
        self._under_way.clear()
        self._delivering = None

    def deliver(self, portion: Portion) -> None:
        """The batches of this portion are being taken, so that it is not loaded again."""
        self._delivering = portion

    def __iter__(self) -> Iterator[list[int]]:
        return _Leases(self)

    def next_batches(self) -> list[list[int]]:
        """The batches of the next lease, which are under way from now on; none if there is no lease."""
        begun = {self._delivering, *(portion for portion, _, _ in self._under_way)}
        for portion in self._portions.leases():
            if portion[0] == self.epoch and portion not in begun:
                batches = self.batches(portion)
                self._under_way += [(portion, part, len(batches)) for part in range(len(batches))]
                return batches
        return []

    def is_wanted(self) -> bool:
        """Whether the lease of any batch under way still stands."""
        leases = self._portions.leases()
        return any(portion in leases for portion, _, _ in self._under_way)

    def is_under_way(self, portion: Portion) -> bool:
        return any(found == portion for found, _, _ in self._under_way)

    def next_delivered(self) -> tuple[Portion, int, int]:
        """The portion that the next prefetched batch belongs to, which of its parts, of how many."""
        return self._under_way.popleft()

    def batches(self, portion: Portion) -> list[list[int]]:
        """A portion's samples, as indices into the data, by batch.

        A portion smaller than others has as many batches, so that gradient accumulation comes out even: of
        fewer samples than batches some come twice, and the contribution still has the weight of its samples.
        """
        if self._shuffle:
            indices = self._portions.indices(portion)
        else:
            indices = [i for start, end in portion[1] for i in range(start, end)]
        total, least = len(indices), self._per_lease
        if total < least:
            return [[indices[place % total]] for place in range(least)]
        count = max(least, -(-total // self._batch_size))
        bounds = [total * part // count for part in range(count + 1)]
        return [indices[start:end] for start, end in zip(bounds, bounds[1:])]


class _Leases:
    """Indices of leased samples, batch by batch. After an end there may be more: leases come and go."""

    def __init__(self, sampler: LeaseSampler) -> None:
        self._sampler = sampler
        self._batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if not self._batches:
            self._batches = self._sampler.next_batches()
        if not self._batches:
            raise StopIteration
        return self._batches.pop(0)


def split(batch: T, n: int) -> Iterator[tuple[T, int]]:
    """Splits a batch along its first dimension into at most ``n`` parts, each with its samples."""
    length = samples_of(batch)
    _check_lengths(batch, length)
    bounds = [length * part // n for part in range(n + 1)]
    for start, end in zip(bounds, bounds[1:]):
        if start < end:
            yield _part(batch, start, end), end - start


def samples_of(batch: Any) -> int:
    """The length of a batch along its first dimension."""
    if isinstance(batch, Tensor | np.ndarray):
        return len(batch)
    if isinstance(batch, Mapping):
        return samples_of(next(iter(batch.values())))
    if isinstance(batch, tuple | list) and batch:
        return samples_of(batch[0]) if _is_nested(batch) else len(batch)
    raise PacelineError(f"a batch of type {type(batch).__name__} cannot be split into micro-batches")


def _check_lengths(batch: Any, length: int) -> None:
    """Refuses batches whose members differ in length: they are not split along the samples."""
    if isinstance(batch, Mapping):
        members = list(batch.values())
    elif isinstance(batch, tuple | list) and _is_nested(batch):
        members = list(batch)
    else:
        members = []
        is_one_value = isinstance(batch, str) or not hasattr(batch, "__len__") or not getattr(batch, "ndim", 1)
        found = length if is_one_value else len(batch)
        if found != length:
            raise PacelineError(
                f"a batch with members of {length} and {found} samples cannot be split into "
                "micro-batches: split it yourself, and accumulate inside session.no_sync()"
            )
    for member in members:
        _check_lengths(member, length)


def _is_nested(batch: Any) -> bool:
    """Whether a tuple or list holds batches, rather than one value per sample."""
    return bool(batch) and isinstance(batch[0], Tensor | Mapping | tuple | list | np.ndarray)


def _part(batch: Any, start: int, end: int) -> Any:
    if isinstance(batch, Tensor | np.ndarray):
        return batch[start:end] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return type(batch)({key: _part(value, start, end) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple | list):
        if _is_nested(batch):
            parts = [_part(value, start, end) for value in batch]
            named = hasattr(batch, "_fields")
            return type(batch)(*parts) if named else type(batch)(parts)
        return batch[start:end]
    return batch


__all__ = ["LedgerLoader", "LeaseSampler", "samples_of", "split"]
