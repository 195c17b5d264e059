"""Runs that stop and go on from their last checkpoint: samples, parameters and schedulers are as if they had
not stopped."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paceline
import pytest
import torch
from ledger import used_samples
from torch import Tensor, nn
from workers import HERE, Server, assert_identical, data, mlp, seeded, values, wait_until

SAMPLES, BATCH = 96, 4
ROUNDS = SAMPLES // BATCH
"""Rounds of an epoch with one worker."""


class Runs:
    """Runs by ``paceline train --command`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, mode: str, epochs: int, *flags: str, pace: float = 0.0) -> subprocess.Popen[str]:
        words = [mode, str(epochs), str(SAMPLES), str(pace)]
        loop = shlex.join([sys.executable, str(HERE / "resume_loop.py"), *words])
        command = [
            sys.executable, "-m", "paceline", "train", "--run-dir", str(self.folder),
            "--shards", "1", "--command", loop, *flags,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        self.processes.append(process)
        return process

    def finish(self, *words: Any, pace: float = 0.0) -> None:
        process = self.start(*words, pace=pace)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors

    def rounds(self, run: str) -> int:
        """The round that was closed last."""
        log = self.folder / run / "events.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        closed = [line for line in lines if '"event":"closed"' in line]
        return 1 + json.loads(closed[-1])["round"] if closed else 0

    def outcomes(self, run: str, workers: int) -> list[dict[str, Any]]:
        logs = [self.folder / run / "workers" / f"w{number}.log" for number in range(workers)]
        return [json.loads(log.read_text().splitlines()[-1]) for log in logs]

    def summary(self, run: str) -> Any:
        return json.loads((self.folder / run / "summary.json").read_text())

    def checkpoints(self, run: str) -> list[int]:
        found = (self.folder / run / "checkpoints").glob("round-????????")
        return sorted(int(path.name.removeprefix("round-")) for path in found)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    started = Runs(tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("mode", ["mean", "server"])
def test_a_killed_run_goes_on_inside_its_epoch_with_other_workers(runs: Runs, mode: str) -> None:
    epochs = 3
    flags = ["--checkpoint-every", "4"]
    killed = runs.start(mode, epochs, "--name", "run", "--workers", "2", *flags, pace=0.03)
    # Two workers make half as many rounds: this is in the middle of the second epoch.
    wait_until(lambda: runs.rounds("run") >= ROUNDS * 3 // 4 + 1)
    killed.kill()
    killed.communicate()
    saved = runs.checkpoints("run")[-1]
    assert ROUNDS // 2 < saved < ROUNDS

    runs.finish(mode, epochs, "--resume", "run", "--workers", "3")
    used = used_samples(runs.folder / "run")
    assert {epoch: sorted(at) for epoch, at in used.items()} == {
        epoch: list(range(SAMPLES)) for epoch in range(epochs)
    }
    summary = runs.summary("run")
    assert summary["ledger"]["epochs"] == epochs and summary["ledger"]["balanced"]
    assert summary["samples"]["used"] == epochs * SAMPLES
    assert summary["rounds"] == summary["version"] - saved
    outcomes = runs.outcomes("run", 3)
    assert all(outcome["state"] == outcomes[0]["state"] for outcome in outcomes)
    rate = 0.05 * 0.5**epochs * 0.9 ** (summary["version"] // 10)
    for outcome in outcomes:
        assert outcome["epochs"] == [1, 2]
        assert outcome["rate"] == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("mode", ["mean", "server"])
def test_an_interrupted_run_ends_with_the_bits_of_one_that_was_not(runs: Runs, mode: str) -> None:
    epochs = 2
    flags = ["--workers", "1", "--policy", "full"]
    runs.finish(mode, epochs, "--name", "whole", *flags)
    stopped = runs.start(mode, epochs, "--name", "run", *flags, pace=0.03)
    wait_until(lambda: runs.rounds("run") >= ROUNDS + 5)
    stopped.send_signal(signal.SIGINT)
    _, errors = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, errors
    assert runs.checkpoints("run")[-1] == runs.summary("run")["version"] == runs.rounds("run")
    runs.finish(mode, epochs, "--resume", "run", *flags)
    (whole,), (resumed,) = runs.outcomes("whole", 1), runs.outcomes("run", 1)
    assert (resumed["state"], resumed["rate"]) == (whole["state"], whole["rate"])


def train(
    server: Server, mode: str, epochs: int, make: Callable[[], nn.Module] = mlp, **settings: Any
) -> tuple[list[Tensor], float, list[int]]:
    """Trains one worker; returns its parameters, its learning rate and the epochs of its loop."""
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    session = paceline.init(
        model, optimizer, scheduler, server=server.address, mode=mode, epochs=epochs, **settings
    )
    loader = session.loader(data(SAMPLES), batch_size=BATCH)
    seen = []
    try:
        for epoch in session.epochs(epochs):
            seen.append(epoch)
            for _, x, y in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            scheduler.step()
    except paceline.RunEnded:
        pass
    session.close()
    return values(model), optimizer.param_groups[0]["lr"], seen


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["mean", "server"])
def test_a_finished_run_gets_more_epochs_and_first_ends_the_last_one(serve: Any, mode: str) -> None:
    whole = train(serve(1, policy="full"), mode, 3)
    first = serve(1, policy="full")
    _, rate, seen = train(first, mode, 1)
    assert (rate, seen) == (0.005, [0])
    then = serve(1, resume=first)
    resumed = train(then, mode, 3)
    # No sample of the first epoch is left; its scheduler steps once more, as that of the first process did.
    assert resumed[2] == [0, 1, 2]
    assert resumed[1] == whole[1] == 0.01 * 0.5**3
    assert_identical([resumed[0], whole[0]])
    assert {epoch: len(at) for epoch, at in used_samples(then.folder).items()} == {
        epoch: SAMPLES for epoch in range(3)
    }


@pytest.mark.parametrize("mode", ["mean", "server"])
@pytest.mark.parametrize("rounds", [ROUNDS, ROUNDS + 7])
def test_a_run_stopped_between_or_inside_epochs_keeps_its_schedulers(
    serve: Any, mode: str, rounds: int
) -> None:
    whole = train(serve(1, policy="full"), mode, 2)
    first = serve(1, policy="full", rounds=rounds)
    train(first, mode, 2)
    resumed = train(serve(1, resume=first, epochs=2), mode, 2)
    assert resumed[1] == whole[1]
    assert_identical([resumed[0], whole[0]])


def test_a_stream_goes_on_with_its_rounds(serve: Any) -> None:
    first = serve(1, policy="full", rounds=9)

    def stream(server: Server) -> tuple[list[Tensor], int]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        session = paceline.init(model, optimizer, server=server.address, batch_size=BATCH)
        _, x, y = data(BATCH).tensors
        rounds = []
        with pytest.raises(paceline.RunEnded):
            while True:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                rounds.append(session.round)
        session.close()
        return values(model), rounds[0]

    stream(first)
    resumed = stream(serve(1, resume=first, rounds=20))
    whole = stream(serve(1, policy="full", rounds=20))
    assert (resumed[1], whole[1]) == (10, 1)
    assert_identical([resumed[0], whole[0]])


def test_a_run_is_not_resumed_by_another_script_or_beyond_its_end(serve: Any) -> None:
    first = serve(1, policy="full")
    train(first, "mean", 1)
    then = serve(1, resume=first)

    def refused(error: str, **changes: Any) -> None:
        arguments = {"mode": "mean", "epochs": 2, **changes}
        with pytest.raises(paceline.PacelineError, match=error):
            train(then, **arguments)

    wide = lambda: seeded(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1)))  # noqa: E731
    refused(r"tensor `2.weight` has shape \[1, 9\] here and \[1, 8\] in the run", make=wide)
    refused("the seed is 7 here and 0 in the run", seed=7)
    refused("the update is mode server .* here and mode mean in the run", mode="server")
    refused("the run run is finished: 1 epochs are done; to go on, give a larger --epochs", epochs=1)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = paceline.init(model, optimizer, server=then.address, epochs=2)
    other = "the optimizer is SGD here and Adam in the run"
    with pytest.raises(paceline.PacelineError, match=other):
        session.loader(data(SAMPLES), batch_size=BATCH)
    session.close()


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(serve: Any) -> None:
    first = serve(1, policy="full", checkpoint_every=10)
    train(first, "mean", 1)
    first.process.wait(timeout=60)
    checkpoints = first.folder / "checkpoints"
    newest = checkpoints / f"round-{ROUNDS:08}" / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    then = serve(1, resume=first, checkpoint_every=10)
    _, rate, seen = train(then, "mean", 1)
    assert (rate, seen) == (0.005, [0])
    assert sorted(used_samples(then.folder)[0]) == list(range(SAMPLES))


def test_ranks_go_on_with_a_run_that_is_named_in_the_environment(
    ranks: Callable[..., list[str]], tmp_path: Path
) -> None:
    place = {"PACELINE_RUN_DIR": str(tmp_path)}
    ranks("resume_loop.py", "mean", "1", str(SAMPLES), "0", PACELINE_NAME="run", **place)
    wait_until((tmp_path / "run" / "summary.json").exists)
    outcomes = ranks("resume_loop.py", "mean", "2", str(SAMPLES), "0", PACELINE_RESUME="run", **place)
    assert [json.loads(outcome)["epochs"] for outcome in outcomes] == [[0, 1], [0, 1]]
    used = used_samples(tmp_path / "run")
    assert {epoch: sorted(at) for epoch, at in used.items()} == {
        epoch: list(range(SAMPLES)) for epoch in range(2)
    }
