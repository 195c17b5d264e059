"""The networks, data sets and optimizers that every system trains."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from data import characters, digits
from networks import CNN, GPT

# Characters that a GPT looks at.
LENGTH = 64
SHORT_LENGTH = 32

# Samples that the loss is taken over after a run: images, or texts of many characters each.
IMAGES, TEXTS = 2048, 128


@dataclass
class Workload:
    """A network to train, and the samples to train and to evaluate it on."""

    model: nn.Module
    train: Dataset
    test: tuple[Tensor, Tensor]
    optimizer: Callable[[float], torch.optim.Optimizer]

    @staticmethod
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy, over samples and places."""
        logits = model(x)
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())

    @torch.no_grad()
    def test_loss(self) -> float:
        self.model.eval()
        return self.loss(self.model, *self.test).item()


def workload(name: str, data: str, samples: int | None) -> Workload:
    """The workload of this name with the first `samples` of its data; `data` has the real sets."""
    mnist, shakespeare = Path(data) / "mnist", Path(data) / "tinyshakespeare/input.txt"
    if name == "linear":
        # 1,000 parameters: all that a step takes is overhead.
        model = nn.Linear(99, 10)
        x, y = torch.randn(4096, 99), torch.randint(10, (4096,))
        train, test = TensorDataset(x, y), TensorDataset(x, y)
    elif name == "cnn":
        model = CNN()
        folder = str(mnist) if mnist.exists() else None
        train, test = digits(folder, train=True), digits(folder, train=False)
    else:
        size = name.removeprefix("gpt-")
        length = LENGTH if size == "0.8m" else SHORT_LENGTH
        train, test, alphabet = characters(str(shakespeare) if shakespeare.exists() else None, length)
        model = GPT(len(alphabet), length, size)
    if samples is not None:
        # Spread over the whole set: a text's beginning is not like its end.
        train = Subset(train, [at * len(train) // samples for at in range(samples)])
    evaluated = min(IMAGES if name == "cnn" else TEXTS, len(test))
    x, y = default_collate([test[at] for at in range(evaluated)])

    def optimizer(lr: float) -> torch.optim.Optimizer:
        if name.startswith("gpt"):
            return torch.optim.AdamW(model.parameters(), lr=lr)
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    return Workload(model, train, (x, y), optimizer)
