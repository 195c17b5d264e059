"""The examples run to their end as users start them, on small data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"
OTHER_RUNS = ("PACELINE_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_")
WITHOUT_TORCH = 'import sys; sys.modules["torch"] = None\n'


def lines_of(folder: Path, example: str, *words: str, **environment: str) -> list[str]:
    """What an example prints, run in a folder of its own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(OTHER_RUNS)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *words],
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def number_in(pattern: str, line: str) -> float:
    found = re.fullmatch(pattern, line)
    assert found is not None, line
    return float(found[1])


def test_numpy_only_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    no_torch = subprocess.run(
        [sys.executable, "-c", "import torch"], env={**os.environ, "PYTHONPATH": paths}, capture_output=True
    )
    assert no_torch.returncode != 0, "torch can be imported"
    *_, last = lines_of(tmp_path, "numpy_only.py", PYTHONPATH=paths)
    assert number_in(r"accuracy (\S+) after \d+ rounds", last) > 0.9


def test_mnist_cnn_learns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in [("train", 1024), ("t10k", 64)]:
        labels = random.integers(10, size=count).astype(np.uint8)
        images = random.integers(64, size=(count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels):
            image[2 * label + 4 : 2 * label + 8] += 128  # a bar, whose height is the digit
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", labels)
    *_, last = lines_of(tmp_path, "pytorch/mnist_cnn.py", "--epochs", "2", "--data", str(tmp_path))
    assert number_in(r"epoch 1: loss \S+, test accuracy (\S+)%", last) > 20.0


def write_idx(path: Path, array: np.ndarray) -> None:
    sizes = np.array(array.shape, ">i4").tobytes()
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def test_gpt_shakespeare_learns(tmp_path: Path) -> None:
    text = tmp_path / "input.txt"
    text.write_text("to be, or not to be: that is the question\n" * 80)
    words = ("--epochs", "2", "--length", "16", "--data", str(text))
    lines = lines_of(tmp_path, "pytorch/gpt_shakespeare.py", *words)
    (at,) = [at for at, line in enumerate(lines) if line.startswith("test loss")]
    assert number_in(r"test loss (\S+)", lines[at]) < 2.5
    assert len("\n".join(lines[at + 1 :])) == 201, "a sample of 200 characters after the first"
