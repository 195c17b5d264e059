"""What a session's hold on a model leaves possible, and what the state of a run can carry."""

from __future__ import annotations

import copy
import io
import logging
from typing import Any

import paceline
import pytest
import torch
from torch import Tensor, nn
from workers import alone, assert_close, assert_identical, data, fit, mlp, seeded, together, values


def session_of(model: nn.Module, address: str, **settings: Any) -> paceline.Session:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return paceline.init(model, optimizer, server=address, epochs=1, **settings)


def test_copies_and_pickles_of_a_model_belong_to_no_session(serve: Any) -> None:
    model = mlp()
    session = session_of(model, serve(1).address)
    early = copy.deepcopy(model)
    loader = session.loader(data(), batch_size=4)
    average = torch.optim.swa_utils.AveragedModel(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    _, x, y = next(iter(loader))
    for plain in (early, average, loaded):
        plain.train()
        nn.functional.mse_loss(plain(x), y).backward()
        assert session.last is None and next(plain.parameters()).grad is not None
    session.close()
    session_of(early, serve(1).address).close()


def test_a_model_that_a_session_trains_is_refused_until_that_one_is_closed(serve: Any) -> None:
    model, address = mlp(), serve(1).address
    first = session_of(model, address)
    with pytest.raises(paceline.PacelineError, match=r"call close\(\) on that one"):
        session_of(model, address)
    first.close()
    session_of(model, address).close()


class Tuned(nn.Module):
    """A large layer that is frozen, a complex buffer, and a small layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Embedding(20_000_000, 1)
        self.base.weight.requires_grad_(False)
        self.register_buffer("phases", torch.polar(torch.ones(6), torch.arange(6.0)))
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.phases.real + self.base.weight[:6, 0])


def test_a_large_frozen_part_and_complex_buffers_are_in_the_runs_state(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(number: int) -> Any:
        model = Tuned()
        seeded(model.head)
        # The second worker has other values, so that it takes the state of the first.
        nn.init.constant_(model.base.weight, number)
        if number == 1:
            nn.init.zeros_(model.head.weight)
            model.phases.zero_()
        fit(server, model, torch.optim.SGD(model.parameters(), lr=0.1), policy="full")
        return [model.base.weight[:9].clone(), model.phases, *values(model.head)]

    states = together(2, worker)
    assert_identical(states)


class Preconditioned(torch.optim.SGD):
    """SGD that keeps lists and dicts of tensors for each parameter, as second-order optimizers do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["factors"] = [torch.ones(2), {"trace": torch.zeros(())}]
                    state["count"] = 0
                first, second = state["factors"]
                first += param.grad.abs().mean()
                second["trace"] += first.sum()
                state["count"] += 1
                param -= group["lr"] * param.grad / first[0] / state["count"] ** 0.5
        return None


def test_nested_state_of_an_optimizer_is_compared_and_taken_over(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(3, policy="full")

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = Preconditioned(model.parameters(), lr=0.05)

        def look(session: Any) -> None:
            if number == 1 and session.last.round == 3:
                optimizer.state[model[0].bias]["factors"][1]["trace"].fill_(9.0)
                optimizer.state[model[0].bias]["factors"][0].fill_(9.0)

        fitted = fit(
            server, model, optimizer, epochs=5, after_backward=look, policy="full", hash_every=1
        )
        state = optimizer.state[model[0].bias]
        return fitted.values, [state["factors"][0], state["factors"][1]["trace"]], state["count"]

    with caplog.at_level(logging.WARNING, logger="paceline"):
        outcomes = together(3, worker)
    assert_identical([values for values, _, _ in outcomes])
    assert_identical([factors for _, factors, _ in outcomes])
    assert len({count for _, _, count in outcomes}) == 1
    assert "optimizer state of 0.bias" in caplog.text


def test_a_state_that_arrives_changed_is_not_trained_on() -> None:
    model = mlp()
    session = paceline.init(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sent = bytes(session._replica.capture(3, epoch=0))
    assert session._replica.restore(sent)[0] == 3
    number = model[2].bias.detach().numpy().tobytes()
    assert sent.count(number) == 1
    with pytest.raises(paceline.PacelineError, match=r"the parameter `2\.bias` differs after"):
        session._replica.restore(sent.replace(number, b"\0\0\0\0"))
    session.close()


def test_running_statistics_that_the_model_has_replaced_still_travel(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(number: int) -> Any:
        model = seeded(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
        session = session_of(model, server.address, policy="full")
        # `Module.to` a device puts new buffers into the module.
        model[1].running_mean = model[1].running_mean.clone()
        for _, x, y in session.loader(data(), batch_size=4):
            nn.functional.mse_loss(model(x + number), y).backward()
            session._replica.optimizers[0].step()
            model.zero_grad()
        session.close()
        return [model[1].running_mean.clone(), model[1].running_var.clone()]

    states = together(2, worker)
    assert_identical(states)
    assert states[0][0].abs().sum() > 0


def fail_once(model: nn.Sequential) -> None:
    """The next backward pass fails when the gradients of the last layer are written."""

    def interrupt(_gradient: Tensor) -> None:
        raise KeyboardInterrupt

    def watch(_layer: nn.Module, _inputs: Any, hidden: Tensor) -> None:
        hidden.register_hook(interrupt)
        handle.remove()

    handle = model[1].register_forward_hook(watch)


def test_a_loop_begins_again_after_an_exception_inside_backward(serve: Any) -> None:
    found = []
    for fails in (True, False):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = paceline.init(model, optimizer, server=serve(1).address, epochs=1)
        loader = session.loader(data(), batch_size=48)
        if fails:
            _, x, _ = next(iter(loader))
            fail_once(model)
            with pytest.raises(KeyboardInterrupt):
                (3 * model(x)).square().mean().backward()
        for _, x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        session.close()
        found.append(values(model))
    assert_close(found[0], found[1])


@pytest.mark.parametrize("straggler", ["salvage", "abort"])
def test_a_micro_batch_that_failed_is_computed_again_or_refused(serve: Any, straggler: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(
        model, optimizer, server=serve(1).address, epochs=1, straggler=straggler
    )

    def train() -> None:
        for _, x, y in session.loader(data(), batch_size=48):
            for at, (x, y) in enumerate(session.micro_batches((x, y), 2)):
                if at == 1:
                    fail_once(model)
                    with pytest.raises(KeyboardInterrupt):
                        model(x).square().mean().backward()
                (nn.functional.mse_loss(model(x), y) / 2).backward()
            optimizer.step()

    if straggler == "abort":
        with pytest.raises(paceline.PacelineError, match="added to earlier micro-batches"):
            train()
    else:
        train()
        plain = mlp()
        expected = alone(plain, torch.optim.SGD(plain.parameters(), lr=0.1), [list(range(48))])
        assert_close(values(model), expected)
    session.close()
