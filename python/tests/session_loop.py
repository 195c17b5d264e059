"""One worker of a run in a process of its own: begins when it reads a line, prints its state at the end."""

from __future__ import annotations

import hashlib
import json
import sys
import time

import paceline
import torch
from torch import nn
from workers import data, mlp, values

address, samples, epochs, pace, policy = sys.argv[1:]
torch.set_num_threads(1)
model = mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
print("ready", flush=True)
sys.stdin.readline()
session = paceline.init(
    model, optimizer, scheduler, server=address, policy=policy, epochs=int(epochs), hash_every=5
)
loader = session.loader(data(int(samples)), batch_size=4)
missed = 0
for _ in session.epochs(int(epochs)):
    for _, x, y in loader:
        optimizer.zero_grad()
        time.sleep(float(pace))
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        missed += session.last.missed
session.close()
state = b"".join(value.numpy().tobytes() for value in values(model))
digest = hashlib.sha256(state).hexdigest()
print(json.dumps({"state": digest, "rate": scheduler.get_last_lr(), "missed": missed}))
