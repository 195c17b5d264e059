"""The end of a run: loops over the loader end by themselves when it reaches its end, and raise when it fails."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import paceline
import pytest
import torch
from torch import nn
from workers import Server, assert_identical, data, mlp, together, values, wait_until

LONG = 100_000
"""Samples of an epoch that no test finishes."""


def session_of(server: Server, **settings: Any) -> tuple[paceline.Session, nn.Module, Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = paceline.init(model, optimizer, server=server.address, **settings)
    return session, model, optimizer


def train_step(model: nn.Module, optimizer: Any, x: Any, y: Any) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize(("mode", "by_epochs"), [("mean", True), ("server", False)])
def test_a_run_that_loses_its_quorum_between_two_epochs_raises(
    serve: Any, mode: str, by_epochs: bool
) -> None:
    server = serve(2, policy="full", quorum=2, quorum_grace="200ms")
    ends = threading.Event()

    def worker(number: int) -> int:
        session, model, optimizer = session_of(server, epochs=3, mode=mode)
        loader = session.loader(data(), batch_size=4)
        epochs = 0
        with session:
            for _ in session.epochs(3) if by_epochs else range(3):
                for _, x, y in loader:
                    train_step(model, optimizer, x, y)
                if number == 1:
                    break
                if epochs == 0:
                    # An evaluation, while the other worker leaves and the quorum is lost.
                    native = session._membership.connected()
                    assert ends.wait(60)
                    while native.ended() is None:
                        native.wait_for_message(0.1)
                epochs += 1
        if number == 1:
            ends.set()
        return epochs

    def first(number: int) -> None:
        if number == 1:
            worker(number)
            return
        with pytest.raises(paceline.RunEnded, match="the run has failed: quorum lost"):
            worker(number)

    together(2, first)


@pytest.mark.parametrize("mode", ["mean", "server"])
def test_a_worker_that_sleeps_through_the_last_epoch_has_its_steps(serve: Any, mode: str) -> None:
    server = serve(2, policy="static:1")
    slept = threading.Event()

    def worker(number: int) -> tuple[int, list[torch.Tensor]]:
        session, model, optimizer = session_of(server, epochs=3, mode=mode)
        loader = session.loader(data(), batch_size=4)
        epochs = 0
        with session:
            for epoch in session.epochs(3):
                for _, x, y in loader:
                    train_step(model, optimizer, x, y)
                epochs += 1
                if epoch == 1 and number == 1:
                    slept.set()
                    wait_until(lambda: session.epoch == 3)
                elif epoch == 1:
                    assert slept.wait(60)
            return epochs, values(model)

    (first, found), (second, other) = together(2, worker)
    assert (first, second) == (3, 2)
    assert_identical([found, other])


def test_a_flag_of_one_worker_ends_the_run_for_all(serve: Any) -> None:
    """Early stopping: one worker decides, and the others see it."""
    server, stop = serve(3), threading.Event()

    def worker(number: int) -> int:
        session, model, optimizer = session_of(server, epochs=1000)
        loader = session.loader(data(), batch_size=4)
        for epoch in session.epochs(1000):
            for _, x, y in loader:
                if stop.is_set():
                    break
                train_step(model, optimizer, x, y)
            if session.number == 0 and epoch == 2:
                stop.set()
            if stop.is_set():
                session.close()
                break
        return epoch

    assert max(together(3, worker)) < 100
    assert server.process.wait(timeout=60) == 0


def test_a_server_that_dies_ends_loops_without_torch_with_an_error(serve: Any) -> None:
    server = serve(1)
    params = {"w": np.zeros(4, np.float32)}
    session = paceline.init_arrays(params, samples=LONG, batch_size=8, server=server.address)
    with pytest.raises(RuntimeError):
        for at, _ in enumerate(session.batches()):
            session.step({"w": np.ones(4, np.float32)})
            if at == 3:
                # Between two batches: nothing waits for a round.
                server.process.kill()
                while session._worker.ended() is None:
                    session._worker.wait_for_message(0.1)
    session.close()


@pytest.mark.parametrize("mode", ["mean", "server"])
def test_a_loop_over_the_loader_ends_by_itself_at_a_limit(serve: Any, mode: str) -> None:
    server = serve(2, policy="full", time_limit="3s")

    def worker(number: int) -> Any:
        session, model, optimizer = session_of(server, mode=mode)
        step = None
        for _, x, y in session.loader(data(LONG), batch_size=4):
            if number == 1 and step is not None:
                # The other worker waits for its mean when the time is up.
                native = session._membership.connected()
                while native.ended() is None:
                    native.wait_for_message(0.1)
            train_step(model, optimizer, x, y)
            step = session.last
        session.close()
        return step

    for step in together(2, worker):
        assert not step.used and "time limit reached" in step.reason


def test_a_stream_is_told_of_a_limit(serve: Any) -> None:
    server = serve(1, policy="full", rounds=3)
    session, model, optimizer = session_of(server, batch_size=4)
    _, x, y = data().tensors
    with session, pytest.raises(paceline.RunEnded, match="the run is over: all rounds done"):
        for _ in range(10):
            train_step(model, optimizer, x[:4], y[:4])


def test_epochs_without_a_loader_are_refused(serve: Any) -> None:
    session, model, optimizer = session_of(serve(1), batch_size=4)
    with pytest.raises(paceline.PacelineError, match=r"call session\.loader\(\) before it"):
        next(iter(session.epochs(2)))
    _, x, y = data().tensors
    with session:
        train_step(model, optimizer, x[:4], y[:4])
        with pytest.raises(paceline.PacelineError, match="A stream has no epochs"):
            next(iter(session.epochs(2)))


def test_an_epoch_that_is_left_before_its_end_ends_epochs_with_a_warning(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session, model, optimizer = session_of(serve(1), epochs=3)
    loader, seen = session.loader(data(), batch_size=4), []
    with session, caplog.at_level(logging.WARNING, "paceline"):
        for epoch in session.epochs(3):
            seen.append(epoch)
            for _, x, y in loader:
                train_step(model, optimizer, x, y)
                if epoch == 1:
                    break
    assert seen == [0, 1]
    assert "the loop of epoch 1 ended before all samples" in caplog.text


def test_ctrl_c_ends_a_worker_whose_server_has_stalled(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_TRANSPORT", "tcp")
    server = serve(1)
    # A gradient that is larger than the buffers of a connection.
    model = nn.Sequential(nn.Linear(6, 2000), nn.Linear(2000, 4000), nn.Linear(4000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = paceline.init(model, optimizer, server=server.address, epochs=1)
    _, x, y = next(iter(session.loader(data(), batch_size=4)))
    os.kill(server.process.pid, signal.SIGSTOP)
    # As Ctrl-C does.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(KeyboardInterrupt):
        train_step(model, optimizer, x, y)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "paceline"):
        session.close()
    assert "the server did not answer in time" in caplog.text
    assert time.monotonic() - begun < 20
    os.kill(server.process.pid, signal.SIGCONT)


def test_a_loop_without_torch_ends_by_itself_at_a_limit(serve: Any) -> None:
    server = serve(2, policy="full", time_limit="3s")

    def worker(number: int) -> Any:
        params = {"w": np.zeros(4, np.float32)}
        session = paceline.init_arrays(
            params, samples=LONG, batch_size=8, server=server.address, policy="full"
        )
        for _ in session.batches():
            if number == 1 and session.last is not None:
                # The other worker waits for its round when the time is up.
                while session._worker.ended() is None:
                    session._worker.wait_for_message(0.1)
            session.step({"w": np.ones(4, np.float32)})
        session.close()
        return session.last

    for step in together(2, worker):
        assert not step.used and "time limit reached" in step.reason


def test_a_state_that_does_not_leave_and_the_farewell_share_a_deadline(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.membership.PARTING", 0.2)
    session, _, _ = session_of(serve(1), epochs=1)
    session.loader(data(), batch_size=4)
    upload = threading.Thread(target=threading.Event().wait, daemon=True)
    upload.start()
    session._membership.replicating()._uploads = [upload]
    native, left = session._membership.connected(), []

    class Spy:
        def leave(self, seconds: float) -> None:
            left.append(seconds)
            native.leave(10.0)

    session._membership.worker = Spy()  # type: ignore[assignment]
    session.close()
    assert left == [0.0]
