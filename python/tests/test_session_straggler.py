"""One slow worker misses rounds: its replica, its schedulers and its loss scale still follow the run.

Hashes are off, so nothing repairs a replica that went wrong.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import paceline
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from workers import PATIENCE, assert_identical, data, mlp, together, values

EPOCHS = 4
PACE = 0.004
SLOW = 5


def train(
    server: Any,
    number: int,
    *,
    schedule: Callable[[Any], Any],
    by_epoch: bool = False,
    change: Callable[[nn.Module], None] = lambda _: None,
    make: Callable[[], nn.Module] = mlp,
    scaler: Any = None,
    metrics: Callable[[nn.Module], list[float]] = lambda _: [],
    **settings: Any,
) -> Any:
    """Trains as one of several workers, of which the first is slow; returns parameters, rates and counts."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = schedule(optimizer)
    session = paceline.init(
        model, optimizer, scheduler, scaler, server=server.address, epochs=EPOCHS,
        policy="static:2", hash_every=0, **settings,
    )  # fmt: skip
    loader, missed, rates = session.loader(data(), batch_size=4), 0, []
    for _ in range(EPOCHS):
        for _, x, y in loader:
            optimizer.zero_grad()
            rates.append((session.round, optimizer.param_groups[0]["lr"]))
            time.sleep(PACE * (SLOW if number == 0 else 1))
            loss = nn.functional.mse_loss(model(x), y)
            (scaler.scale(loss) if scaler is not None else loss).backward()
            change(model)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if not by_epoch:
                scheduler.step()
            assert session.last is not None
            missed += session.last.missed
        if by_epoch:
            scheduler.step(*metrics(model))
    session.close()
    return values(model), rates, missed


def assert_follows(outcomes: list[Any], misses: bool = True) -> None:
    assert_identical([values for values, _, _ in outcomes])
    missed = [missed for _, _, missed in outcomes]
    assert missed[0] > 0 or not misses, missed


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 1, gamma=0.5),
    "nested": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5, 1.0, 2), lr_scheduler.MultiStepLR(o, [1], 0.1)], [1]
    ),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("by_epoch", [True, False], ids=["by-epoch", "by-step"])
def test_schedulers_follow_the_run(serve: Any, name: str, by_epoch: bool) -> None:
    server = serve(3, policy="static:2")
    schedule = SCHEDULES[name]
    outcomes = together(3, lambda n: train(server, n, schedule=schedule, by_epoch=by_epoch))
    assert_follows(outcomes)


def lottery(model: nn.Module) -> list[float]:
    """A metric that has nothing in common for replicas that differ at all."""
    return [zlib.crc32(b"".join(value.numpy().tobytes() for value in values(model))) / 2**32]


def test_a_plateau_scheduler_that_every_worker_feeds_follows_the_run(serve: Any) -> None:
    server = serve(3, policy="static:2")

    def schedule(optimizer: Any) -> Any:
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    def worker(number: int) -> Any:
        return train(server, number, schedule=schedule, by_epoch=True, metrics=lottery)

    outcomes = together(3, worker)
    assert_follows(outcomes)
    slow, *fast = (dict(rates) for _, rates, _ in outcomes)
    expected = {at: rate for rates in fast for at, rate in rates.items()}
    assert slow == {at: expected.get(at, rate) for at, rate in slow.items()}


def constant(optimizer: Any) -> Any:
    return lr_scheduler.ConstantLR(optimizer, 1.0)


def mask(model: nn.Module) -> None:
    """Zeroes part of a gradient, which no factor on all gradients explains."""
    for param in model.parameters():
        if param.grad is not None and param.dim() == 2:
            param.grad[:, 1] = 0.0


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


@pytest.mark.parametrize("change", [mask, clip], ids=["mask", "clip"])
def test_changed_gradients_are_replayed_or_the_state_is_taken(serve: Any, change: Any) -> None:
    server = serve(3, policy="static:2")
    outcomes = together(3, lambda n: train(server, n, schedule=constant, change=change))
    assert_follows(outcomes, misses=change is clip)


def test_a_gradient_of_zero_may_be_changed(serve: Any) -> None:
    server = serve(1, policy="full")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=server.address, epochs=1)
    for _, x, _ in session.loader(data(), batch_size=12):
        optimizer.zero_grad()
        (model(x).sum() * 0.0).backward()
        for param in model.parameters():
            assert param.grad is not None
            param.grad += 1.0
        optimizer.step()
    session.close()


def test_a_loss_scale_follows_the_run(serve: Any) -> None:
    server = serve(3, policy="static:2")

    def worker(number: int) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=5)
        return train(server, number, schedule=constant, scaler=scaler)

    assert_follows(together(3, worker))


def test_rates_of_a_slow_worker_follow_the_run_in_mode_server(serve: Any) -> None:
    server = serve(3, policy="static:2")
    schedule = lambda o: lr_scheduler.StepLR(o, 3, gamma=0.9)  # noqa: E731
    outcomes = together(3, lambda n: train(server, n, schedule=schedule, mode="server"))
    slow, *fast = (dict(rates) for _, rates, _ in outcomes)
    expected = {number: rate for rates in fast for number, rate in rates.items()}
    assert len(slow) < len(expected)
    assert slow == {number: expected[number] for number in slow}


@pytest.mark.parametrize("skips", [True, False], ids=["skipped", "stepped"])
def test_the_last_step_of_a_worker_that_leaves_is_replayed_as_it_was(serve: Any, skips: bool) -> None:
    server = serve(2, policy="static:1")
    first_stepped, left = threading.Event(), threading.Event()

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(
            model, optimizer, server=server.address, policy="static:1", epochs=1, hash_every=0
        )
        loader = session.loader(data(400), batch_size=4)
        assert number == 1 or first_stepped.wait(PATIENCE)
        for at, (_, x, y) in enumerate(loader):
            if number == 1 and at == 1:
                break
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            if number == 1:
                optimizer.step()
                # The other worker needs the record of this step. This one then replays all three of the other's.
                session._update.end_step()
                first_stepped.set()
                assert left.wait(PATIENCE)
            elif at < 2:
                optimizer.step()
            else:
                optimizer.param_groups[0]["lr"] = 0.7
                session.skip_step() if skips else optimizer.step()
                break
        found = session.round, values(model)
        session.close()
        left.set()
        return found

    (at, found), (reached, other) = together(2, worker)
    assert reached == at
    assert_identical([found, other])
