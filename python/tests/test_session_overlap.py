"""Over TCP gradients leave while the backward pass goes on: the parameters are those of shared memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import paceline
import pytest
import torch
from torch import Tensor, nn
from workers import assert_identical, data, seeded, together, values


class OnePass(threading.local):
    """Whether the next backward pass of this worker, which is a thread, fails."""

    fails = False


ONE_PASS = OnePass()


class Guard(torch.autograd.Function):
    """Fails in a backward pass that is to fail."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        if ONE_PASS.fails:
            ONE_PASS.fails = False
            raise ValueError("broken")
        return grad


class Wide(nn.Module):
    """A network of several blocks of 256 KiB, for :func:`data`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 512)
        self.rest = nn.Sequential(
            *(nn.Linear(512, 512) for _ in range(4)), nn.Tanh(), nn.Linear(512, 1)
        )
        with torch.no_grad():
            seeded(self)
            for param in self.parameters():
                param.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rest(Guard.apply(self.first(x)))
        return out


def plain(model: nn.Module, x: Tensor, y: Tensor, session: paceline.Session) -> None:
    session.backward(nn.functional.mse_loss(model(x), y))


def train(
    serve: Any,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
    backward: Callable[..., None] = plain,
    **settings: Any,
) -> list[Tensor]:
    monkeypatch.setenv("PACELINE_TRANSPORT", transport)
    address = serve(2, policy="full", block_kib=256).address

    def worker(_: int) -> list[Tensor]:
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        session = paceline.init(
            model, optimizer, server=address, policy="full", epochs=1, **settings
        )
        with session:
            for _, x, y in session.loader(data(), batch_size=4):
                optimizer.zero_grad()
                backward(model, x, y, session)
                optimizer.step()
        return values(model)

    states = together(2, worker)
    assert_identical(states)
    return states[0]


@pytest.mark.parametrize("mode", ["mean", "server"])
def test_blocks_that_leave_early_make_the_same_parameters(
    serve: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    found = [train(serve, monkeypatch, transport, mode=mode) for transport in ("auto", "tcp")]
    assert_identical(found)


def test_a_backward_pass_that_failed_is_replaced_by_the_next(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(model: nn.Module, x: Tensor, y: Tensor, session: paceline.Session) -> None:
        if session.number == 1 and session.round == 2:
            ONE_PASS.fails = True
            with pytest.raises(ValueError, match="broken"):
                # A loss that nothing of may reach the parameters.
                session.backward(1e6 * nn.functional.mse_loss(model(x), y))
        plain(model, x, y, session)

    expected = train(serve, monkeypatch, "auto")
    assert_identical([expected, train(serve, monkeypatch, "tcp", twice)])
