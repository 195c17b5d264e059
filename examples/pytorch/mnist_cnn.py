"""A small CNN on digits with Paceline; `mnist_cnn_ddp.py` is the same under DDP.

    torchrun --nproc-per-node 4 examples/pytorch/mnist_cnn.py [--data FOLDER_WITH_MNIST]
"""

import argparse

import paceline
import torch
import torch.nn.functional as F

from data import digits
from networks import CNN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the IDX files of MNIST; drawn digits by default")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = CNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = paceline.init(model, optimizer, epochs=args.epochs)
    dataset = digits(args.data, train=True)
    loader = session.loader(dataset, batch_size=32)

    for epoch in range(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if session.number == 0:
            correct = accuracy(model, args.data)
            print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {correct:.2%}")


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: str | None) -> float:
    images, labels = digits(data, train=False).tensors
    return (model(images).argmax(dim=1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
