"""Cuts inside a step: finished micro-batches count, and nothing of an unfinished one does."""

from __future__ import annotations

import threading
import time
from typing import Any

import paceline
import pytest
import torch
from torch import Tensor, nn
from workers import PATIENCE, assert_close, assert_identical, data, mlp, together, values, wait_until

REPORTED = 0.01
"""Seconds after which a finished micro-batch is reported; the run salvages what it knows of."""

ATTEMPTS = 6
"""A busy machine may answer a cut after the grace, and nothing is salvaged then."""


def test_all_micro_batches_together_are_the_batch(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
        seen: list[int] = []
        for index, *batch in session.loader(data(), batch_size=8):
            optimizer.zero_grad()
            for at, x, y in session.micro_batches([index, *batch], 4):
                (nn.functional.mse_loss(model(x), y) / 4).backward()
                seen += at.tolist()
            assert session.last is not None and session.last.share == 1.0
            optimizer.step()
        session.close()
        return seen, values(model)

    (first, found), (second, other) = together(2, worker)
    assert_identical([found, other])
    assert sorted(first + second) == list(range(48))
    model, (_, x, y) = mlp(), data().tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at in range(0, 24, 8):
        samples = first[at : at + 8] + second[at : at + 8]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[samples]), y[samples]).backward()
        optimizer.step()
    assert_close(found, values(model))


class Pair:
    """A fast worker that waits until the slow one is in the middle of its batch, in the first round."""

    def __init__(self, address: str, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.session = paceline.init(
            model, self.optimizer, server=address, policy="static:1", epochs=1
        )
        self.loader = self.session.loader(data(), batch_size=8)

    def wait_for_cut(self) -> None:
        wait_until(self.session._connected().is_cut)

    def mean(self) -> list[Tensor]:
        return [param.grad.clone() for param in self.model.parameters()]


def gradient(samples: list[int]) -> list[Tensor]:
    """The mean gradient of samples, at the initial parameters."""
    model, (_, x, y) = mlp(), data().tensors
    nn.functional.mse_loss(model(x[samples]), y[samples]).backward()
    return [param.grad for param in model.parameters()]


def first_round(
    address: str, slow_part: Any, model: Any = mlp
) -> list[tuple[paceline.Step, list[int], list[Tensor]]]:
    """The first round of two workers under ``static:1``. ``slow_part(pair, batch, ready)`` computes the slow
    worker's batch; once it has set ``ready`` the fast one contributes, which cuts the round."""
    ready = threading.Event()

    def worker(number: int) -> Any:
        pair = Pair(address, model())
        index, x, y = next(iter(pair.loader))
        if number == 0:
            assert ready.wait(PATIENCE)
            nn.functional.mse_loss(pair.model(x), y).backward()
        else:
            slow_part(pair, (index, x, y), ready)
        assert pair.session.last is not None
        mean = pair.mean()
        pair.optimizer.step()
        pair.session.close()
        return pair.session.last, index.tolist(), mean

    return together(2, worker)


def test_a_cut_between_micro_batches_salvages_the_finished_ones_with_their_weight(
    serve: Any,
) -> None:
    done = []

    def slow(pair: Pair, batch: Any, ready: threading.Event) -> None:
        for _, x, y in pair.session.micro_batches(batch, 4):
            time.sleep(REPORTED)
            (nn.functional.mse_loss(pair.model(x), y) / 4).backward()
            done.append(len(x))
            if len(done) == 2:
                time.sleep(REPORTED)
                ready.set()
                pair.wait_for_cut()

    for _ in range(ATTEMPTS):
        done.clear()
        fast, slow_one = first_round(serve(2, policy="static:1").address, slow)
        assert done == [2, 2]
        if slow_one[0].used:
            break
    assert (slow_one[0].round, slow_one[0].used, slow_one[0].share) == (0, True, 0.5)
    assert (fast[0].share, fast[0].weight) == (1.0, 12.0)
    assert_identical([fast[2], slow_one[2]])
    assert_close(fast[2], gradient(fast[1] + slow_one[1][:4]))


class Deep(nn.Module):
    """Many layers. ``pause`` runs in the middle of a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(10))
        self.pause: Any = None
        self.passed = 0

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = layer(x)
            if x.requires_grad and self.pause is not None:
                x.register_hook(self._backward(place))
        return x.sum(1, keepdim=True)

    def _backward(self, place: int) -> Any:
        def hook(_: Tensor) -> None:
            self.passed += 1
            if place == 5:
                self.pause()

        return hook


@pytest.mark.parametrize("stops", [True, False])
def test_session_backward_stops_at_a_cut_and_plain_backward_runs_to_its_end(
    serve: Any, stops: bool
) -> None:
    passed = []

    def slow(pair: Pair, batch: Any, ready: threading.Event) -> None:
        def pause() -> None:
            ready.set()
            pair.wait_for_cut()

        model: Any = pair.model
        model.pause = pause
        loss = nn.functional.mse_loss(model(batch[1]), batch[2])
        if stops:
            pair.session.backward(loss)
        else:
            loss.backward()
        passed.append(model.passed)

    def deep() -> Deep:
        model = Deep()
        with torch.no_grad():
            for param in model.parameters():
                param.fill_(0.3)
        return model

    address = serve(2, policy="static:1").address
    fast, slow_one = first_round(address, slow, deep)
    assert passed == [5 if stops else 10]
    assert (slow_one[0].used, slow_one[0].share) == (False, 0.0)
    assert fast[0].weight == 8.0
    assert_identical([fast[2], slow_one[2]])


def test_a_cut_inside_a_micro_batch_leaves_nothing_of_it(serve: Any) -> None:
    counts = []

    def slow(pair: Pair, batch: Any, ready: threading.Event) -> None:
        done = 0
        for _, x, y in pair.session.micro_batches(batch, 4):
            time.sleep(REPORTED)
            out = pair.model(x)
            if done == 1:

                def pause(_: Tensor) -> None:
                    ready.set()
                    pair.wait_for_cut()

                out.register_hook(pause)
            pair.session.backward(nn.functional.mse_loss(out, y) / 4)
            done += 1
        counts.append(done)

    for _ in range(ATTEMPTS):
        counts.clear()
        fast, slow_one = first_round(serve(2, policy="static:1").address, slow)
        assert counts == [2]
        if slow_one[0].used:
            break
    assert slow_one[0].share == 0.25
    assert fast[0].weight == 10.0
    assert_close(fast[2], gradient(fast[1] + slow_one[1][:2]))
    assert_identical([fast[2], slow_one[2]])
