"""A small CNN on digits under DDP; `mnist_cnn.py` is the same with Paceline.

    torchrun --nproc-per-node 4 examples/pytorch/mnist_cnn_ddp.py [--data FOLDER_WITH_MNIST]
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from data import digits
from networks import CNN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the IDX files of MNIST; drawn digits by default")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(CNN())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dataset = digits(args.data, train=True)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            correct = accuracy(model, args.data)
            print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {correct:.2%}")
    dist.destroy_process_group()


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: str | None) -> float:
    images, labels = digits(data, train=False).tensors
    return (model(images).argmax(dim=1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
