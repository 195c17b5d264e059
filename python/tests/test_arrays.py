"""NumPy arrays train without torch, with the optimizer on the shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import paceline
from workers import together

SAMPLES, FEATURES = 48, 6


def problem() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    x = random.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, x @ random.normal(size=FEATURES).astype(np.float32)


def gradient(weight: Any, x: Any, y: Any) -> Any:
    return 2 * x.T @ (x @ weight - y) / len(y)


def test_two_workers_descend_as_one_does_on_the_samples_of_both(serve: Any) -> None:
    server = serve(2, policy="full")
    x, y = problem()

    def worker(_: int) -> tuple[Any, list[tuple[int, list[int]]]]:
        weight = np.zeros(FEATURES, np.float32)
        session = paceline.init_arrays(
            {"weight": weight}, samples=SAMPLES, batch_size=4, epochs=2, lr=0.05, server=server.address,
            policy="full",
        )  # fmt: skip
        seen = []
        for batch in session.batches():
            step = session.step({"weight": gradient(weight, x[batch], y[batch])})
            assert step.used and step.contributors == 2
            seen.append((step.round, batch.tolist()))
        session.close()
        return weight, seen

    (first, seen), (second, others) = together(2, worker)
    assert (first == second).all()
    rounds = {at: [*samples, *dict(others)[at]] for at, samples in seen}
    weight = np.zeros(FEATURES, np.float32)
    for at in sorted(rounds):
        weight -= 0.05 * gradient(weight, x[rounds[at]], y[rounds[at]])
    np.testing.assert_allclose(first, weight, rtol=1e-4, atol=1e-6)
    used = sum(rounds.values(), [])
    assert sorted(used) == sorted(list(range(SAMPLES)) * 2)
