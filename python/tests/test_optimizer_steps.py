"""What a record tells of an optimizer, and how steps are made to change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from paceline.optimizer_steps import OptimizerSteps, groups_of, set_groups
from paceline.parameters import FlatVector
from torch import nn


def grouped(rates: list[float], **options: Any) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.AdamW(groups, **options)


def test_groups_survive_the_way_through_a_record() -> None:
    told = json.loads(json.dumps(groups_of(grouped([0.1, 0.2, 0.3], betas=(0.5, 0.6)))))
    other = grouped([1.0, 1.0, 1.0])
    set_groups(other, told)
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.2, 0.3]
    assert [group["betas"] for group in other.param_groups] == [(0.5, 0.6)] * 3


def test_options_that_groups_share_are_told_once() -> None:
    few, many = (len(json.dumps(groups_of(grouped([0.1] * count)))) for count in (2, 3000))
    assert few == many
    assert len(json.dumps(groups_of(grouped([0.1 + at for at in range(3000)])))) < 100_000


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
def test_a_skipped_step_changes_neither_parameters_nor_state(name: str, closure: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = OPTIMIZERS[name](model.parameters())
    flat = FlatVector({"": model}, [optimizer], by_group=False, presence=True)
    steps = OptimizerSteps(flat, [optimizer])
    steps.watch()

    def step() -> None:
        def contribute() -> float:
            for param in model.parameters():
                param.grad = torch.ones_like(param)
            return 0.0

        if closure:
            optimizer.step(contribute)
        else:
            contribute()
            optimizer.step()

    def state() -> Any:
        held = [optimizer.state[param] for param in model.parameters()]
        return [param.detach().clone() for param in model.parameters()] + [
            value.clone() for each in held for value in each.values() if value is not None
        ]

    step()
    before = state()
    steps.skip()
    step()
    assert all(torch.equal(a, b) for a, b in zip(before, state(), strict=True))
    assert all(param.grad is not None for param in model.parameters())
    steps.forget()
    step()
    assert not torch.equal(before[0], state()[0])
