"""Cuts inside a step: finished micro-batches count, and nothing of an unfinished one does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paceline
import pytest
import torch
from ledger import used_samples
from torch import Tensor, nn
from workers import (
    PATIENCE,
    assert_close,
    assert_identical,
    data,
    mlp,
    seeded,
    together,
    values,
    wait_until,
)


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


ROUNDS = 5
PACE = 0.02
"""Seconds that a micro-batch of the slow worker takes."""


@dataclass
class Slow:
    """The slow worker of a pair. The fast one contributes when this one is in the middle of its batch."""

    session: paceline.Session
    model: Any
    ready: threading.Semaphore

    def wait_for_cut(self) -> None:
        self.ready.release()
        wait_until(self.session._membership.connected().is_cut)


Outcome = tuple[paceline.Step, list[int], list[Tensor]]
"""A round's step, the samples of this worker, and the mean gradient."""


def pair(
    address: str, compute: Callable[[Slow, Any], None], make: Callable[[], nn.Module] = mlp
) -> list[tuple[Outcome, Outcome]]:
    """Rounds of a fast and a slow worker under ``static:1``. ``compute(slow, batch)`` is the slow worker's
    backward pass, which calls ``wait_for_cut`` once. Parameters stay as they are."""
    ready = threading.Semaphore(0)

    def worker(number: int) -> list[Outcome]:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        session = paceline.init(model, optimizer, server=address, policy="static:1", epochs=1)
        slow, outcomes = Slow(session, model, ready), []
        for index, x, y in session.loader(data(400), batch_size=8):
            optimizer.zero_grad()
            if number == 1:
                compute(slow, (index, x, y))
            else:
                assert ready.acquire(timeout=PATIENCE)
                time.sleep(PACE)
                nn.functional.mse_loss(model(x), y).backward()
            mean = [param.grad.clone() for param in model.parameters()]
            assert session.last is not None
            outcomes.append((session.last, index.tolist(), mean))
            optimizer.step()
            optimizer.zero_grad()
            if len(outcomes) == ROUNDS:
                break
        session.close()
        return outcomes

    fast, slow = together(2, worker)
    for (one, _, mean), (other, _, same) in zip(fast, slow):
        assert one.round == other.round
        assert_identical([mean, same])
    return list(zip(fast, slow))


def gradient(samples: list[int]) -> list[Tensor]:
    """The mean gradient of samples, at the initial parameters."""
    model, (_, x, y) = mlp(), data(400).tensors
    nn.functional.mse_loss(model(x[samples]), y[samples]).backward()
    return [param.grad for param in model.parameters()]


def assert_salvaged(rounds: list[tuple[Outcome, Outcome]], finished: int) -> None:
    """The mean is over the fast worker's batch and the finished samples of the slow one."""
    for (fast, whole, mean), (slow, part, _) in rounds:
        # A round does not wait for an answer that takes unusually long.
        used = finished if slow.used else 0
        assert slow.share == used / 8
        assert fast.weight == 8.0 + used
        assert_close(mean, gradient(whole + part[:used]))
    assert any(slow.used for _, (slow, _, _) in rounds)


def test_a_cut_between_micro_batches_salvages_the_finished_ones_with_their_weight(
    serve: Any,
) -> None:
    counts = []

    def compute(slow: Slow, batch: Any) -> None:
        done = 0
        for _, x, y in slow.session.micro_batches(batch, 4):
            time.sleep(PACE)
            (nn.functional.mse_loss(slow.model(x), y) / 4).backward()
            done += 1
            if done == 2:
                slow.wait_for_cut()
        counts.append(done)

    assert_salvaged(pair(serve(2, policy="static:1").address, compute), finished=4)
    assert counts == [2] * ROUNDS


def test_a_cut_inside_a_micro_batch_leaves_nothing_of_it(serve: Any) -> None:
    counts = []

    def compute(slow: Slow, batch: Any) -> None:
        done = 0
        for _, x, y in slow.session.micro_batches(batch, 4):
            time.sleep(PACE)
            out = slow.model(x)
            if done == 1:
                out.register_hook(lambda _: slow.wait_for_cut())
            slow.session.backward(nn.functional.mse_loss(out, y) / 4)
            done += 1
        counts.append(done)

    assert_salvaged(pair(serve(2, policy="static:1").address, compute), finished=2)
    assert counts == [2] * ROUNDS


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
            if self.pause is not None:
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

    def compute(slow: Slow, batch: Any) -> None:
        slow.model.pause, slow.model.passed = slow.wait_for_cut, 0
        loss = nn.functional.mse_loss(slow.model(batch[1]), batch[2])
        if stops:
            slow.session.backward(loss)
        else:
            loss.backward()
        passed.append(slow.model.passed)

    rounds = pair(serve(2, policy="static:1").address, compute, lambda: seeded(Deep()))
    assert passed == [5 if stops else 10] * ROUNDS
    for (fast, _, _), (slow, _, _) in rounds:
        assert (slow.used, slow.share) == (False, 0.0)
        assert fast.weight == 8.0


def test_a_cut_before_the_first_gradient_ends_the_step_after_one_micro_batch(serve: Any) -> None:
    counts: list[int] = []

    def compute(slow: Slow, batch: Any) -> None:
        count = 0
        for _, x, y in slow.session.micro_batches(batch, 4):
            if count == 0:
                slow.wait_for_cut()
            count += 1
            slow.session.backward(nn.functional.mse_loss(slow.model(x), y) / 4)
        counts.append(count)

    for _, (step, _, _) in pair(serve(2, policy="static:1").address, compute):
        assert not step.used
    assert counts == [1] * ROUNDS


def test_a_micro_batch_without_backward_is_a_gradient_of_zero(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
        weights = []
        for _, x, y in session.loader(data(), batch_size=8):
            optimizer.zero_grad()
            for part, (at, to) in enumerate(session.micro_batches((x, y), 4)):
                if number == 1 and part == 1:
                    continue
                (nn.functional.mse_loss(model(at), to) / 4).backward()
            optimizer.step()
            assert session.last is not None
            weights.append(session.last.weight)
        session.close()
        return values(model), weights

    (found, weights), (other, _) = together(2, worker)
    assert_identical([found, other])
    assert weights == [16.0] * 3


def test_no_sync_and_micro_batches_do_not_mix(serve: Any) -> None:
    server = serve(1, policy="full")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with paceline.init(model, optimizer, server=server.address, epochs=1) as session:
        batch = next(iter(session.loader(data(), batch_size=8)))
        with pytest.raises(paceline.PacelineError, match="no_sync.. inside micro_batches"):
            for _ in session.micro_batches(batch, 2):
                with session.no_sync():
                    pass
        with session.no_sync(), pytest.raises(paceline.PacelineError, match="inside no_sync"):
            next(iter(session.micro_batches(batch, 2)))


def test_a_micro_batch_without_backward_leaves_running_statistics_as_they_are(serve: Any) -> None:
    server = serve(1, policy="full")
    model = seeded(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    norm: Any = model[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
    for _, x, y in session.loader(data(), batch_size=8):
        after = []
        for part, (px, py) in enumerate(session.micro_batches((x, y), 4)):
            if part < 2:
                (nn.functional.mse_loss(model(px), py) / 4).backward()
            after.append([norm.running_mean.clone(), norm.running_var.clone()])
        # Those of the last two micro-batches are those after the second one.
        means = [torch.stack(each).mean(0) for each in zip(*after)]
        assert_close([norm.running_mean, norm.running_var], means)
        optimizer.step()
    session.close()


def views(samples: list[Any]) -> list[Tensor]:
    """Two rows for each sample."""
    return [each.repeat_interleave(2, 0) for each in torch.utils.data.default_collate(samples)]


def pairs(samples: list[Any]) -> list[Tensor]:
    """A row for two samples."""
    return [each.view(len(each) // 2, 2, -1).float().mean(1) for each in torch.utils.data.default_collate(samples)]


@pytest.mark.parametrize("collate", [views, pairs])
def test_micro_batches_of_more_or_fewer_rows_count_by_their_samples(serve: Any, collate: Any) -> None:
    server, model, parts = serve(1, policy="full"), mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
    steps = []
    for _, x, y in session.loader(data(), batch_size=8, collate_fn=collate):
        optimizer.zero_grad()
        for px, py in session.micro_batches((x, y), 4):
            parts.append(session._contribution._parts.samples)
            (nn.functional.mse_loss(model(px), py) / 4).backward()
        optimizer.step()
        steps.append(session.last)
    session.close()
    assert parts == [2] * 24
    assert [(step.weight, step.share) for step in steps if step is not None] == [(8.0, 1.0)] * 6
    assert sorted(used_samples(server.folder)[0]) == list(range(48))


def test_rows_that_are_no_whole_samples_are_refused_by_number(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with paceline.init(model, optimizer, server=serve(1).address, epochs=1) as session:
        _, x, y = next(iter(session.loader(data(), batch_size=8)))
        with pytest.raises(paceline.PacelineError, match="3 rows from 8 samples .* 2 micro-batches"):
            next(session.micro_batches((x[:3], y[:3]), 2))


def test_micro_batches_of_a_part_of_the_lease_are_refused(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with paceline.init(model, optimizer, server=serve(1).address, epochs=1, accumulate=2) as session:
        _, x, y = next(iter(session.loader(data(), batch_size=8)))
        with pytest.raises(paceline.PacelineError, match="accumulate=2"):
            next(session.micro_batches((x, y), 2))
