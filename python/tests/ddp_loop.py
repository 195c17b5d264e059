"""One rank of a DDP training loop, for the tests. Usage: ddp_loop.py FOLDER MODE."""

import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import paceline

STEPS = 12
SLOW_SECONDS = 0.05


def network(mode: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
    return torch.nn.Sequential(*layers, *([torch.nn.BatchNorm1d(4)] if "buffers" in mode else []))


def main(folder: str, mode: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # In a forward pass ranks wait for the buffers of rank 0.
    slow_rank = 0 if "buffers" in mode else 1
    network_ = network(mode)
    model = network_ if mode == "no-ddp" else DistributedDataParallel(network_)
    if mode == "own-hook":
        model.register_comm_hook(None, fp16_compress_hook)
        warnings.simplefilter("ignore")
    called = torch.compile(model, backend="eager") if "compiled" in mode else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = None
    if mode != "unrecorded":
        recorder = paceline.record(folder)
    if mode == "watch":
        recorder.watch(model, None, fp16_compress_hook)
    for step in range(STEPS):
        if dist.get_rank() == slow_rank:
            time.sleep(SLOW_SECONDS)
        optimizer.zero_grad()
        called(torch.full((4, 8), float(step + dist.get_rank()))).square().mean().backward()
        if mode == "no-ddp":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
    if recorder is not None:
        recorder.close()
    print([parameter.detach().double().sum().item() for parameter in model.parameters()])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
