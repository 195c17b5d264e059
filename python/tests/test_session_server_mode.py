"""Mode server: the optimizer runs on the shards, and gives the parameters of torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from workers import alone, assert_close, assert_identical, by_round, fit, mlp, together


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups with learning rates and decays of their own."""
    first, _, second = model.children()
    return [
        {"params": list(first.parameters()), "weight_decay": 0.01},
        {"params": list(second.parameters()), "lr": 0.02},
    ]


OPTIMIZERS = {
    "sgd": (lambda model: torch.optim.SGD(groups(model), lr=0.05), 1e-5),
    "momentum": (lambda model: torch.optim.SGD(groups(model), lr=0.05, momentum=0.9), 1e-5),
    "nesterov": (
        lambda model: torch.optim.SGD(groups(model), lr=0.05, momentum=0.9, nesterov=True),
        1e-5,
    ),
    "adam": (lambda model: torch.optim.Adam(groups(model), lr=0.01), 1e-4),
    "adamw": (lambda model: torch.optim.AdamW(groups(model), lr=0.01), 1e-4),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_shards_step_as_torch_does_with_groups_and_a_scheduler(serve: Any, name: str) -> None:
    make, rtol = OPTIMIZERS[name]
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = mlp()
        optimizer = make(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
        fitted = fit(
            server, model, optimizer, scheduler=scheduler, epochs=2, mode="server", policy="full"
        )
        assert not optimizer.state, "a worker holds no optimizer state"
        return fitted

    fitted = together(2, worker)
    assert_identical([each.values for each in fitted])
    model = mlp()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    assert_close(fitted[0].values, alone(model, optimizer, by_round(fitted), scheduler), rtol)
