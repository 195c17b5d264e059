"""Ordinary DDP scripts, converted by the guide alone, train under torchrun and under ``paceline train``."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_starting import TORCHRUN, start
from workers import HERE


def train(folder: Path, words: tuple[str, ...], script: str) -> list[dict[str, Any]]:
    """Two workers of ``paceline train --command``; what they print is in the run folder."""
    command = f"{sys.executable} {HERE / script} {' '.join(words)}"
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "train", "--command", command, "--workers", "2", "--name", "run"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    logs = [folder / "runs" / "run" / "workers" / f"w{worker}.log" for worker in range(2)]
    assert done.returncode == 0, done.stderr + "".join(log.read_text() for log in logs)
    lines = [line for log in logs for line in log.read_text().splitlines()]
    return [json.loads(line.removeprefix("outcome ")) for line in lines if line.startswith("outcome ")]


def test_a_resnet_trains_and_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    first, second = train(tmp_path, ("3",), "resnet_loop.py")
    assert first["start"] == 0 and first["accuracy"] > 0.3
    assert first["rate"] == second["rate"] == pytest.approx(0.0)
    # After its last epoch a worker evaluates what all have, BatchNorm's statistics included.
    assert first["state"] == second["state"]
    (again,) = start(tmp_path, script="resnet_loop.py", words=("4",))
    assert again["start"] == 3 and again["accuracy"] > 0.3


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers")
@pytest.mark.parametrize("accumulation", ["no_sync", "micro_batches"])
def test_a_loop_in_the_style_of_hugging_face_trains(tmp_path: Path, accumulation: str) -> None:
    words = ("4", accumulation)
    first, second = start(tmp_path, *TORCHRUN, script="transformers_loop.py", words=words)
    assert first["parameters"] == second["parameters"]
    assert first["rate"] == second["rate"] == pytest.approx(5e-3 / 4)
    assert min(first["last"], second["last"]) < first["first"]
