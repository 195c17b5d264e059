"""Mode mean with every worker in every round: the parameters are those of one process with the whole batch."""

from __future__ import annotations

import json
from typing import Any

import paceline
import pytest
import torch
from torch import nn
from workers import (
    alone,
    assert_close,
    assert_identical,
    by_round,
    data,
    fit,
    fit_several,
    mlp,
    seeded,
    together,
)

OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), 1e-5),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3), 1e-5),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01), 1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_workers_train_as_one_process_with_the_whole_batch(serve: Any, name: str) -> None:
    make, rtol = OPTIMIZERS[name]
    server = serve(3, policy="full")

    def worker(_: int) -> Any:
        model = mlp()
        return fit(server, model, make(model.parameters()), epochs=3, policy="full")

    fitted = together(3, worker)
    assert_identical([each.values for each in fitted])
    rounds = by_round(fitted)
    assert sorted(sum(rounds, [])) == sorted(list(range(48)) * 3)
    model = mlp()
    assert_close(fitted[0].values, alone(model, make(model.parameters()), rounds), rtol)


def test_after_backward_grad_holds_the_mean_over_all_workers(serve: Any) -> None:
    server = serve(2, policy="full")
    grads: list[dict[int, list[torch.Tensor]]] = [{}, {}]

    def worker(number: int) -> Any:
        model = mlp()

        def look(session: paceline.Session) -> None:
            assert session.last is not None
            grads[number][session.last.round] = [p.grad.clone() for p in model.parameters()]

        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return fit(server, model, optimizer, after_backward=look, policy="full")

    rounds = by_round(together(2, worker))
    model, (_, x, y) = mlp(), data().tensors
    assert len(rounds) == 6
    for at, samples in enumerate(rounds):
        model.zero_grad()
        nn.functional.mse_loss(model(x[samples]), y[samples]).backward()
        expected = [param.grad for param in model.parameters()]
        assert_identical([grads[0][at], grads[1][at]])
        assert_close(grads[0][at], expected)


def test_clipping_by_norm_and_a_scheduler_work_as_in_one_process(serve: Any) -> None:
    server = serve(2, policy="full")

    def make(model: nn.Module) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

    def worker(_: int) -> Any:
        model = mlp()
        optimizer, scheduler = make(model)
        clip = lambda _: nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # noqa: E731
        return fit(
            server, model, optimizer, scheduler=scheduler, after_backward=clip, policy="full"
        )

    fitted = together(2, worker)
    model = mlp()
    optimizer, scheduler = make(model)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # noqa: E731
    expected = alone(model, optimizer, by_round(fitted), scheduler, clip)
    assert_close(fitted[0].values, expected)
    assert_identical([each.values for each in fitted])


def test_last_says_what_became_of_the_contribution(serve: Any) -> None:
    server = serve(2, policy="full")

    def worker(_: int) -> Any:
        model = mlp()
        return fit(server, model, torch.optim.SGD(model.parameters(), lr=0.1), policy="full")

    for fitted in together(2, worker):
        for at, (step, samples) in enumerate(fitted.rounds):
            assert (step.round, step.used, step.share) == (at, True, 1.0)
            assert (step.contributors, step.weight, step.missed) == (2, 8.0, 0)
            assert len(samples) == 4
            assert step.cut_after > 0
            assert step.reason


def test_several_models_and_optimizers_train_in_one_session(serve: Any) -> None:
    server = serve(2, policy="full")

    def train(models: list[nn.Module], samples: list[int], _no_sync: Any) -> None:
        _, x, y = data().tensors
        nn.functional.mse_loss(models[1](models[0](x[samples])), y[samples]).backward()

    def make() -> tuple[list[nn.Module], list[Any]]:
        models = [seeded(nn.Linear(6, 4)), seeded(nn.Linear(4, 1))]
        first = torch.optim.SGD(models[0].parameters(), lr=0.1)
        return models, [first, torch.optim.Adam(models[1].parameters(), lr=0.01)]

    fit_several(server, make, train)


def test_norms_are_those_of_the_gradients_alone(serve: Any) -> None:
    server = serve(2, policy="full")
    norms: list[dict[int, float]] = [{}, {}]

    def worker(number: int) -> Any:
        model = seeded(nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.Linear(64, 1)))

        def look(session: paceline.Session) -> None:
            assert session.last is not None
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            norms[number][session.last.round] = float(torch.cat([g.flatten() for g in grads]).norm())

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return fit(server, model, optimizer, after_backward=look, policy="full")

    together(2, worker)
    log = (server.folder / "events.jsonl").read_text().splitlines()
    updates = [event for event in map(json.loads, log) if event["event"] == "updated"]
    assert len(updates) == 6
    for event in updates:
        assert event["gradient_norm"] == pytest.approx(norms[0][event["round"]], rel=1e-5)
