"""Servers and workers for the tests of a session."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import paceline

T = TypeVar("T", bound=nn.Module)
HERE = Path(__file__).parent
PATIENCE = 60.0
"""Seconds after which a test gives up."""


class Server:
    """A server process that waits for the model of its workers, for a new run or for one that it resumes."""

    def __init__(
        self, folder: Path, workers: int, settings: dict[str, object], *, resume: bool = False
    ) -> None:
        file = folder / "address"
        file.unlink(missing_ok=True)
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [
            sys.executable, "-m", "paceline", "server", "--model", "offered", "--bind", "127.0.0.1:0",
            "--workers", str(workers), "--address-file", str(file), "--run-dir", str(folder),
            "--resume" if resume else "--name", "run", "--shards", "1", *flags,
        ]  # fmt: skip
        self.folder = folder / "run"
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()[1]
        self.address = file.read_text().split()[0]

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def together(workers: int, body: Callable[[int], Any]) -> list[Any]:
    """Runs ``body(number)`` on a thread per worker; returns what each returns."""
    results: list[Any] = [None] * workers
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = body(number)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        while thread.is_alive() and not errors and time.monotonic() < deadline:
            thread.join(0.02)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    return results


@dataclass
class Fitted:
    """The outcome of :func:`fit` on one worker."""

    session: paceline.Session
    values: list[Tensor]
    rounds: list[tuple[paceline.Step, list[int]]]
    """Each round's outcome, and the samples that this worker computed in it."""


def fit(
    server: Server,
    model: nn.Module,
    optimizer: Any,
    *,
    scheduler: Any = None,
    epochs: int = 1,
    batch: int = 4,
    num_workers: int = 0,
    after_backward: Callable[[paceline.Session], None] = lambda _: None,
    **settings: Any,
) -> Fitted:
    """An ordinary training loop over :func:`data`."""
    session = paceline.init(
        model, optimizer, scheduler, server=server.address, epochs=epochs, **settings
    )
    loader = session.loader(data(), batch_size=batch, num_workers=num_workers)
    rounds = []
    for _ in range(epochs):
        for index, x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            after_backward(session)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            assert session.last is not None
            rounds.append((session.last, index.tolist()))
    session.close()
    return Fitted(session, values(model), rounds)


def by_round(fitted: list[Fitted]) -> list[list[int]]:
    """The samples of every round, over all workers."""
    rounds: dict[int, list[int]] = {}
    for worker in fitted:
        for step, samples in worker.rounds:
            rounds.setdefault(step.round, []).extend(samples)
    return [rounds[key] for key in sorted(rounds)]


def alone(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rounds: list[list[int]],
    scheduler: Any = None,
    before_step: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """The same training in one process, without Paceline: each round is one batch."""
    _, x, y = data().tensors
    for samples in rounds:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[samples]), y[samples]).backward()
        before_step()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return values(model)


def fit_several(
    server: Server,
    make: Callable[[], tuple[list[nn.Module], list[torch.optim.Optimizer]]],
    train: Callable[[list[nn.Module], list[int], Callable[[], Any]], None],
    **settings: Any,
) -> None:
    """Two workers train several models, and end as one process that trains on the batches of both.

    ``train(models, samples, no_sync)`` computes the gradients of a step: all of its backward passes but the last
    are inside ``no_sync()``.
    """

    def worker(_: int) -> tuple[list[list[int]], list[Tensor]]:
        models, optimizers = make()
        session = paceline.init(
            models, optimizers, server=server.address, policy="full", epochs=1, **settings
        )
        rounds = []
        for index, _x, _y in session.loader(data(), batch_size=4):
            step(models, optimizers, index.tolist(), session.no_sync)
            rounds.append(index.tolist())
        session.close()
        return rounds, values(nn.ModuleList(models))

    def step(models: Any, optimizers: Any, samples: list[int], no_sync: Callable[[], Any]) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        train(models, samples, no_sync)
        for optimizer in optimizers:
            optimizer.step()

    (first, found), (second, other) = together(2, worker)
    assert_identical([found, other])
    models, optimizers = make()
    for one, two in zip(first, second, strict=True):
        step(models, optimizers, one + two, nullcontext)
    assert_close(found, values(nn.ModuleList(models)), 1e-4)


def data(samples: int = 48) -> torch.utils.data.TensorDataset:
    """A regression problem: index, input and target of every sample."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 6, generator=generator)
    y = x @ torch.randn(6, 1, generator=generator) + 0.1
    return torch.utils.data.TensorDataset(torch.arange(samples), x, y)


def seeded(model: T) -> T:
    """The model with the same parameters on every worker. Threads share torch's own generator."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for param in model.parameters():
            param.uniform_(-0.4, 0.4, generator=generator)
    return model


def mlp() -> nn.Sequential:
    """A small network for :func:`data`."""
    return seeded(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))


def values(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters."""
    return [param.detach().clone() for param in model.parameters()]


def assert_close(found: list[Tensor], expected: list[Tensor], rtol: float = 1e-5) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-7)


def assert_identical(states: list[list[Tensor]]) -> None:
    for other in states[1:]:
        for a, b in zip(states[0], other, strict=True):
            assert torch.equal(a, b)


def spawn(script: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """A script of this folder as a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
