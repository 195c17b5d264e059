"""A script as users start it, with nothing said of a server: prints the worker, its samples and its parameters.

With the word `leave` the first worker leaves after two batches.
"""

from __future__ import annotations

import json
import sys

import paceline
import torch
from torch import nn
from workers import data, mlp

torch.set_num_threads(1)
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = paceline.init(model, optimizer, epochs=1, policy="full")
seen = []
for index, x, y in session.loader(data(), batch_size=4):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    seen += index.tolist()
    if sys.argv[1:] == ["leave"] and session.number == 0 and len(seen) == 8:
        break
run = session._membership.run
outcome = {
    "worker": session.number,
    "server": run.address if run is not None else None,
    "token": run is not None and run.token is not None,
    "seen": seen,
    "parameters": [param.tolist() for param in model.parameters()],
}
session.close()
# One write: torchrun starts Python unbuffered, and ranks share a pipe.
print(f"outcome {json.dumps(outcome)}\n", end="", flush=True)
