"""Autocast, half-precision parameters, and half precision on the wire: the parameters are those of one process
that rounds in the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_session_behind import STEPS, Loop, run
from torch import Tensor, nn
from workers import Fitted, assert_close, assert_identical, data, fit, mlp, together, values

BATCH = 4


class Narrow(nn.Module):
    """The network of :func:`mlp` with parameters of a dtype, or under autocast to it."""

    def __init__(self, dtype: torch.dtype, *, autocast: bool = False) -> None:
        super().__init__()
        self.inner = mlp() if autocast else mlp().to(dtype)
        self.dtype, self.autocast = dtype, autocast

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype, enabled=self.autocast):
            out: Tensor = self.inner(x if self.autocast else x.to(self.dtype))
        assert out.dtype is self.dtype
        return out.float()


def trained(server: Any, make: Callable[[], nn.Module], mode: str, **settings: Any) -> list[Fitted]:
    """Two workers of which each contributes a whole batch to every round."""

    def worker(_: int) -> Fitted:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return fit(server, model, optimizer, batch=BATCH, mode=mode, policy="full", **settings)

    fitted = together(2, worker)
    assert_identical([each.values for each in fitted])
    return fitted


def one_process(
    model: nn.Module, fitted: list[Fitted], mode: str, wire: torch.dtype = torch.float32
) -> list[Tensor]:
    """The same training in one process, which computes the batches one by one and adds them up in float32.

    Each sum over a batch is rounded to ``wire``, and so is the mean in mode ``mean``. In mode ``server``
    the optimizer has parameters of its own, in float32, which are rounded for the model.
    """
    params = stepped = list(model.parameters())
    if mode == "server":
        stepped = [param.detach().clone().float().requires_grad_() for param in params]
    optimizer = torch.optim.SGD(stepped, lr=0.05, momentum=0.9)
    _, x, y = data().tensors

    @torch.no_grad()
    def pull() -> None:
        if mode == "server":
            for param, value in zip(params, stepped):
                param.copy_(value.to(wire))

    pull()
    for round_of_all in zip(*(each.rounds for each in fitted), strict=True):
        sums = [torch.zeros(param.shape) for param in params]
        for _, samples in round_of_all:
            assert len(samples) == BATCH
            model.zero_grad()
            nn.functional.mse_loss(model(x[samples]), y[samples]).backward()
            for total, param in zip(sums, params):
                assert param.grad is not None
                total += (BATCH * param.grad.float()).to(wire).float()
        for param, total in zip(stepped, sums):
            mean = total / (BATCH * len(round_of_all))
            param.grad = (mean if mode == "server" else mean.to(wire)).to(param.dtype)
        optimizer.step()
        pull()
    return values(model)


MODELS = {
    "autocast": lambda: Narrow(torch.bfloat16, autocast=True),
    "bfloat16": lambda: Narrow(torch.bfloat16),
    "float16": lambda: Narrow(torch.float16),
}


@pytest.mark.parametrize("mode", ["mean", "server"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_half_precision_trains_as_in_one_process(
    serve: Any, name: str, mode: str
) -> None:
    make = MODELS[name]
    fitted = trained(serve(2, policy="full"), make, mode)
    expected = one_process(make(), fitted, mode)
    assert {value.dtype for value in fitted[0].values} == {value.dtype for value in expected}
    # A parameter may be rounded in the other direction than that of the shards.
    halves = mode == "server" and name != "autocast"
    assert_close(
        [value.float() for value in fitted[0].values],
        [value.float() for value in expected],
        2**-7 if halves else 1e-5,
    )


@pytest.mark.parametrize("mode", ["mean", "server"])
@pytest.mark.parametrize(("wire", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_wire_rounds_what_travels_over_tcp(
    serve: Any, monkeypatch: pytest.MonkeyPatch, wire: str, dtype: torch.dtype, mode: str
) -> None:
    monkeypatch.setenv("PACELINE_TRANSPORT", "tcp")
    fitted = trained(serve(2, policy="full"), mlp, mode, wire=wire)
    assert_close(fitted[0].values, one_process(mlp(), fitted, mode, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_clipped_steps_of_half_precision_parameters_are_replayed(
    serve: Any, dtype: torch.dtype
) -> None:
    def clip(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    def slow(loop: Loop) -> list[bool]:
        (optimizer,) = loop.optimizers
        replays = loop.watch_replays()
        for x, y in loop.behind(rounds=3):
            loop.loss(x, y).backward()
            clip(loop.model)
            optimizer.step()
        return replays

    server = serve(2, policy="static:1")
    replays = run(server.address, slow, model=lambda: Narrow(dtype), change=clip)
    # What the very first change is compared with is not kept, see FlatVector.factor.
    assert len(replays) >= STEPS and all(replays[1:]), replays
