"""Mode server: the optimizer runs on the shards, and gives the parameters of torch's own."""

from __future__ import annotations

from typing import Any

import paceline
import pytest
import torch
from torch import nn
from workers import alone, assert_close, assert_identical, by_round, data, fit, mlp, together


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


def test_gradients_are_clipped_by_the_norm_over_all_groups(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(groups(model), lr=0.05, momentum=0.9)
        return fit(server, model, optimizer, mode="server", policy="full", clip="norm:0.1")

    fitted = together(2, worker)
    norms: list[Any] = []

    def clip() -> None:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))

    model = mlp()
    optimizer = torch.optim.SGD(groups(model), lr=0.05, momentum=0.9)
    expected = alone(model, optimizer, by_round(fitted), before_step=clip)
    assert_close(fitted[0].values, expected, 1e-4)
    assert max(norms) > 0.2


def test_a_compiled_model_among_several_keeps_its_names(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(number: int) -> Any:
        models: list[Any] = [mlp(), mlp()]
        params = [param for model in models for param in model.parameters()]
        if number == 0:
            models[0] = torch.compile(models[0], backend="eager")
        optimizer = torch.optim.SGD(params, lr=0.1)
        session = paceline.init(
            models, optimizer, server=server.address, mode="server", policy="full", epochs=1
        )
        for _, x, y in session.loader(data(), batch_size=8):
            nn.functional.mse_loss(models[0](x) + models[1](x), y).backward()
            optimizer.step()
        session.close()
        return [param.detach().clone() for param in params]

    assert_identical(together(2, worker))


def test_optimizer_state_from_before_is_refused_and_empty_state_is_not(serve: Any) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(data().tensors[1]).sum().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    with pytest.raises(paceline.PacelineError, match="Adam has a state already.*PACELINE_RESUME"):
        paceline.init(model, optimizer, mode="server")

    fresh = torch.optim.Adam(model.parameters(), lr=0.01)
    for param in model.parameters():
        fresh.state[param] = {}
    session = paceline.init(model, fresh, mode="server", server=serve(1).address)
    fresh.load_state_dict(saved)
    with session, pytest.raises(paceline.PacelineError, match="Adam has a state already"):
        session.loader(data(), batch_size=8)


def test_momentum_without_a_buffer_yet_is_no_state() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for param in model.parameters():
        optimizer.state[param] = {"momentum_buffer": None}
    paceline.init(model, optimizer, mode="server").close()
