"""Worker processes of a loader load what is leased, however leases come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import paceline
import pytest
import torch
from paceline.data import LeaseSampler, LedgerLoader, Portion


def portion(start: int, length: int = 2) -> Portion:
    return 0, ((start, start + length),)


class Script:
    """A session that hands out portions by a script: each with the leases that stand when it is given."""

    accumulate = 1
    workers = 1

    def __init__(self, *turns: tuple[int, Sequence[int]]) -> None:
        self._turns = iter(turns)
        self._standing: list[Portion] = []

    def connect(self, samples: int, batch: int, ahead: int, shuffle: bool) -> None:
        pass

    def next(self, epoch: int | None) -> Portion | None:
        turn = next(self._turns, None)
        if turn is None:
            return None
        given, leases = turn
        self._standing = [portion(given), *(portion(at) for at in leases)]
        return portion(given)

    def leases(self) -> list[Portion]:
        return self._standing


class Where(torch.utils.data.Dataset[Any]):
    """Samples that say which process loaded them: -1 for the one that trains."""

    def __init__(self, samples: int = 100) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, at: int) -> tuple[int, int]:
        worker = torch.utils.data.get_worker_info()
        return at, -1 if worker is None else worker.id


def loads(script: Script, **settings: Any) -> Iterator[tuple[list[int], bool]]:
    """The samples of each batch, and whether a process loaded them ahead."""
    session: Any = script
    loader = LedgerLoader(
        session, session, Where(), 2, shuffle=False, num_workers=2, prefetch_factor=1, **settings
    )
    for at, process in loader:
        yield at.tolist(), bool((process >= 0).all())


def given(*starts: int) -> list[tuple[list[int], bool]]:
    return [([at, at + 1], True) for at in starts]


def test_leased_portions_are_loaded_ahead_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Portion] = []
    batches = LeaseSampler.batches
    monkeypatch.setattr(LeaseSampler, "batches", lambda s, p: asked.append(p) or batches(s, p))
    script = Script((0, [2, 4]), (2, [4, 6]), (4, [6]), (6, []))
    assert list(loads(script)) == given(0, 2, 4, 6)
    assert asked == [portion(at) for at in (0, 2, 4, 6)]


def test_loading_ahead_goes_on_after_a_time_without_leases() -> None:
    script = Script((0, []), (10, []), (20, [22, 24]), (22, [24]), (24, []))
    assert list(loads(script)) == given(0, 10, 20, 22, 24)


def test_loading_ahead_goes_on_after_all_leases_were_revoked() -> None:
    script = Script((0, [2, 4, 6]), (30, [32]), (32, [34]), (34, []))
    assert list(loads(script)) == given(0, 30, 32, 34)


def test_a_portion_out_of_order_is_loaded_and_those_before_it_again() -> None:
    script = Script((0, [2, 4]), (4, [2]), (2, []))
    assert list(loads(script)) == given(0, 4, 2)


@pytest.mark.parametrize("persistent", [False, True])
def test_every_loop_over_the_data_begins_anew(persistent: bool) -> None:
    script = Script((0, [2, 4]))
    session: Any = script
    loader = LedgerLoader(
        session, session, Where(), 2, shuffle=False, num_workers=2, persistent_workers=persistent
    )
    assert [at.tolist() for at, _ in loader] == [[0, 1]]
    processes = loader._inner._iterator
    assert (processes is not None) == persistent
    script._turns = iter([(10, [12]), (12, [])])
    assert [at.tolist() for at, _ in loader] == [[10, 11], [12, 13]]


def test_batches_out_of_order_are_refused() -> None:
    session: Any = Script()
    with pytest.raises(paceline.PacelineError, match="in_order=False"):
        LedgerLoader(session, session, Where(), 2, in_order=False)


class Batch:
    """A batch that can be pinned."""

    pinned = False

    def pin_memory(self) -> Batch:
        self.pinned = True
        return self


@pytest.mark.parametrize("cuda", [False, True])
def test_batches_loaded_by_the_training_process_are_pinned_for_cuda(
    monkeypatch: pytest.MonkeyPatch, cuda: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    session: Any = Script((0, []))
    loader = LedgerLoader(
        session, session, Where(), 2, shuffle=False, pin_memory=True, collate_fn=lambda _: Batch()
    )
    assert [batch.pinned for batch in loader] == [cuda]
