"""Processes for the tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from workers import Server

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def ranks() -> Callable[..., list[str]]:
    """Runs a script of this folder as ranks of a process group on loopback; returns what they print."""

    def run(script: str, *words: str, world_size: int = 2, **environment: str) -> list[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        processes = []
        for rank in range(world_size):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": "test",
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, str(HERE / script), *words]
            variables = {**os.environ, **place, **environment}
            processes.append(
                subprocess.Popen(
                    command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
        try:
            outputs = [process.communicate(timeout=120) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, (_, errors) in zip(processes, outputs):
            assert process.returncode == 0, errors
        return [out for out, _ in outputs]

    return run


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that wait for the model of their workers: ``serve(workers, policy="full")``."""
    import torch
    from workers import Server

    torch.set_num_threads(1)
    servers: list[Server] = []

    def start(workers: int, *, resume: Server | None = None, **settings: object) -> Server:
        if resume is not None:
            resume.process.wait(timeout=60)
            folder = resume.folder.parent
        else:
            folder = tmp_path / str(len(servers))
            folder.mkdir()
        servers.append(Server(folder, workers, settings, resume=resume is not None))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
