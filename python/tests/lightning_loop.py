"""One worker of a run that Lightning trains. Usage: lightning_loop.py ADDRESS EPOCHS PACE. It begins when it reads a
line, and prints what it saw at the end."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import lightning.pytorch as pl
import paceline
import torch
from paceline.integrations.lightning import LedgerCallback
from torch import nn
from torch.utils.data import DataLoader
from workers import data, mlp, values


class Module(pl.LightningModule):
    """Keeps what Lightning did, by epoch."""

    def __init__(self, pace: float) -> None:
        super().__init__()
        self.model = mlp()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.pace = pace
        self.rates: dict[int, float] = {}
        """The learning rate of every round."""
        self.batches: dict[int, int] = {}
        self.validated: list[int] = []

    def configure_optimizers(self) -> Any:
        return [self.optimizer], [{"scheduler": self.scheduler, "interval": "epoch"}]

    def training_step(self, batch: Any, index: int) -> Any:
        time.sleep(self.pace)
        self.rates[session.round] = self.optimizer.param_groups[0]["lr"]
        self.batches[self.current_epoch] = index + 1
        return nn.functional.mse_loss(self.model(batch[1]), batch[2])

    def validation_step(self, batch: Any, _: int) -> None:
        self.model(batch[1])

    def on_validation_epoch_end(self) -> None:
        self.validated.append(self.current_epoch)


address, epochs, pace = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
module = Module(pace)
print("ready", flush=True)
sys.stdin.readline()
session = paceline.init(
    module.model, module.optimizer, module.scheduler, server=address, epochs=epochs, policy="static:1"
)
loader = session.loader(data(96), batch_size=4)
trainer = pl.Trainer(
    max_epochs=epochs, accelerator="cpu", devices=1, callbacks=[LedgerCallback(loader)], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    num_sanity_val_steps=0,
)  # fmt: skip
trainer.fit(module, loader, DataLoader(data(8), batch_size=8))
outcome = {
    "rates": module.rates,
    "rate": module.optimizer.param_groups[0]["lr"],
    "nominal": len(loader),
    "batches": module.batches,
    "validated": module.validated,
    "epoch": trainer.current_epoch,
    "parameters": [value.tolist() for value in values(module.model)],
}
session.close()
print("outcome", json.dumps(outcome), flush=True)
