"""With ``lr_scaling=`` the learning rate of a step follows the samples behind it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from workers import Fitted, alone, assert_close, assert_identical, fit, mlp, together

EPOCHS = 4
FULL = 12
"""Samples of a round in which all three workers contribute their batch."""

RULES = {"linear": lambda share: share, "sqrt": lambda share: share**0.5}


def used(fitted: list[Fitted]) -> list[list[int]]:
    """The samples behind every round, without those of dropped contributions."""
    rounds: dict[int, list[int]] = {}
    weights: dict[int, float] = {}
    for worker in fitted:
        for step, samples in worker.rounds:
            assert step.share in (0.0, 1.0)
            if step.used:
                rounds.setdefault(step.round, []).extend(samples)
                weights[step.round] = step.weight
    assert sorted(rounds) == list(range(len(rounds)))
    assert all(len(samples) == weights[at] for at, samples in rounds.items())
    return [rounds[at] for at in sorted(rounds)]


@pytest.mark.parametrize("mode", ["mean", "server"])
@pytest.mark.parametrize("rule", RULES)
def test_the_learning_rate_follows_the_samples_behind_a_step(
    serve: Any, rule: str, mode: str
) -> None:
    """Worker 0 is slow, so that rounds go on without it. Hashes are off: nothing repairs its replica."""
    server = serve(3, policy="static:2")

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    def worker(number: int) -> Fitted:
        return fit(
            server,
            *make(),
            epochs=EPOCHS,
            after_backward=lambda _: time.sleep(0.02 if number == 0 else 0.004),
            mode=mode,
            lr_scaling=rule,
            hash_every=0,
        )

    fitted = together(3, worker)
    rounds = used(fitted)
    assert {len(samples) for samples in rounds} != {FULL}
    model, optimizer = make()
    factors = [RULES[rule](len(samples) / FULL) for samples in [*rounds, rounds[-1]]]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: factors[at])
    expected = alone(model, optimizer, rounds, schedule)
    last = max(fitted, key=lambda each: each.rounds[-1][0].round)
    assert_close(last.values, expected, 1e-3)
    if mode == "mean":
        assert sum(step.missed for step, _ in fitted[0].rounds) > 0
        assert_identical([each.values for each in fitted])
