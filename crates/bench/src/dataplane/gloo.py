"""All-reduce by PyTorch's Gloo: RANKS ELEMENTS REPEATS; a line of [start, end] times for each rank."""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(me, ranks, elements, repeats, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=me, world_size=ranks)
    tensor = torch.empty(elements)
    times = []
    for _ in range(repeats):
        tensor.fill_(1.0)
        dist.barrier()
        start = time.monotonic()
        dist.all_reduce(tensor)
        times.append([start, time.monotonic()])
        assert tensor[0] == ranks and tensor[-1] == ranks
    sys.stdout.write(json.dumps(times) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, elements, repeats = map(int, sys.argv[1:])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (ranks, elements, repeats, os.path.join(folder, "store")), nprocs=ranks)
