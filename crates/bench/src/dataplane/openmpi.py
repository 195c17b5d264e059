"""All-reduce by MPI, under mpirun: ELEMENTS REPEATS; a line of [start, end] times for each rank."""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

elements, repeats = map(int, sys.argv[1:])
world = MPI.COMM_WORLD
tensor = np.empty(elements, np.float32)
times = []
for _ in range(repeats):
    tensor.fill(1.0)
    world.Barrier()
    start = time.monotonic()
    world.Allreduce(MPI.IN_PLACE, tensor, op=MPI.SUM)
    times.append([start, time.monotonic()])
    assert tensor[0] == world.size and tensor[-1] == world.size
sys.stdout.write(json.dumps(times) + "\n")
