"""Replicas that differ are found by their hashes and repaired from the run's state."""

from __future__ import annotations

import logging
from typing import Any

import paceline
import pytest
import torch
from torch import nn
from workers import assert_identical, data, fit, mlp, together, values


@pytest.mark.parametrize("policy", ["full", "static:2"])
def test_a_replica_that_differs_is_named_and_takes_the_runs_state(
    serve: Any, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(3, policy=policy)

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        def look(session: Any) -> None:
            if number == 1 and session.last.round == 3:
                nn.init.zeros_(model[0].bias)

        return fit(
            server, model, optimizer, epochs=5, after_backward=look, policy=policy, hash_every=1
        )

    with caplog.at_level(logging.WARNING, logger="paceline"):
        fitted = together(3, worker)
    assert_identical([each.values for each in fitted])
    assert "other values than most workers" in caplog.text
    assert "0.bias" in caplog.text


def test_a_rate_that_only_one_worker_reduces_is_undone(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(3, policy="full")

    def worker(number: int) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        session = paceline.init(
            model, optimizer, plateau, server=server.address, policy="full", epochs=2, hash_every=1
        )
        loader = session.loader(data(), batch_size=4)
        for epoch in session.epochs(2):
            for _, x, y in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            if epoch == 0 and number == 1:
                plateau.step(1.0)
                plateau.step(2.0)
                assert plateau.get_last_lr() == [0.025]
        session.close()
        return values(model), optimizer.param_groups[0]["lr"]

    with caplog.at_level(logging.WARNING, logger="paceline"):
        outcomes = together(3, worker)
    assert_identical([values for values, _ in outcomes])
    assert [rate for _, rate in outcomes] == [0.05] * 3
    assert "other values than most workers" in caplog.text
