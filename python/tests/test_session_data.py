"""Data from the ledger: every sample is used once per epoch, whatever was dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import paceline
import pytest
import torch
from ledger import used_samples
from test_prefetching import Where
from torch import nn
from workers import (
    Fitted,
    Server,
    alone,
    assert_close,
    assert_identical,
    by_round,
    data,
    mlp,
    together,
    values,
)


def dropping(server: Server, number: int, *, epochs: int, num_workers: int = 0) -> Any:
    """A loop in which worker 0 is slow, so that rounds go on without it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = paceline.init(
        model, optimizer, server=server.address, policy="static:2", epochs=epochs
    )
    loader = session.loader(data(), batch_size=4, num_workers=num_workers)
    dropped = 0
    for _ in session.epochs(epochs):
        for _, x, y in loader:
            optimizer.zero_grad()
            time.sleep(0.03 if number == 0 else 0.005)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            assert session.last is not None
            dropped += not session.last.used
    session.close()
    return dropped, values(model)


def test_every_sample_is_used_once_per_epoch_whatever_was_dropped(serve: Any) -> None:
    server = serve(3, policy="static:2")
    outcomes = together(3, lambda number: dropping(server, number, epochs=3))
    assert sum(dropped for dropped, _ in outcomes) > 0
    assert_identical([state for _, state in outcomes])
    used = used_samples(server.folder)
    assert {epoch: sorted(at) for epoch, at in used.items()} == {
        epoch: list(range(48)) for epoch in range(3)
    }


def test_batches_prefetched_by_worker_processes_carry_the_samples_that_were_given(
    serve: Any,
) -> None:
    server = serve(2, policy="full")

    _, x, y = data().tensors

    def worker(_: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(
            model, optimizer, server=server.address, policy="full", epochs=2
        )
        loader = session.loader(Where(48), batch_size=4, num_workers=2)
        rounds, prefetched = [], []
        for _ in session.epochs(2):
            for index, process in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x[index]), y[index]).backward()
                optimizer.step()
                assert session.last is not None
                rounds.append((session.last, index.tolist()))
                prefetched.append(bool((process >= 0).all()))
        session.close()
        return Fitted(session, values(model), rounds), prefetched

    outcomes = together(2, worker)
    fitted = [each for each, _ in outcomes]
    rounds = by_round(fitted)
    assert sorted(sum(rounds, [])) == sorted(list(range(48)) * 2)
    for _, prefetched in outcomes:
        assert sum(prefetched) > len(prefetched) / 2, prefetched
    model = mlp()
    assert_close(
        fitted[0].values, alone(model, torch.optim.SGD(model.parameters(), lr=0.1), rounds)
    )


def test_prefetched_batches_of_revoked_leases_are_discarded(serve: Any) -> None:
    server = serve(3, policy="static:2")
    outcomes = together(3, lambda number: dropping(server, number, epochs=2, num_workers=1))
    assert_identical([state for _, state in outcomes])
    used = used_samples(server.folder)
    assert {epoch: sorted(at) for epoch, at in used.items()} == {
        epoch: list(range(48)) for epoch in range(2)
    }


def samples_in_order(server: Server, **settings: Any) -> list[int]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(
        model, optimizer, server=server.address, policy="full", epochs=1,
        seed=settings.pop("seed", 0),
    )  # fmt: skip
    seen = []
    for index, x, y in session.loader(data(), batch_size=4, **settings):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        seen += index.tolist()
    session.close()
    return seen


def test_without_shuffling_samples_come_in_the_order_of_the_data(serve: Any) -> None:
    assert samples_in_order(serve(1), shuffle=False) == list(range(48))


def test_the_order_follows_the_seed(serve: Any) -> None:
    orders = [samples_in_order(serve(1), seed=seed) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(48))


def test_the_length_is_the_nominal_number_of_rounds(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_WORKERS", "3")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=serve(3).address, policy="full", epochs=1)
    assert len(session.loader(data(50), batch_size=4)) == 5
    session.close()


def test_a_loop_left_in_the_middle_of_an_epoch_goes_on_where_it_stopped(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(
        model, optimizer, server=serve(1).address, policy="full", epochs=1
    )
    loader = session.loader(data(), batch_size=4)
    seen: list[int] = []

    def some(batches: int | None) -> None:
        for index, x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            seen.extend(index.tolist())
            if batches is not None and len(seen) >= 4 * batches:
                return

    some(5)
    some(None)
    session.close()
    assert sorted(seen) == list(range(48))


class Stream(torch.utils.data.IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        _, x, y = data(64).tensors
        yield from zip(x, y)


def test_a_stream_is_trained_by_its_weights(serve: Any) -> None:
    server = serve(2, policy="full")
    both = threading.Barrier(2)

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(
            model, optimizer, server=server.address, policy="full", rounds=8, batch_size=8
        )
        weights = []
        for x, y in torch.utils.data.DataLoader(Stream(), batch_size=8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            assert session.last is not None
            weights.append(session.last.weight)
        both.wait(20)
        session.close()
        return weights, values(model)

    (weights, found), (_, other) = together(2, worker)
    assert weights == [16.0] * 8
    assert_identical([found, other])
    # Both see the same stream, so the mean is the gradient of one of them.
    model, (_, x, y) = mlp(), data(64).tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at in range(0, 64, 8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[at : at + 8]), y[at : at + 8]).backward()
        optimizer.step()
    assert_close(found, values(model))
