"""Data from the ledger: every sample is used once per epoch, whatever was dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor
from torch.utils.data import DataLoader

from .errors import PacelineError

if TYPE_CHECKING:
    from .session import Session

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
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = True,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        drop_last: bool = False,
        **kwargs: Any,
    ) -> None:
        for name in ("sampler", "batch_sampler"):
            if name in kwargs:
                raise PacelineError(f"{name} cannot be given: the run hands out the samples")
        if drop_last:
            raise PacelineError("drop_last cannot be given: every sample is used once per epoch")
        if not hasattr(dataset, "__len__"):
            raise PacelineError(
                "the dataset has no length: iterate over your own DataLoader instead and give "
                "paceline.init its batch_size; only weights are counted then"
            )
        self.session = session
        self.dataset = dataset
        self.batch_size = batch_size
        depth = num_workers * (prefetch_factor or 2)
        self._sampler = LeaseSampler(session, len(dataset), batch_size, shuffle)
        if num_workers > 0:
            kwargs["prefetch_factor"] = prefetch_factor or 2
        self._inner: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=self._sampler, num_workers=num_workers, **kwargs
        )
        # One lease more than are prefetched, so that the sampler always has the next one.
        per_lease = session.accumulate
        ahead = -(-depth // per_lease) + 1 if depth else 0
        session.connect(len(dataset), batch_size * per_lease, ahead)

    def __len__(self) -> int:
        return self._sampler.__len__()

    def __iter__(self) -> Iterator[Any]:
        session, sampler = self.session, self._sampler
        epoch: int | None = None
        batches: Iterator[Any] | None = None
        while (portion := session._next_portion(epoch)) is not None:
            epoch = sampler.epoch = portion[0]
            if batches is None and self._inner.num_workers > 0:
                sampler.begin()
                batches = iter(self._inner)
            yield from self._batches_of(portion, batches)

    def _batches_of(self, portion: Portion, prefetched: Iterator[Any] | None) -> Iterator[Any]:
        """The batches of one portion: prefetched, or loaded here."""
        sampler = self._sampler
        while prefetched is not None and sampler.is_under_way(portion):
            found, part = sampler.next_delivered()
            batch = next(prefetched)
            if found != portion:
                sampler.forget(found)
                continue
            yield batch
            if part + 1 == sampler.parts(portion):
                sampler.forget(portion)
                return
        fetch = self._inner.collate_fn
        for indices in sampler.batches(portion):
            items = getattr(self.dataset, "__getitems__", None)
            samples = items(indices) if items is not None else [self.dataset[i] for i in indices]
            yield fetch(samples)


class LeaseSampler:
    """Yields the indices of leased portions, in the order in which they will become work."""

    def __init__(self, session: Session, samples: int, batch_size: int, shuffle: bool) -> None:
        self.epoch = 0
        self._session = session
        self._samples = samples
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._under_way: dict[Portion, int] = {}
        self._delivered: deque[tuple[Portion, int]] = deque()

    def __len__(self) -> int:
        per_round = self._batch_size * self._session._workers
        return max(1, -(-self._samples // per_round))

    def begin(self) -> None:
        self._under_way.clear()
        self._delivered.clear()

    def __iter__(self) -> Iterator[list[int]]:
        while (portion := self._next_lease()) is not None:
            batches = self.batches(portion)
            self._under_way[portion] = len(batches)
            for part, indices in enumerate(batches):
                self._delivered.append((portion, part))
                yield indices

    def _next_lease(self) -> Portion | None:
        for portion in self._session._leases():
            if portion[0] == self.epoch and portion not in self._under_way:
                return portion
        return None

    def is_under_way(self, portion: Portion) -> bool:
        return portion in self._under_way and any(p == portion for p, _ in self._delivered)

    def next_delivered(self) -> tuple[Portion, int]:
        """The portion that the next prefetched batch belongs to."""
        portion, part = self._delivered.popleft()
        return portion, part

    def forget(self, portion: Portion) -> None:
        """The portion was delivered, or its lease was revoked."""
        self._under_way.pop(portion, None)

    def parts(self, portion: Portion) -> int:
        return len(self.batches(portion))

    def batches(self, portion: Portion) -> list[list[int]]:
        """A portion's samples, as indices into the data, by batch.

        A portion smaller than others has as many batches, so that gradient accumulation comes out even.
        """
        epoch, ranges = portion
        if self._shuffle:
            indices = self._session._connected().indices(epoch, list(ranges))
        else:
            indices = [i for start, end in ranges for i in range(start, end)]
        total = len(indices)
        count = min(total, max(self._session.accumulate, -(-total // self._batch_size)))
        bounds = [total * part // count for part in range(count + 1)]
        return [indices[start:end] for start, end in zip(bounds, bounds[1:])]


def split(batch: T, n: int) -> Iterator[tuple[T, int]]:
    """Splits a batch along its first dimension into at most ``n`` parts, each with its samples."""
    length = samples_of(batch)
    bounds = [length * part // n for part in range(n + 1)]
    for start, end in zip(bounds, bounds[1:]):
        if start < end:
            yield _part(batch, start, end), end - start


def samples_of(batch: Any) -> int:
    """The length of a batch along its first dimension."""
    if isinstance(batch, Tensor):
        return len(batch)
    if isinstance(batch, Mapping):
        return samples_of(next(iter(batch.values())))
    if isinstance(batch, tuple | list) and batch:
        nested = isinstance(batch[0], Tensor | Mapping | tuple | list)
        return samples_of(batch[0]) if nested else len(batch)
    raise PacelineError(f"a batch of type {type(batch).__name__} cannot be split into micro-batches")


def _part(batch: Any, start: int, end: int) -> Any:
    if isinstance(batch, Tensor):
        return batch[start:end]
    if isinstance(batch, Mapping):
        return type(batch)({key: _part(value, start, end) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple | list):
        if batch and isinstance(batch[0], Tensor | Mapping | tuple | list):
            parts = [_part(value, start, end) for value in batch]
            named = hasattr(batch, "_fields")
            return type(batch)(*parts) if named else type(batch)(parts)
        return batch[start:end]
    return batch


__all__ = ["LedgerLoader", "LeaseSampler", "samples_of", "split"]
