"""Slowness on purpose, the same for every system: real time passes inside a training step, by seed."""

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

# The 99th percentile of a standard normal, which turns p99/p50 into a lognormal's sigma.
Z99 = 2.326347874


class Pace:
    """Pads the computation of a step to a nominal duration, times this worker's slowness.

    Workers that share cores then do not set each other's pace. The time passes in a sleep between
    forward and backward. Communication comes after it, so it is never hidden in the padding.
    """

    def __init__(self, nominal: float, slow: float, stalls: float, seed: int, rank: int):
        self.nominal = nominal
        self.slow = slow
        self.sigma = math.log(stalls) / Z99
        self.draws = random.Random(f"{seed}-{rank}")
        self.backward_seconds = [0.0]
        self.step_seconds = nominal
        self.due = 0.0

    def begin(self) -> None:
        """A step begins, and with it the draw of its slowness."""
        stretch = math.exp(self.draws.gauss(0.0, self.sigma))
        self.step_seconds = self.nominal * self.slow * stretch
        self.due = time.monotonic()

    def pad(self, share: float = 1.0) -> None:
        """After the forward pass over `share` of the step's samples, before their backward pass."""
        self.due += share * self.step_seconds
        left = self.due - time.monotonic() - median(self.backward_seconds)
        if left > 0:
            time.sleep(left)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward pass. Its CPU time is part of the nominal duration; its waits are not."""
        since = time.thread_time()
        yield
        self.backward_seconds = [*self.backward_seconds[-8:], time.thread_time() - since]
