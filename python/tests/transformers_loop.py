"""A loop in the style of Hugging Face, converted from DDP by the guide: parameter groups, warm-up, gradient
accumulation and clipping. Usage: transformers_loop.py EPOCHS no_sync|micro_batches."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any

import paceline
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BatchEncoding, BertConfig, BertForSequenceClassification, default_data_collator

total, accumulation = int(sys.argv[1]), sys.argv[2]
PARTS = 2
WARMUP = 5


class Texts(Dataset):  # type: ignore[type-arg]
    """Random tokens; the label says whether the first is above the middle."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(5, 15, (count, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens[0] > 9).long()}


def collate(samples: Any) -> BatchEncoding:
    """Batches as tokenizers and their collators make them."""
    return BatchEncoding(default_data_collator(samples))


torch.manual_seed(0)
torch.set_num_threads(1)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=8,
    )
)  # fmt: skip
decayed = [param for param in model.parameters() if param.dim() > 1]
others = [param for param in model.parameters() if param.dim() <= 1]
groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=5e-3)
epoch = 0


def rate(step: int) -> float:
    return min(1.0, (step + 1) / WARMUP) * (1 - epoch / total)


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
parts = PARTS if accumulation == "micro_batches" else 1
session = paceline.init(model, optimizer, scheduler, epochs=total, accumulate=PARTS // parts)
loader = session.loader(Texts(256), batch_size=8 * parts, collate_fn=collate)


def step() -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


losses: list[float] = []
for epoch in session.epochs(total):
    for at, batch in enumerate(loader, 1):
        if accumulation == "micro_batches":
            for part in session.micro_batches(batch, PARTS):
                loss = model(**part).loss
                session.backward(loss / PARTS)
            step()
        else:
            last = at % PARTS == 0
            with nullcontext() if last else session.no_sync():
                loss = model(**batch).loss
                (loss / PARTS).backward()
            if last:
                step()
        losses.append(loss.item())
outcome = {
    "worker": session.number,
    "first": sum(losses[:5]) / len(losses[:5]),
    "last": sum(losses[-5:]) / len(losses[-5:]),
    "rate": optimizer.param_groups[0]["lr"],
    "parameters": [param.double().sum().item() for param in model.parameters()],
}
session.close()
# One write: torchrun starts Python unbuffered, and ranks share a pipe.
print(f"outcome {json.dumps(outcome)}\n", end="", flush=True)
