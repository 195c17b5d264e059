"""How soon `session.backward` can stop at a cut: the time between two gradients of a backward pass.

    python examples/pytorch/cut_latency.py
"""

import statistics
import time

import torch
import torch.nn.functional as F

from data import characters, digits
from networks import CNN, GPT

REPEATS = 20


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = digits(None, train=False)[:32]
    measure("CNN, 32 images", CNN(), images, labels)
    windows, _, alphabet = characters(None, 64)
    x, y = (torch.stack(part) for part in zip(*(windows[i] for i in range(16))))
    for size in GPT.SIZES:
        measure(f"GPT {size}, 16 × 64 characters", GPT(len(alphabet), 64, size), x, y)


def measure(name: str, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Prints medians over backward passes: forward, backward, and the longest time between gradients."""
    moments: list[float] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: moments.append(time.perf_counter()))
    rows = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        output = model(x)
        loss = F.cross_entropy(output.flatten(0, -2), y.flatten())
        moments[:] = [time.perf_counter()]
        loss.backward()
        gaps = [end - begin for begin, end in zip(moments, moments[1:])]
        rows.append((moments[0] - start, time.perf_counter() - moments[0], max(gaps)))
    forward, backward, gap = (1e3 * statistics.median(column) for column in zip(*rows))
    print(f"{name}: forward {forward:.1f} ms, backward {backward:.1f} ms, longest gap {gap:.1f} ms")


if __name__ == "__main__":
    main()
