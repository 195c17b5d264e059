"""Workers that die, join late and stop, as real processes: the run goes on, replicas are identical at the
end, and every sample is accounted for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ledger import used_samples
from workers import Server, spawn, wait_until

EPOCHS, SAMPLES = 2, 600


class Workers:
    """Worker processes of a run."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def prepare(self, server: Server, count: int, policy: str, pace: float = 0.01) -> None:
        """Starts processes that wait for a line before they join."""
        self.prepare_at(server.address, count, policy, pace)

    def prepare_at(self, address: str, count: int, policy: str, pace: float = 0.01) -> None:
        words = [address, str(SAMPLES), str(EPOCHS), str(pace), policy]
        started = [spawn("session_loop.py", *words) for _ in range(count)]
        self.processes += started
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]

    def begin(self, number: int) -> None:
        stdin = self.processes[number].stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()

    def outcome(self, number: int) -> dict[str, Any]:
        process = self.processes[number]
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        outcome: dict[str, Any] = json.loads(out)
        return outcome


@pytest.fixture
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


def rounds(server: Server) -> int:
    """Rounds that the run has closed."""
    log = server.folder / "events.jsonl"
    return log.read_text().count('"event":"closed"') if log.exists() else 0


def events(server: Server, kind: str) -> list[dict[str, Any]]:
    lines = (server.folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def assert_all_samples_used(server: Server) -> None:
    used = used_samples(server.folder)
    assert {epoch: sorted(at) for epoch, at in used.items()} == {
        epoch: list(range(SAMPLES)) for epoch in range(EPOCHS)
    }


def test_a_run_survives_a_killed_worker_and_takes_in_one_that_joins_late(
    serve: Any, workers: Workers
) -> None:
    server = serve(2, policy="full", liveness="5s")
    workers.prepare(server, 3, "full")
    workers.begin(0)
    workers.begin(1)
    wait_until(lambda: rounds(server) >= 10)
    workers.begin(2)
    wait_until(lambda: len(events(server, "worker_joined")) == 3)
    workers.processes[1].kill()
    first, late = workers.outcome(0), workers.outcome(2)
    assert (first["state"], first["rate"]) == (late["state"], late["rate"])
    assert_all_samples_used(server)


def test_a_worker_stopped_for_less_than_the_liveness_catches_up(
    serve: Any, workers: Workers
) -> None:
    server = serve(2, policy="static:1", liveness="10s")
    workers.prepare(server, 2, "static:1")
    workers.begin(0)
    workers.begin(1)
    wait_until(lambda: rounds(server) >= 10)
    stopped = workers.processes[1]
    os.kill(stopped.pid, signal.SIGSTOP)
    at = rounds(server)
    wait_until(lambda: rounds(server) >= at + 10)
    os.kill(stopped.pid, signal.SIGCONT)
    first, second = workers.outcome(0), workers.outcome(1)
    assert (first["state"], first["rate"]) == (second["state"], second["rate"])
    assert second["missed"] >= 5
    assert_all_samples_used(server)


def test_a_worker_stopped_for_longer_than_the_liveness_joins_again(
    serve: Any, workers: Workers
) -> None:
    server = serve(2, policy="full", liveness="1s")
    workers.prepare(server, 2, "full", pace=0.02)
    workers.begin(0)
    workers.begin(1)
    wait_until(lambda: rounds(server) >= 5)
    stopped = workers.processes[1]
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_until(lambda: bool(events(server, "worker_left")))
    os.kill(stopped.pid, signal.SIGCONT)
    first, second = workers.outcome(0), workers.outcome(1)
    assert (first["state"], first["rate"]) == (second["state"], second["rate"])
    assert_all_samples_used(server)


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, paceline; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ctrl_c_ends_a_worker_that_waits(serve: Any, workers: Workers) -> None:
    server = serve(2, policy="full")
    workers.prepare(server, 1, "full")
    workers.begin(0)
    # The second worker never comes, so the first one waits.
    wait_until(lambda: bool(rounds(server) == 0 and events(server, "worker_joined")))
    process = workers.processes[0]
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - sent < 15


class Silence:
    """An address whose first connections reach a server, and whose later ones get no answer."""

    def __init__(self, server: Server | None, answered: int) -> None:
        self._server = server
        self._answered = answered
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.silent = threading.Event()
        self._held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(client)
            if self._server is None or self._answered == 0:
                self.silent.set()
                continue
            self._answered -= 1
            host, _, port = self._server.address.rpartition(":")
            server = socket.create_connection((host, int(port)))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, to: socket.socket) -> None:
        while data := source.recv(1 << 16):
            to.sendall(data)
        to.close()

    def close(self) -> None:
        self._listener.close()
        for connection in self._held:
            connection.close()


@pytest.mark.parametrize("answered", [0, 1], ids=["offer", "join"])
def test_ctrl_c_ends_a_worker_whose_server_does_not_answer(
    serve: Any, workers: Workers, answered: int
) -> None:
    silence = Silence(serve(1) if answered else None, answered)
    workers.prepare_at(silence.address, 1, "full")
    workers.begin(0)
    assert silence.silent.wait(60)
    process = workers.processes[0]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    silence.close()


def test_a_worker_stopped_for_30_s_joins_again(serve: Any, workers: Workers) -> None:
    server = serve(2, policy="full", liveness="10s")
    workers.prepare(server, 2, "full", pace=0.15)
    workers.begin(0)
    workers.begin(1)
    wait_until(lambda: rounds(server) >= 5)
    stopped = workers.processes[1]
    os.kill(stopped.pid, signal.SIGSTOP)
    time.sleep(30)
    assert events(server, "worker_left")
    assert workers.processes[0].poll() is None, "the run is over too soon"
    os.kill(stopped.pid, signal.SIGCONT)
    first, second = workers.outcome(0), workers.outcome(1)
    assert (first["state"], first["rate"]) == (second["state"], second["rate"])
    assert len(events(server, "worker_joined")) == 3
    assert_all_samples_used(server)
