"""The recorder, around plain loops and real DDP."""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from paceline import recorder


def rows(path: Path) -> list[tuple[int, str, float]]:
    lines = path.read_text().splitlines()
    assert lines[1] == "iteration,worker,seconds"
    fields = [line.split(",") for line in lines[2:]]
    return [(int(iteration), worker, float(seconds)) for iteration, worker, seconds in fields]


def waits(path: Path) -> str:
    return path.read_text().splitlines()[0]


def seconds(path: Path) -> list[float]:
    return [row[2] for row in rows(path)]


APART = ["ddp", "comm-hook", "compiled", "buffers", "accumulate"]
TOGETHER = ["no-ddp", "compiled-buffers", "fsdp"]


@pytest.fixture(scope="module")
def ddp(tmp_path_factory, ranks):
    """The folder with the recordings of two ranks, one of them slow, and what rank 0 printed."""
    folder = tmp_path_factory.mktemp("ddp")
    printed = ranks("ddp_loop.py", str(folder), "unrecorded", *APART, *TOGETHER)
    lines = (line.split(" ", 1) for line in printed[0].splitlines())
    return folder, dict(lines)


@pytest.mark.parametrize("mode", APART)
def test_ddp_run_times_leave_out_the_wait_for_the_slow_rank(ddp, mode):
    folder = ddp[0] / mode
    slow, fast = ("rank-0.csv", "rank-1.csv") if mode == "buffers" else ("rank-1.csv", "rank-0.csv")
    assert {waits(folder / name) for name in (slow, fast)} == {"# waits: excluded"}
    assert [row[:2] for row in rows(folder / "rank-1.csv")] == [(i, "1") for i in range(10)]
    # Every step of the slow rank sleeps 50 ms or, with two micro-batches, 100 ms; the other one only
    # computes a tiny network.
    assert min(seconds(folder / slow)) > (0.099 if mode == "accumulate" else 0.049)
    assert statistics.median(seconds(folder / fast)) < 0.025


@pytest.mark.parametrize("mode", TOGETHER)
def test_waits_that_cannot_be_told_apart_are_declared(ddp, mode):
    folder = ddp[0] / mode
    assert {waits(path) for path in folder.iterdir()} == {"# waits: included"}
    assert paceline.analyze(folder).waits_included


def test_recording_changes_no_parameter(ddp):
    assert ddp[1]["ddp"] == ddp[1]["unrecorded"]


def test_a_restart_by_torchrun_appends(tmp_path, monkeypatch):
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        with paceline.record(tmp_path) as recording:
            for _ in range(3):
                recording.step()
    assert [row[0] for row in rows(tmp_path / "rank-0.csv")] == [0, 1, 10**9, 10**9 + 1]
    assert paceline.analyze(tmp_path).rounds == 4


def test_steps_are_marked_by_hand_without_torch(tmp_path):
    with paceline.record(tmp_path / "trace", rank=3, world_size=4) as recording:
        for _ in range(5):
            recording.step()
    path = tmp_path / "trace" / "rank-3.csv"
    assert [row[:2] for row in rows(path)] == [(i, "3") for i in range(4)]
    assert waits(path) == "# waits: included"
    recording.step()
    assert len(rows(path)) == 4


def test_steps_of_the_first_optimizer_are_followed(tmp_path):
    import torch

    first, second = (torch.optim.SGD([torch.zeros(1, requires_grad=True)]) for _ in range(2))
    with paceline.record(tmp_path):
        for _ in range(4):
            first.step()
            second.step()
    first.step()
    assert [row[0] for row in rows(tmp_path / "rank-0.csv")] == [0, 1, 2]
    assert waits(tmp_path / "rank-0.csv") == "# waits: excluded"


def test_a_new_recording_replaces_the_old_one(tmp_path):
    for size in (3, 1):
        for rank in range(size):
            with paceline.record(tmp_path, rank=rank, world_size=size) as recording:
                recording.step()
                recording.step()
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.csv"]
    assert len(rows(tmp_path / "rank-0.csv")) == 1


def test_a_killed_process_leaves_its_steps(tmp_path):
    script = (
        "import os, sys, paceline\n"
        "recording = paceline.record(sys.argv[1])\n"
        "for _ in range(6): recording.step()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert process.returncode == -9
    assert len(rows(tmp_path / "rank-0.csv")) == 5


def test_a_full_disk_ends_the_recording_and_not_the_training(tmp_path):
    with paceline.record(tmp_path) as recording:
        recording.step()
        recording.step()
        os.dup2(os.open("/dev/full", os.O_WRONLY), recording._file)
        with pytest.warns(UserWarning, match="paceline.record stopped"):
            recording.step()
        recording.step()
    assert len(rows(tmp_path / "rank-0.csv")) == 1


def test_a_rank_beyond_the_world_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rank 4 is not below the world size 4"):
        paceline.record(tmp_path, rank=4, world_size=4)


def test_a_step_costs_microseconds():
    # The bound is far above the cost, since other processes share this machine.
    assert recorder.cost(2000) < 200


def test_the_package_says_its_version():
    assert paceline.__version__ == importlib.metadata.version("paceline")


def test_import_does_nothing():
    script = (
        "import sys, paceline\n"
        "heavy = {'torch', 'numpy', 'paceline._native', 'logging'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'record' in dir(paceline)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
