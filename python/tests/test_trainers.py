"""Lightning and Accelerate train through a session, and leave the loader's samples to the run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import paceline
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from ledger import used_samples
from workers import data, mlp, spawn


def loader_of(server: Any, batch_size: int = 4) -> tuple[paceline.Session, Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=server.address, policy="full", epochs=1)
    return session, session.loader(data(), batch_size=batch_size)


def test_accelerate_trains_through_a_session(serve: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=serve(1).address, policy="full", epochs=1)
    loader = session.loader(data(), batch_size=4)
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, loader_again = accelerator.prepare(model, loader)
    assert loader_again is loader
    seen: list[int] = []
    for index, x, y in loader_again:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(prepared(x), y))
        optimizer.step()
        seen += index.tolist()
    session.close()
    assert sorted(seen) == list(range(48))


@pytest.fixture
def one_of_two_processes() -> Iterator[Any]:
    """An accelerator that takes itself for the first of two processes."""
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, PartialState

    accelerator = accelerate.Accelerator(cpu=True)
    for state in (AcceleratorState, PartialState):
        state._shared_state["num_processes"] = 2
    yield accelerator
    AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate_leaves_the_samples_of_a_session_alone(
    serve: Any, one_of_two_processes: Any
) -> None:
    session, loader = loader_of(serve(1))
    plain = DataLoader(data(), batch_size=4)
    sharded, kept = one_of_two_processes.prepare(plain, loader)
    session.close()
    assert kept is loader
    assert len(sharded) == len(plain) // 2, "a plain loader is split between processes"


def test_lightning_trains_through_a_session(serve: Any) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = mlp()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.seen: list[int] = []

        def configure_optimizers(self) -> Any:
            return self.optimizer

        def training_step(self, batch: Any, _: int) -> Any:
            index, x, y = batch
            self.seen += index.tolist()
            return nn.functional.mse_loss(self.model(x), y)

    module = Module()
    session = paceline.init(
        module.model, module.optimizer, server=serve(1).address, policy="full", epochs=2
    )
    loader = session.loader(data(), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    session.close()
    assert sorted(module.seen) == sorted(list(range(48)) * 2)
    assert session.last is not None and session.last.used


def test_lightning_leaves_the_samples_of_a_session_alone(serve: Any) -> None:
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.trainer.states import RunningStage

    session, loader = loader_of(serve(1))
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False)
    prepare = trainer._data_connector._prepare_dataloader
    found = prepare(DataLoader(data(), batch_size=4), shuffle=True, mode=RunningStage.TRAINING)
    kept = prepare(loader, shuffle=True, mode=RunningStage.TRAINING)
    session.close()
    assert kept is loader
    assert isinstance(found.sampler, DistributedSampler), "a plain loader gets another sampler"


def test_lightning_clips_gradients_before_the_step_is_recorded(serve: Any) -> None:
    lightning = pytest.importorskip("lightning")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    factors: list[float | None] = []

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            return optimizer

        def training_step(self, batch: Any, _: int) -> Any:
            return nn.functional.mse_loss(model(batch[1]), batch[2])

        def on_train_batch_end(self, *_: Any) -> None:
            (entry,) = session._replica.steps._entries
            factors.append(entry["factor"])

    session = paceline.init(model, optimizer, server=serve(1).address, policy="full", epochs=1)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1e-3,
    )  # fmt: skip
    trainer.fit(Module(), session.loader(data(), batch_size=4))
    session.close()
    # What the first change is compared with is kept from then on.
    assert len(factors) == 12
    assert all(factor is not None and factor < 0.1 for factor in factors[1:])


def lightning_workers(server: Any, epochs: int, paces: list[float]) -> list[dict[str, Any]]:
    """Processes that Lightning trains at these paces, in seconds per batch; returns what they saw."""
    words = [(server.address, str(epochs), str(pace)) for pace in paces]
    processes = [spawn("lightning_loop.py", *each) for each in words]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs):
        assert process.returncode == 0, errors
    lines = [out.splitlines()[-1].partition("outcome ")[2] for out, _ in outputs]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("paces", "misses"), [([0.01, 0.08], False), ([0.0, 0.5], True)], ids=["slow", "misses-epochs"]
)
def test_an_epoch_of_lightning_is_an_epoch_of_the_run(
    serve: Any, paces: list[float], misses: bool
) -> None:
    pytest.importorskip("lightning")
    server = serve(2, policy="static:1")
    fast, slow = lightning_workers(server, 3, paces)
    server.process.wait(timeout=60)
    used = used_samples(server.folder)
    assert {epoch: sorted(samples) for epoch, samples in used.items()} == {
        epoch: list(range(96)) for epoch in range(3)
    }
    epochs = ["0", "1", "2"]
    assert list(fast["batches"]) == epochs
    assert max(fast["batches"].values()) > fast["nominal"], "the fast worker goes beyond len(loader)"
    assert max(slow["batches"].values()) < slow["nominal"]
    assert misses or list(slow["batches"]) == epochs
    assert fast["validated"] == [0, 1, 2]
    assert fast["epoch"] == slow["epoch"] == 3
    assert fast["rate"] == slow["rate"] == 0.1 / 8
    assert {number: fast["rates"].get(number, rate) for number, rate in slow["rates"].items()} == slow["rates"]
    assert fast["parameters"] == slow["parameters"]


def test_lightning_goes_on_with_the_epoch_of_the_run(serve: Any) -> None:
    lightning = pytest.importorskip("lightning")
    from paceline.integrations.lightning import LedgerCallback

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    epochs: list[int] = []

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def configure_optimizers(self) -> Any:
            return [optimizer], [scheduler]

        def training_step(self, batch: Any, _: int) -> Any:
            epochs.append(self.current_epoch)
            return nn.functional.mse_loss(model(batch[1]), batch[2])

    session = paceline.init(
        model, optimizer, scheduler, server=serve(1).address, policy="full", epochs=3
    )
    loader = session.loader(data(), batch_size=4, num_workers=1)
    for _, x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    scheduler.step()
    trainer = lightning.Trainer(
        max_epochs=9, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[LedgerCallback(loader)],
    )  # fmt: skip
    trainer.fit(Module(), loader)
    session.close()
    assert epochs == [1] * 12 + [2] * 12
    assert trainer.current_epoch == 3
    assert optimizer.param_groups[0]["lr"] == 0.1 / 8


def test_a_loop_that_takes_the_nominal_length_for_an_epoch_is_told(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = paceline.init(model, optimizer, server=serve(1).address, policy="full", epochs=1)
    loader = session.loader(data(), batch_size=4)
    session._membership.workers = 2  # as if another worker were slow
    with caplog.at_level(logging.WARNING, "paceline"):
        for _ in range(2):
            for _, (_, x, y) in zip(range(len(loader)), loader):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
    session.close()
    assert "len() is nominal" in caplog.text
