"""How long a worker computes after a cut. Started by torchrun; the first worker writes its times to
OUT/worker-0.json, the others cut its rounds at random moments."""

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/pytorch"))

import paceline  # noqa: E402
from workloads import Workload, workload  # noqa: E402

PARTS = 4
WARM_UP = 5
EPOCHS = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="folder for results")
    parser.add_argument("--data", required=True, help="folder with mnist/ and tinyshakespeare/")
    parser.add_argument("--workload", choices=["cnn", "gpt-0.8m", "gpt-10m"], required=True)
    parser.add_argument("--backward", choices=["session", "plain", "compiled"], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--cuts", type=int, required=True, help="cuts to measure")
    return parser.parse_args()


class Activity:
    """When the network last finished a forward pass or a gradient."""

    def __init__(self, model: torch.nn.Module):
        self.last = 0.0
        model.register_forward_hook(lambda *_: self.note())
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.note())

    def note(self) -> None:
        self.last = time.perf_counter()


class Watch(threading.Thread):
    """Notes the moment of a round's cut."""

    def __init__(self, session: paceline.Session):
        super().__init__()
        self.worker = session._membership.connected()
        self.over = False
        self.cut = float("inf")
        self.start()

    def run(self) -> None:
        while not self.over:
            if self.worker.is_cut():
                self.cut = time.perf_counter()
                return
            time.sleep(1e-4)

    def end(self) -> float:
        self.over = True
        self.join()
        return self.cut


def batches(
    session: paceline.Session, work: Workload, args: argparse.Namespace
) -> Iterator[list[torch.Tensor]]:
    """This worker's batches, epoch after epoch."""
    loader = session.loader(work.train, batch_size=args.batch)
    for _ in session.epochs(EPOCHS):
        yield from loader


def measure(args: argparse.Namespace, work: Workload, done: Path) -> dict[str, list[float]]:
    """Seconds from cuts to the end of the computation, and of whole micro-batches."""
    activity = Activity(work.model)
    optimizer = torch.optim.SGD(work.model.parameters(), lr=0.0)
    model = torch.compile(work.model) if args.backward == "compiled" else work.model
    if args.backward == "compiled":
        x, y = next(iter(torch.utils.data.DataLoader(work.train, batch_size=args.batch // PARTS)))
        work.loss(model, x, y).backward()
        optimizer.zero_grad()
    session = paceline.init(work.model, optimizer, policy="static:1", straggler="salvage", epochs=EPOCHS)
    after: list[float] = []
    whole: list[float] = []
    for round, batch in enumerate(batches(session, work, args)):
        optimizer.zero_grad()
        watch = Watch(session)
        for x, y in session.micro_batches(batch, PARTS):
            start = time.perf_counter()
            loss = work.loss(model, x, y) / PARTS
            session.backward(loss) if args.backward == "session" else loss.backward()
            if watch.cut == float("inf"):
                whole.append(activity.last - start)
        cut = watch.end()
        optimizer.step()
        # A cut between two micro-batches, or after the last one, stops nothing.
        if cut < activity.last and round >= WARM_UP:
            after.append(activity.last - cut)
        if len(after) >= args.cuts:
            break
    done.touch()
    session.close()
    return {"after": after, "whole": whole}


def cut(args: argparse.Namespace, work: Workload, rank: int, done: Path) -> None:
    """Contributes at random moments. A contribution closes the round."""
    x, y = next(iter(torch.utils.data.DataLoader(work.train, batch_size=args.batch)))
    for _ in range(WARM_UP):
        start = time.perf_counter()
        work.loss(work.model, x, y).backward()
        period = time.perf_counter() - start
    work.model.zero_grad()
    optimizer = torch.optim.SGD(work.model.parameters(), lr=0.0)
    session = paceline.init(work.model, optimizer, policy="static:1", straggler="salvage", epochs=EPOCHS)
    moments = random.Random(rank)
    for _ in batches(session, work, args):
        optimizer.zero_grad()
        time.sleep(moments.uniform(0.2, 2.0) * period)
        if done.exists():
            break
        sum(parameter.sum() for parameter in work.model.parameters()).backward()
        optimizer.step()
    session.close()


def main() -> None:
    args = arguments()
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work = workload(args.workload, args.data, None)
    done = Path(args.out) / "done"
    found = measure(args, work, done) if rank == 0 else cut(args, work, rank, done)
    (Path(args.out) / f"worker-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
