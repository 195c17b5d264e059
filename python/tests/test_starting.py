"""The ways to start a script: torchrun and plain python. Both start a server, which ends with the run.

``paceline train --command`` has its tests beside the command line.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
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
    told = [line.partition("outcome ")[2] for line in done.stdout.splitlines()]
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
