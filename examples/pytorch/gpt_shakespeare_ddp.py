"""A small GPT on characters under DDP; `gpt_shakespeare.py` is the same with Paceline.

    torchrun --nproc-per-node 4 examples/pytorch/gpt_shakespeare_ddp.py [--data input.txt] [--size 10m]
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import Characters, characters
from networks import GPT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a text file; this project's documentation by default")
    parser.add_argument("--size", choices=GPT.SIZES, default="0.8m", help="number of parameters")
    parser.add_argument("--length", type=int, default=64, help="characters that the network looks at")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dataset, test, alphabet = characters(args.data, args.length)
    model = DistributedDataParallel(GPT(len(alphabet), args.length, args.size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    rank = dist.get_rank()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            if step % 20 == 0 and rank == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}")
    dist.destroy_process_group()
    model = model.module
    if rank == 0:
        print(f"test loss {evaluate(model, test):.3f}\n{sample(model, alphabet)}")


@torch.no_grad()
def evaluate(model: GPT, test: Characters) -> float:
    x, y = next(iter(DataLoader(test, batch_size=128)))
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()


def sample(model: GPT, alphabet: str) -> str:
    codes = model.continued(torch.tensor([[alphabet.index("\n")]]), 200)
    return "".join(alphabet[code] for code in codes[0])


if __name__ == "__main__":
    main()
