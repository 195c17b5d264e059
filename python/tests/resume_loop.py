"""One worker of a run that is stopped and resumed. Usage: resume_loop.py MODE EPOCHS SAMPLES PACE. It finds its
run in the environment, and prints its state at the end."""

from __future__ import annotations

import hashlib
import json
import sys
import time

import paceline
import torch
from torch import nn
from workers import data, mlp, values

mode, epochs, samples, pace = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(1)
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
by_step = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
session = paceline.init(
    model, optimizer, [by_step, by_epoch], mode=mode, policy="full", epochs=epochs, hash_every=5
)
loader = session.loader(data(samples), batch_size=4)
seen = []
for epoch in session.epochs(epochs):
    seen.append(epoch)
    for _, x, y in loader:
        optimizer.zero_grad()
        time.sleep(pace)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        by_step.step()
    by_epoch.step()
session.close()
state = b"".join(value.numpy().tobytes() for value in values(model))
digest = hashlib.sha256(state).hexdigest()
rate = optimizer.param_groups[0]["lr"]
print(json.dumps({"state": digest, "rate": rate, "epochs": seen}), flush=True)
