"""The ways to start a script: torchrun and plain python. Both start a server, which ends with the run.

``paceline train --command`` has its tests beside the command line.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from workers import HERE, wait_until

OTHER_RUNS = ("PACELINE_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_")


def start(
    folder: Path, *launcher: str, words: tuple[str, ...] = (), script: str = "starting_loop.py"
) -> list[dict[str, Any]]:
    """Runs a script with this launcher; returns the workers' outcomes, by number."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(OTHER_RUNS)}
    done = subprocess.run(
        [sys.executable, *launcher, str(HERE / script), *words],
        env={**inherited, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return outcomes_of(done.stdout)


def outcomes_of(printed: str) -> list[dict[str, Any]]:
    """What workers that run ``starting_loop.py`` print, by number."""
    told = [line.partition("outcome ")[2] for line in printed.splitlines()]
    return sorted((json.loads(line) for line in told if line), key=lambda each: each["worker"])


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("launcher", "workers"), [((), 1), (TORCHRUN, 2)], ids=["python", "torchrun"]
)
def test_a_script_starts_its_own_server_which_ends_with_the_run(
    tmp_path: Path, launcher: tuple[str, ...], workers: int
) -> None:
    outcomes = start(tmp_path, *launcher)
    assert [outcome["worker"] for outcome in outcomes] == list(range(workers))
    assert sorted(sum((outcome["seen"] for outcome in outcomes), [])) == list(range(48))
    assert all(outcome["parameters"] == outcomes[0]["parameters"] for outcome in outcomes)
    (address,) = {outcome["server"] for outcome in outcomes}
    wait_until(lambda: not answers(address))
    (run,) = (tmp_path / "runs").iterdir()
    wait_until((run / "summary.json").exists)


def test_the_server_outlives_the_rank_that_started_it(tmp_path: Path) -> None:
    first, second = start(tmp_path, *TORCHRUN, words=("leave",))
    assert len(first["seen"]) == 8
    assert sorted(first["seen"] + second["seen"]) == list(range(48))


def test_ranks_of_several_nodes_reach_a_server_that_needs_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Any
) -> None:
    """Each rank is alone on its node. A server on 127.0.0.1 alone cannot be reached at 127.0.0.2."""
    monkeypatch.chdir(tmp_path)
    place = {"MASTER_ADDR": "127.0.0.2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    first, second = outcomes_of("".join(ranks("starting_loop.py", **place)))
    assert first["server"].startswith("127.0.0.2:") and second["server"] == first["server"]
    assert first["token"] and second["token"]
    assert sorted(first["seen"] + second["seen"]) == list(range(48))
    assert first["parameters"] == second["parameters"]


def test_a_server_with_a_token_refuses_workers_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    import paceline
    from paceline import launch
    from workers import data, mlp

    monkeypatch.chdir(tmp_path)
    address = launch._start_server(1, "127.0.0.1:0", "open sesame")

    def train() -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with paceline.init(model, optimizer, server=address, epochs=1) as session:
            for _, x, y in session.loader(data(), batch_size=4):
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()

    with pytest.raises(paceline.PacelineError, match="wrong token"):
        train()
    monkeypatch.setenv("PACELINE_TOKEN", "open sesame")
    train()
    wait_until(lambda: not answers(address))


def test_one_torchrun_per_worker_gives_every_worker_a_number_of_its_own(
    serve: Any, ranks: Any
) -> None:
    """Each worker is rank 0 of a torchrun with one process, whose server is named."""
    server = serve(2, policy="full")
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    printed = ranks("starting_loop.py", PACELINE_SERVER=server.address, **place)
    outcomes = outcomes_of("".join(printed))
    assert [outcome["worker"] for outcome in outcomes] == [0, 1]
    assert sorted(sum((outcome["seen"] for outcome in outcomes), [])) == list(range(48))
    assert outcomes[0]["parameters"] == outcomes[1]["parameters"]


class Store:
    """What the ranks of a torchrun tell each other."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


def test_other_ranks_wait_until_the_model_of_rank_0_defines_the_run(
    monkeypatch: pytest.MonkeyPatch, serve: Any
) -> None:
    torch = pytest.importorskip("torch")
    import paceline
    from paceline import launch
    from workers import data, mlp, together

    server, store = serve(2, policy="full"), Store()
    monkeypatch.setattr(launch, "_store", store)
    monkeypatch.setattr(launch, "_start_server", lambda *_: server.address)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    first_run = launch._under_torchrun(0, 2)
    monkeypatch.setattr(launch, "_sessions", 0)
    assert not store.values

    def worker(rank: int) -> Any:
        run = first_run if rank == 0 else launch._under_torchrun(rank, 2)
        model = mlp()
        torch.nn.init.constant_(model[0].weight, float(rank))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        session = paceline.init(model, optimizer, policy="full", epochs=1)
        session._membership.run = run
        for _, x, y in session.loader(data(), batch_size=4):
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        session.close()
        return model[0].weight.detach()

    first, second = together(2, worker)
    assert not first.any() and torch.equal(first, second)


def test_a_rank_waits_for_rank_0_beyond_the_stores_own_limit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("torch.distributed")
    from paceline import launch

    store = distributed.TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=0.5)
    )
    threading.Timer(1.5, lambda: store.set("key", "told")).start()
    monkeypatch.setattr(launch, "_QUIET", 0.0)
    with caplog.at_level(logging.WARNING, "paceline"):
        assert launch._heard(store, "key") == "told"
    assert caplog.text.count("waiting for rank 0") == 1


def test_ctrl_c_ends_the_wait_for_rank_0() -> None:
    distributed = pytest.importorskip("torch.distributed")
    from paceline import launch

    store = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    # As Ctrl-C does.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        launch._heard(store, "key")
