"""All-reduce by PCCL: RANKS ELEMENTS REPEATS; a line of [start, end] times for each rank."""

import json
import multiprocessing as mp
import os
import socket
import sys
import threading
import time

import numpy as np
import pccl


def rank(ranks, elements, repeats, address, together):
    comm = pccl.Communicator(address, 0)
    comm.connect(n_attempts=15)
    while comm.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < ranks:
        if comm.are_peers_pending():
            comm.update_topology()
        time.sleep(0.01)
    tensor, total = np.ones(elements, np.float32), np.empty(elements, np.float32)
    times = []
    for _ in range(repeats):
        together.wait()
        start = time.monotonic()
        comm.all_reduce(tensor, total, op=pccl.ReduceOp.SUM)
        times.append([start, time.monotonic()])
        assert total[0] == ranks and total[-1] == ranks
    sys.stdout.write(json.dumps(times) + "\n")
    sys.stdout.flush()
    together.wait()
    os._exit(0)


if __name__ == "__main__":
    ranks, elements, repeats = map(int, sys.argv[1:])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    master = pccl.MasterNode(address)
    threading.Thread(target=master.run, daemon=True).start()
    spawn = mp.get_context("spawn")
    arguments = (ranks, elements, repeats, address, spawn.Barrier(ranks))
    peers = [spawn.Process(target=rank, args=arguments) for _ in range(ranks)]
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join()
    os._exit(max(abs(peer.exitcode) for peer in peers))
