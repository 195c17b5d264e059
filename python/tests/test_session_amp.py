"""Loss scaling, and gradients that are not finite."""

from __future__ import annotations

import re
from typing import Any

import paceline
import pytest
import torch
from torch import nn
from workers import alone, assert_close, assert_identical, data, mlp, together, values


def scaled_loop(address: str, number: int, infinite_round: int | None) -> Any:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    session = paceline.init(
        model, optimizer, scaler=scaler, server=address, policy="full", epochs=1
    )
    rounds, scales, states = [], [], []
    for index, x, y in session.loader(data(), batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if number == 1 and session.round == infinite_round:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        rounds.append(index.tolist())
        scales.append(scaler.get_scale())
        states.append(values(model))
    session.close()
    return rounds, scales, states


def test_under_a_scaler_the_parameters_are_those_without_one(serve: Any) -> None:
    address = serve(2, policy="full").address
    (first, scales, states), (second, _, other) = together(
        2, lambda number: scaled_loop(address, number, None)
    )
    assert_identical([states[-1], other[-1]])
    assert scales == [1024.0] * 6
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # noqa: E731
    rounds = [a + b for a, b in zip(first, second, strict=True)]
    assert_close(states[-1], alone(model, optimizer, rounds, before_step=clip))


def test_an_infinity_on_one_worker_skips_the_step_on_all_and_one_scale_serves_all(
    serve: Any,
) -> None:
    address = serve(2, policy="full").address
    (_, scales, states), (_, other_scales, other) = together(
        2, lambda number: scaled_loop(address, number, 2)
    )
    assert scales == other_scales == [1024.0] * 2 + [512.0] * 4
    assert_identical([states[1], states[2], other[2]])
    assert_identical([states[-1], other[-1]])
    assert not torch.equal(states[3][0], states[2][0])


def test_without_a_scaler_a_gradient_that_is_not_finite_is_refused_and_named(serve: Any) -> None:
    address = serve(1, policy="full").address
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=address, policy="full", epochs=1)
    with pytest.raises(paceline.PacelineError, match=r"`2\.bias`.*worker 0, round 2"):
        for _, x, y in session.loader(data(), batch_size=4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            (loss * float("nan") if session.round == 2 else loss).backward()
            optimizer.step()


def test_the_others_go_on_without_a_worker_whose_gradient_is_not_finite(serve: Any) -> None:
    address = serve(2, policy="full").address

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(model, optimizer, server=address, policy="full", epochs=1)
        try:
            for _, x, y in session.loader(data(), batch_size=4):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                bad = number == 1 and session.round == 2
                (loss * float("nan") if bad else loss).backward()
                optimizer.step()
        except paceline.PacelineError as error:
            return str(error)
        epoch = session.epoch
        session.close()
        return epoch, all(torch.isfinite(value).all() for value in values(model))

    first, second = together(2, worker)
    assert first == (1, True)
    assert "not finite" in second


def test_a_scaler_that_is_switched_off_does_not_spread_a_nan(serve: Any) -> None:
    address = serve(2, policy="full").address

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        session = paceline.init(
            model, optimizer, scaler=scaler, server=address, policy="full", epochs=1
        )
        try:
            for _, x, y in session.loader(data(), batch_size=4):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                if number == 1 and session.round == 2:
                    loss = loss * float("nan")
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        except paceline.PacelineError as error:
            return error
        session.close()
        return values(model)

    found, error = together(2, worker)
    assert re.search(r"is not finite \(worker \d, round 2\)", str(error))
    assert all(value.isfinite().all() for value in found)


def test_a_replica_is_repaired_under_a_scaler(serve: Any) -> None:
    address = serve(3, policy="full").address

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        session = paceline.init(
            model, optimizer, scaler=scaler, server=address, policy="full", epochs=3, hash_every=1
        )
        loader = session.loader(data(), batch_size=4)
        for _ in session.epochs(3):
            for _, x, y in loader:
                optimizer.zero_grad()
                scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
                if number == 1 and session.round == 3:
                    nn.init.zeros_(model[0].bias)
        session.close()
        return values(model), scaler.get_scale()

    outcomes = together(3, worker)
    assert_identical([values for values, _ in outcomes])
    assert [scale for _, scale in outcomes] == [1024.0] * 3


def test_a_fused_optimizer_unscales_by_itself_and_its_steps_are_replayed(serve: Any) -> None:
    """The second worker misses rounds, one of them an overflow, and replays them: its hashes agree."""
    from test_session_behind import run

    def fused(model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(model.parameters(), lr=0.05, fused=True)]

    def slow(loop: Any) -> Any:
        replayed = loop.watch_replays()
        for at, (x, y) in enumerate(loop.batches(False)):
            if at in (2, 4):
                loop.fall_behind(4)
            loop.optimizers[0].zero_grad()
            loop.scaler.scale(loop.loss(x, y)).backward()
            loop.scaler.step(loop.optimizers[0])
            loop.scaler.update()
            loop.note()
            if at == 6:
                return replayed

    replayed = run(serve(2, policy="static:1").address, slow, make=fused, scaled=True)
    # The very first change of gradients cannot be told, see FlatVector.factor.
    assert len(replayed) >= 6 and all(replayed[1:]), replayed
