"""A training script for a small ResNet on images, converted from DDP by the guide: BatchNorm, momentum, a cosine
schedule per epoch, evaluation and checkpoints of its own. Usage: resnet_loop.py EPOCHS."""

from __future__ import annotations

import json
import os
import sys

import paceline
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CHECKPOINT = "resnet.pt"


class Images(Dataset):  # type: ignore[type-arg]
    """Noisy images of ten classes, flipped at random for training."""

    def __init__(self, count: int, train: bool) -> None:
        centres = torch.randn(10, 3, 12, 12, generator=torch.Generator().manual_seed(1))
        generator = torch.Generator().manual_seed(int(train))
        self.labels = torch.randint(10, (count,), generator=generator)
        self.images = centres[self.labels] + torch.randn(count, 3, 12, 12, generator=generator)
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        return (image.flip(-1) if self.train and torch.rand(()) < 0.5 else image), self.labels[index]


class Block(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=2, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.path(x) + self.shortcut(x))


def resnet() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(stem, Block(8, 16), Block(16, 32), pool, nn.Linear(32, 10))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:  # type: ignore[type-arg]
    model.eval()
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return correct / len(loader.dataset)  # type: ignore[arg-type]


epochs = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
model = resnet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
start = 0
if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    start = saved["epoch"] + 1  # `epoch` counts from here
session = paceline.init(model, optimizer, scheduler, epochs=epochs - start, seed=start)
loader = session.loader(Images(256, train=True), batch_size=16, num_workers=1)
test_loader = DataLoader(Images(128, train=False), batch_size=64)
accuracy = 0.0
for epoch in session.epochs(epochs - start):
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
        optimizer.step()
    scheduler.step()
    if session.number == 0:
        accuracy = evaluate(model, test_loader)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        saved = {name: each.state_dict() for name, each in state.items()}  # type: ignore[attr-defined]
        torch.save({**saved, "epoch": start + epoch}, CHECKPOINT)
outcome = {
    "worker": session.number,
    "start": start,
    "accuracy": accuracy,
    "rate": optimizer.param_groups[0]["lr"],
    "state": [value.double().sum().item() for value in model.state_dict().values() if value.is_floating_point()],
}
session.close()
# One write: torchrun starts Python unbuffered, and ranks share a pipe.
print(f"outcome {json.dumps(outcome)}\n", end="", flush=True)
