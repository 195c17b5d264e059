"""The systems that train: one class each, which differ in what a user of that system writes."""

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from pace import Pace
from workloads import Workload

Batch = tuple[Tensor, Tensor]


class Alone:
    """Computation without communication: every worker trains a network of its own."""

    def __init__(self, work: Workload, args: Namespace):
        self.work = work
        self.args = args
        self.model = work.model
        self.optimizer = work.optimizer(args.lr)
        sampler = DistributedSampler(work.train, args.world, args.rank, seed=args.seed, drop_last=True)
        self.sampler = sampler
        self.loader: Iterable[Batch] = DataLoader(
            work.train, batch_size=args.batch, sampler=sampler, drop_last=True
        )
        self.connect()
        meet(args, "ready")

    def connect(self) -> None:
        """Joins the other workers."""

    def batches(self, epoch: int) -> Iterable[Batch]:
        """This worker's batches of an epoch."""
        self.sampler.set_epoch(epoch)
        return self.loader

    def step(self, batch: Batch, pace: Pace) -> float:
        """One step; the samples, of all workers, in its update."""
        self.optimizer.zero_grad()
        loss = self.work.loss(self.model, *batch)
        pace.pad()
        with pace.backward():
            loss.backward()
        self.optimizer.step()
        return self.args.batch * self.args.world

    def finished(self) -> bool:
        """Whether another worker has ended the run."""
        return False

    def close(self) -> None:
        """Leaves the run."""


class DDP(Alone):
    """DistributedDataParallel over Gloo."""

    def connect(self) -> None:
        dist.init_process_group("gloo")
        self.model = torch.nn.parallel.DistributedDataParallel(self.work.model)

    def close(self) -> None:
        dist.destroy_process_group()


class TorchFT(Alone):
    """torchft's DistributedDataParallel over Gloo, as documented: a replica group per worker."""

    def connect(self) -> None:
        import torchft
        from torchft.coordination import LighthouseServer

        told = Path(self.args.out) / "lighthouse"
        if self.args.rank == 0:
            self.lighthouse = LighthouseServer(
                bind="[::]:0", min_replicas=self.args.world, quorum_tick_ms=100, join_timeout_ms=10_000
            )
            tell(told, self.lighthouse.address())
        self.store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=30)),
            min_replica_size=self.args.world,
            load_state_dict=self.load_state_dict,
            state_dict=self.state_dict,
            replica_id=f"worker_{self.args.rank}",
            timeout=timedelta(seconds=30),
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self.store.port,
            lighthouse_addr=hear(told),
            hostname="localhost",
            # All workers start with the same parameters.
            init_sync=False,
        )
        self.model = torchft.DistributedDataParallel(self.manager, self.work.model)
        self.optimizer = torchft.Optimizer(self.manager, self.optimizer)

    def load_state_dict(self, state: dict) -> None:
        self.work.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def state_dict(self) -> dict:
        return {"model": self.work.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def close(self) -> None:
        self.manager.shutdown(wait=False)
        # The lighthouse is in the first worker's process.
        meet(self.args, "done")


class Hivemind(Alone):
    """hivemind's Optimizer as in its quickstart: local updates, parameters averaged meanwhile.

    Its quickstart averages every 10,000 samples, with 3 s to find a group; its guide recommends batches
    that take long next to that time. Here it averages every 5 s of nominal computation.
    """

    SECONDS_BETWEEN_AVERAGES = 5.0

    def connect(self) -> None:
        import hivemind

        told = Path(self.args.out) / "peers"
        listen = ["/ip4/127.0.0.1/tcp/0"]
        if self.args.rank == 0:
            self.dht = hivemind.DHT(host_maddrs=listen, start=True)
            tell(told, "\n".join(str(address) for address in self.dht.get_visible_maddrs()))
        else:
            self.dht = hivemind.DHT(host_maddrs=listen, initial_peers=hear(told).split(), start=True)
        samples_per_second = self.args.batch * self.args.world / self.args.nominal
        self.optimizer = hivemind.Optimizer(
            dht=self.dht,
            run_id="bench",
            batch_size_per_step=self.args.batch,
            target_batch_size=round(samples_per_second * self.SECONDS_BETWEEN_AVERAGES),
            optimizer=self.optimizer,
            use_local_updates=True,
            matchmaking_time=3.0,
            averaging_timeout=10.0,
        )

    def finished(self) -> bool:
        # Workers go at their own pace: the run ends when the first one has trained on its samples.
        return (Path(self.args.out) / "ended").exists()

    def close(self) -> None:
        if self.args.rank == 0:
            tell(Path(self.args.out) / "ended", "")
        self.optimizer.shutdown()
        meet(self.args, "done")
        self.dht.shutdown()


class Paceline(Alone):
    """Paceline: samples from the ledger, micro-batches that end at a cut."""

    def connect(self) -> None:
        import paceline

        self.session = paceline.init(
            self.model,
            self.optimizer,
            mode=self.args.mode,
            policy=self.args.policy,
            straggler=self.args.straggler,
            seed=self.args.seed,
            epochs=self.args.epochs,
        )
        self.loader = self.session.loader(self.work.train, batch_size=self.args.batch)

    def batches(self, epoch: int) -> Iterable[Batch]:
        return self.loader

    def step(self, batch: Batch, pace: Pace) -> float:
        count = self.args.micro_batches
        self.optimizer.zero_grad()
        for x, y in self.session.micro_batches(batch, count):
            loss = self.work.loss(self.model, x, y) / count
            pace.pad(1 / count)
            with pace.backward():
                self.session.backward(loss)
        self.optimizer.step()
        return self.session.last.weight

    def close(self) -> None:
        self.session.close()


SYSTEMS = {"alone": Alone, "ddp": DDP, "torchft": TorchFT, "hivemind": Hivemind, "paceline": Paceline}


def steps(system: Alone, epochs: int) -> Iterator[Batch]:
    """The batches of all epochs, until the run ends."""
    for epoch in range(epochs):
        for batch in system.batches(epoch):
            if system.finished():
                return
            yield batch


def tell(path: Path, text: str) -> None:
    """Writes a file that others wait for: it is never seen in part."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def hear(path: Path) -> str:
    """Waits for a file that another worker writes."""
    deadline = time.monotonic() + 120
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not come in two minutes")
        time.sleep(0.005)
    return path.read_text()


def meet(args: Namespace, name: str) -> None:
    """Waits until all workers of the run are here."""
    tell(Path(args.out) / f"{name}-{args.rank}", "")
    for rank in range(args.world):
        hear(Path(args.out) / f"{name}-{rank}")
