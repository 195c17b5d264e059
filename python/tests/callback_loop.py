"""One rank of a training with a callback, for the tests. Usage: callback_loop.py FRAMEWORK FOLDER."""

import os
import sys
import tempfile
import time

import torch

STEPS = 8
SLOW_SECONDS = 0.05


def slow_down() -> None:
    if os.environ.get("RANK") == "1":
        time.sleep(SLOW_SECONDS)


def lightning(package: str, folder: str) -> None:
    if package == "lightning":
        import lightning.pytorch as pl
    else:
        import pytorch_lightning as pl
    from paceline.integrations.lightning import RecordCallback

    assert issubclass(RecordCallback, pl.Callback)

    class Network(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            slow_down()
            return self.layer(batch).square().mean()

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            self.layer(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    several = "RANK" in os.environ
    data = torch.ones(STEPS * (2 if several else 1), 4)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2 if several else 1,
        strategy="ddp" if several else "auto",
        callbacks=[RecordCallback(folder)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(data, batch_size=1)
    trainer.fit(Network(), loader, loader)


def huggingface(folder: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from paceline.integrations.huggingface import RecordCallback

    class SlowTrainer(Trainer):
        def compute_loss(self, *args, **kwargs):
            slow_down()
            return super().compute_loss(*args, **kwargs)

    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    tokens = torch.arange(8)
    data = [{"input_ids": tokens, "labels": tokens}] * 64
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out, max_steps=STEPS, per_device_train_batch_size=1, gradient_accumulation_steps=2,
            use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            ddp_backend="gloo" if "RANK" in os.environ else None,
        )  # fmt: skip
        callbacks = [RecordCallback(folder)]
        SlowTrainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=callbacks).train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    framework, folder = sys.argv[1:]
    huggingface(folder) if framework == "huggingface" else lightning(framework, folder)
    if torch.distributed.is_initialized():
        # A process group that lives until the interpreter ends may abort the process.
        torch.distributed.destroy_process_group()
