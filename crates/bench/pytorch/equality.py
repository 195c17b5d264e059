"""One worker of a run of 100 steps, under DDP or Paceline, whose parameters are compared.

DDP's run comes first, others are compared with it by the same OUT. Every worker has the same batches under
both systems; with `--shift 1` each has those of the next rank, so that only the order of sums differs. With
`--gradients recorded` both step on the very same gradients, which the first run records; with `live` each
computes its own.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/pytorch"))

from workloads import Workload, workload  # noqa: E402

STEPS = 100
BATCH = 8
RTOL, ATOL = 1e-5, 1e-7

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="folder for parameters and results")
    parser.add_argument("--data", required=True, help="folder with mnist/ and tinyshakespeare/")
    parser.add_argument("--system", choices=["ddp", "paceline"], required=True)
    parser.add_argument("--workload", choices=["cnn", "gpt-0.8m"], required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--gradients", choices=["recorded", "live"], required=True)
    parser.add_argument("--shift", type=int, default=0, help="ranks by which batches are moved")
    args = parser.parse_args()
    args.rank, args.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    args.part = (args.rank + args.shift) % args.world
    return args


def batches(work: Workload, args: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    """This worker's batches: every worker has its own part of the data."""
    first = args.part * STEPS * BATCH
    rows = [[work.train[first + step * BATCH + at] for at in range(BATCH)] for step in range(STEPS)]
    return [torch.utils.data.default_collate(row) for row in rows]


def recorded(work: Workload, args: argparse.Namespace) -> list[list[Tensor]]:
    """Gradients of this worker at the initial parameters; those on disk if they have been recorded."""
    path = Path(args.out) / f"gradients-{args.rank}.pt"
    if not path.exists():
        parameters = list(work.model.parameters())
        losses = (work.loss(work.model, x, y) for x, y in batches(work, args))
        taken = [list(torch.autograd.grad(loss, parameters)) for loss in losses]
        torch.save(taken, path)
    return torch.load(path)


def train(work: Workload, args: argparse.Namespace) -> list[float]:
    """Takes all steps, and returns their losses."""
    gradients = recorded(work, args) if args.gradients == "recorded" else None
    model: nn.Module = work.model
    optimizer = OPTIMIZERS[args.optimizer](model.parameters())
    if args.system == "ddp":
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        close = dist.destroy_process_group
    else:
        import paceline

        session = paceline.init(model, optimizer, policy="full", batch_size=BATCH)
        close = session.close
    losses = []
    for step, (x, y) in enumerate(batches(work, args)):
        optimizer.zero_grad()
        loss = work.loss(model, x, y)
        if gradients is not None:
            # Its gradient is the recorded one, exactly; the forward pass above keeps DDP's hooks in use.
            products = [(p * g).sum() for p, g in zip(work.model.parameters(), gradients[step])]
            loss = torch.stack(products).sum() + 0.0 * loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    close()
    return losses


def compared(work: Workload, losses: list[float], reference: dict) -> dict:
    """The worst difference of an element over its tolerance, its tensor, and the worst one of losses.

    Elements are equal if their difference is at most 1.
    """
    worst, tensor = 0.0, ""
    for name, parameter in work.model.named_parameters():
        expected = reference["parameters"][name]
        over = (parameter - expected).abs() / (ATOL + RTOL * expected.abs())
        if name.endswith("query_key_value.bias"):
            # A key's bias moves all logits of a query alike: its gradient is zero but for rounding.
            query, _, value = over.chunk(3)
            over = torch.cat([query, value])
        if over.max().item() >= worst:
            worst, tensor = over.max().item(), name
    difference = max(abs(a - b) / abs(b) for a, b in zip(losses, reference["losses"]))
    return {"worst": worst, "tensor": tensor, "loss_difference": difference}


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    work = workload(args.workload, args.data, None)
    losses = train(work, args)
    stored = Path(args.out) / f"ddp-{args.part}.pt"
    result = {}
    if args.system == "ddp" and args.shift == 0:
        torch.save({"parameters": dict(work.model.named_parameters()), "losses": losses}, stored)
    else:
        with torch.no_grad():
            result = compared(work, losses, torch.load(stored))
    (Path(args.out) / f"worker-{args.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
