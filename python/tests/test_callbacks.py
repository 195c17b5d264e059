"""The callbacks, in the real packages."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORKS = {
    "lightning": "lightning",
    "pytorch_lightning": "pytorch_lightning",
    "huggingface": "transformers",
}

pytestmark = pytest.mark.parametrize("framework", FRAMEWORKS)


@pytest.fixture(autouse=True)
def _installed(framework: str) -> None:
    pytest.importorskip(FRAMEWORKS[framework])


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def seconds(path: Path) -> list[float]:
    return [float(line.split(",")[2]) for line in lines(path)[2:]]


def test_one_process_records_every_optimizer_step_but_the_first(framework, tmp_path):
    script = Path(__file__).with_name("callback_loop.py")
    subprocess.run([sys.executable, str(script), framework, str(tmp_path)], check=True, timeout=240)
    assert lines(tmp_path / "rank-0.csv")[0] == "# waits: excluded"
    assert len(seconds(tmp_path / "rank-0.csv")) == 7


def test_ranks_record_without_the_wait_for_the_slow_one(framework, tmp_path, ranks):
    ranks("callback_loop.py", framework, str(tmp_path))
    fast, slow = (seconds(tmp_path / f"rank-{rank}.csv") for rank in (0, 1))
    assert lines(tmp_path / "rank-0.csv")[0] == "# waits: excluded"
    assert len(fast) == len(slow) == 6
    assert min(slow) > 0.049
    assert statistics.median(fast) < 0.025
