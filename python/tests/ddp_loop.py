"""One rank of DDP training loops, for the tests. Usage: ddp_loop.py FOLDER MODE…"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import paceline

STEPS = 12
SLOW_SECONDS = 0.05


def train(folder: Path, mode: str) -> list[float]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
    if "buffers" in mode:
        layers.append(torch.nn.BatchNorm1d(4))
    network = torch.nn.Sequential(*layers)
    if mode == "fsdp":
        model = fully_shard(network)
    else:
        model = network if mode == "no-ddp" else DistributedDataParallel(network)
    if mode == "comm-hook":
        model.register_comm_hook(None, fp16_compress_hook)
    called = torch.compile(model, backend="eager") if "compiled" in mode else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # In a forward pass ranks wait for the buffers of rank 0.
    slow = dist.get_rank() == (0 if "buffers" in mode else 1)

    def step(number: int) -> None:
        time.sleep(SLOW_SECONDS if slow else 0)
        called(torch.full((4, 8), float(number + dist.get_rank()))).square().mean().backward()

    with nullcontext() if mode == "unrecorded" else paceline.record(folder / mode):
        for number in range(STEPS):
            optimizer.zero_grad()
            if mode == "accumulate":
                with model.no_sync():
                    step(number)
            step(number)
            if mode == "no-ddp":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
    return [parameter.detach().double().sum().item() for parameter in model.parameters()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for mode in sys.argv[2:]:
        print(mode, train(Path(sys.argv[1]), mode))
    dist.barrier()
    dist.destroy_process_group()
    # Threads of torch.compile can abort the process while the interpreter shuts down.
    sys.stdout.flush()
    os._exit(0)
