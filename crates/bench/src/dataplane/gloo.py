"""All-reduce by PyTorch's Gloo: RANKS ELEMENTS REPEATS; a line of [start, end] times for each rank.

With two words more, RANK and ADDRESS, it is one rank of several that meet there by TCP.
"""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(me, ranks, elements, repeats, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=me, world_size=ranks)
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
    ranks, elements, repeats = map(int, sys.argv[1:4])
    if len(sys.argv) > 4:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        rank(int(sys.argv[4]), ranks, elements, repeats, f"tcp://{sys.argv[5]}")
        sys.exit()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        meeting = "file://" + os.path.join(folder, "store")
        mp.spawn(rank, (ranks, elements, repeats, meeting), nprocs=ranks)
