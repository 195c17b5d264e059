"""Softmax regression with NumPy alone: paceline train --command "python examples/numpy_only.py"."""

import numpy as np

import paceline

rng = np.random.default_rng(0)
centres = rng.normal(size=(10, 64))
labels = rng.integers(0, 10, size=4096)
images = (centres[labels] + 1.5 * rng.normal(size=(4096, 64))).astype(np.float32)

params = {"weight": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}
session = paceline.init_arrays(params, samples=len(images), batch_size=64, epochs=5, lr=0.5)

for batch in session.batches():
    x, y = images[batch], labels[batch]
    logits = x @ params["weight"] + params["bias"]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = shifted / shifted.sum(axis=1, keepdims=True)
    loss = -np.log(probs[np.arange(len(y)), y]).mean()
    probs[np.arange(len(y)), y] -= 1
    probs /= len(y)
    session.step({"weight": x.T @ probs, "bias": probs.sum(axis=0)}, float(loss))

correct = (images @ params["weight"] + params["bias"]).argmax(axis=1) == labels
print(f"accuracy {correct.mean():.3f} after {session.last.round + 1} rounds")
session.close()
