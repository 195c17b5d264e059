"""One worker of a measured run, started by torchrun; writes what it measured to OUT/worker-RANK.json."""

import time

START = time.monotonic()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/pytorch"))

from pace import Pace  # noqa: E402
from systems import SYSTEMS, Alone, steps  # noqa: E402
from workloads import Workload, workload  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="folder for results")
    parser.add_argument("--data", required=True, help="folder with mnist/ and tinyshakespeare/")
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--workload", choices=["linear", "cnn", "gpt-0.8m", "gpt-10m"], required=True)
    parser.add_argument("--mode", default="mean", help="of paceline")
    parser.add_argument("--policy", help="of paceline")
    parser.add_argument("--straggler", help="of paceline")
    parser.add_argument("--micro-batches", type=int, default=1, help="of paceline")
    parser.add_argument("--batch", type=int, required=True, help="samples per worker and step")
    parser.add_argument("--samples", type=int, help="samples of the data set that are trained on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nominal", type=float, default=0.0, help="seconds that a step is padded to")
    parser.add_argument("--stalls", type=float, default=1.0, help="p99/p50 of the durations of steps")
    parser.add_argument("--slow", type=float, default=1.0, help="factor of the last worker's durations")
    parser.add_argument("--target", type=float, default=0.0, help="loss after which no more are taken")
    parser.add_argument("--snapshots", type=float, help="seconds between snapshots for losses")
    args = parser.parse_args()
    args.rank, args.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return args


class Snapshots:
    """Parameters of the first worker with their times; their losses are taken when the run is over."""

    def __init__(self, work: Workload, every: float | None):
        self.work = work
        self.every = every
        self.taken: list[tuple[float, list[torch.Tensor]]] = []

    def take(self, seconds: float) -> None:
        """Copies the parameters if it is time to."""
        last = self.taken[-1][0] if self.taken else 0.0
        if self.every is not None and seconds >= last + self.every:
            self.taken.append((seconds, [p.detach().clone() for p in self.work.model.parameters()]))

    def losses(self, target: float) -> list[tuple[float, float]]:
        """Seconds and losses, as far as the median of three neighbours is above the target."""
        found: list[tuple[float, float]] = []
        for seconds, values in self.taken:
            with torch.no_grad():
                for parameter, value in zip(self.work.model.parameters(), values):
                    parameter.copy_(value)
            found.append((seconds, self.work.test_loss()))
            if sum(loss <= target for _, loss in found[-3:]) >= 2 and len(found) >= 3:
                break
        return found


def memory(process: str) -> dict[str, int]:
    """Resident memory of a process in bytes: whole (RSS), and with shared pages divided (PSS)."""
    fields = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024
    return {"rss": fields["Rss"], "pss": fields["Pss"]}


def server_memory() -> dict[str, int] | None:
    """Memory of the server that this run started, if it has one; it has the run's environment."""
    mine = f"TORCHELASTIC_RUN_ID={os.environ['TORCHELASTIC_RUN_ID']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
            if (b"paceline", b"server") in zip(words, words[1:]) and mine in environment:
                return memory(process.name)
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
    return None


def train(system: Alone, work: Workload, args: argparse.Namespace) -> dict:
    slow = args.slow if args.rank == args.world - 1 else 1.0
    pace = Pace(args.nominal, slow, args.stalls, args.seed, args.rank)
    snapshots = Snapshots(work, args.snapshots if args.rank == 0 else None)
    began, times, samples = time.monotonic(), [], []
    for batch in steps(system, args.epochs):
        pace.begin()
        samples.append(system.step(batch, pace))
        times.append(time.monotonic() - began)
        snapshots.take(times[-1])
    measured = {"import_to_first_step": began + times[0] - START, "times": times, "samples": samples}
    measured["memory"] = memory("self")
    measured["server_memory"] = server_memory() if args.rank == 0 else None
    system.close()
    # The run is over: the other workers' cores are free.
    torch.set_num_threads(min(args.world, os.cpu_count() or 1))
    measured["losses"] = snapshots.losses(args.target)
    return measured


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    work = workload(args.workload, args.data, args.samples)
    system = SYSTEMS[args.system](work, args)
    measured = train(system, work, args)
    (Path(args.out) / f"worker-{args.rank}.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
