"""Replicas that differ are found by their hashes and repaired from the run's state."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from workers import assert_identical, fit, mlp, together


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
