"""Finds the run's server, or starts one that outlives the process that started it."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import PacelineError

log = logging.getLogger("paceline")

_store: Any = None
"""Where the ranks of a torchrun tell each other of servers. Ranks may ask it long after it was made."""

_sessions = 0
"""Runs of this process under its torchrun so far."""

_START_PATIENCE = 60.0
"""Seconds that a server may take to start."""

_LOOK = 0.05
"""Seconds between two looks for what rank 0 tells."""

_QUIET = 30.0
"""Seconds after which a wait for rank 0 is logged."""


@dataclass(frozen=True)
class Run:
    """Where a run's server is, and who this worker is."""

    address: str
    token: str | None = None
    wish: int | None = None
    name: str = ""
    announce: Callable[[], None] = lambda: None
    """Tells the other workers of a torchrun where the server is. Rank 0 calls it once its own model defines
    the run, so that the others start from rank 0's values."""

    @staticmethod
    def at(address: str) -> Run:
        """The run of a server that is running already."""
        env = os.environ
        return Run(
            address,
            env.get("PACELINE_TOKEN"),
            _number(env, "PACELINE_WORKER") if "PACELINE_WORKER" in env else _number(env, "RANK"),
            _name(),
        )


def find_run() -> Run:
    """The run that this process belongs to.

    ``PACELINE_SERVER`` names a server. Under torchrun, rank 0 starts one, and the others wait until it has
    offered its model (:attr:`Run.announce`). Under plain ``python`` the run has one worker.
    ``PACELINE_RESUME`` names the run that a new server resumes.
    """
    env = os.environ
    if address := env.get("PACELINE_SERVER"):
        return Run.at(address)
    rank, workers = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    if rank is None or workers is None:
        address = _start_server(1, "127.0.0.1:0", None)
        return Run(address, wish=0, name=_name())
    return _under_torchrun(rank, workers)


def _under_torchrun(rank: int, workers: int) -> Run:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    env = os.environ
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise PacelineError(
            "RANK and WORLD_SIZE are set, but not MASTER_ADDR and MASTER_PORT: start the script with "
            "torchrun, or name a server in PACELINE_SERVER"
        )
    host, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    hosted = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    global _store, _sessions
    if _store is None:
        _store = TCPStore(host, port, is_master=rank == 0 and not hosted, wait_for_workers=False)
    store = _store
    run = env.get("TORCHELASTIC_RUN_ID", "") + "/" + env.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"paceline/{run}/{_sessions}"
    _sessions += 1
    if rank == 0:
        local = _number(env, "LOCAL_WORLD_SIZE") in (None, workers)
        token = None if local else secrets.token_urlsafe(24)
        bind = "127.0.0.1:0" if local else "0.0.0.0:0"
        address = _start_server(workers, bind, token)
        if not local:
            address = f"{host}:{address.rpartition(':')[2]}"
        return Run(
            address, token, rank, _name(), lambda: store.set(key, f"{address} {token or ''}")
        )
    address, _, token = _heard(store, key).partition(" ")
    return Run(address, token or None, rank, _name())


def _heard(store: Any, key: str) -> str:
    """What rank 0 tells the other ranks. Before it does, it may load data and a model for long."""
    quiet_until = time.monotonic() + _QUIET
    while not store.check([key]):
        if time.monotonic() >= quiet_until:
            log.warning("waiting for rank 0 to call session.loader() or backward(), which defines the run")
            quiet_until = float("inf")
        time.sleep(_LOOK)
    told: bytes = store.get(key)
    return told.decode()


def _start_server(workers: int, bind: str, token: str | None) -> str:
    """Starts a server in a session of its own, so that it outlives this process; returns its address."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-"))
    file, errors = folder / "address", folder / "server.log"
    command = [
        sys.executable, "-m", "paceline", "server", "--model", "offered", "--workers", str(workers),
        "--bind", bind, "--address-file", str(file),
    ]  # fmt: skip
    if run := os.environ.get("PACELINE_RESUME"):
        command += ["--resume", run]
    other_runs = ("PACELINE_WORKERS", "PACELINE_BIND", "PACELINE_TOKEN")
    env = {name: value for name, value in os.environ.items() if name not in other_runs}
    if token is not None:
        env["PACELINE_TOKEN"] = token
    with errors.open("wb") as output:
        server = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _START_PATIENCE
    while not file.exists():
        if server.poll() is not None:
            said = errors.read_text(errors="replace").strip().splitlines()
            raise PacelineError(f"the server did not start: {said[-1] if said else 'it printed nothing'}")
        if time.monotonic() > deadline:
            server.terminate()
            raise PacelineError(f"the server did not start within {_START_PATIENCE:.0f} s ({errors})")
        time.sleep(0.01)
    # It outlives this process, on purpose: without this Python warns that it is still running.
    server.returncode = 0
    return file.read_text().split()[0]


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise PacelineError(f"{name} is `{text}`, which is not a number") from None


def _name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
