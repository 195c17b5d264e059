"""One worker's replica: model, optimizers, schedulers and loss scale, and how they change by the round."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _native
from .errors import PacelineError
from .optimizer_steps import OptimizerSteps, groups_of, params_of, set_groups
from .parameters import FlatVector, full_name
from .state import Json, pack, plain, tensors_in, unpack, with_tensors, without_tensors

_CHECK_TURNS = 16
"""A record has the hash of one part in this many of the state: in so many rounds all of it is compared."""


class Replica:
    """Keeps the record of every step, replays the steps of others, and compares and transfers state."""

    def __init__(
        self,
        flat: FlatVector,
        models: dict[str, nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        scaler: Any | None,
    ) -> None:
        self.flat = flat
        self.models = models
        self.optimizers = list(optimizers)
        self.schedulers = list(schedulers)
        self.scaler = scaler
        self.steps = OptimizerSteps(flat, self.optimizers)

    @property
    def loss_scale(self) -> float:
        """The factor on the losses to come; 1 without a scaler."""
        return self.scaler.get_scale() if self.scaler is not None else 1.0

    def record(self, version: int, epoch: int) -> bytes:
        """How this version was stepped, for workers that missed it. Begins the next record."""
        entries = self.steps.take_entries()
        turn = version % _CHECK_TURNS
        # Where the optimizer is on the shards, no step is replayed.
        check = [turn, self._hash_of(turn)] if any(entries) else None
        record = {"optimizers": entries, "check": check, **self._settings(epoch)}
        return json.dumps(record, separators=(",", ":")).encode()

    def _settings(self, epoch: int) -> dict[str, Json]:
        """What a training loop sets itself, for :meth:`follow`."""
        return {
            "epoch": epoch,
            "next": [groups_of(optimizer) for optimizer in self.optimizers],
            "schedulers": [plain(scheduler.state_dict()) for scheduler in self.schedulers],
            "scaler": plain(self.scaler.state_dict()) if self.scaler is not None else None,
        }

    def replay(self, record: Json) -> bool:
        """Steps as ``record`` says; the mean gradients are in the flat vector.

        Returns whether the outcome is that of the worker that wrote the record. ``False`` asks for the
        run's state.
        """
        if not can_replay(record):
            return False
        with self._replaying():
            for optimizer, entry in zip(self.optimizers, record["optimizers"]):
                if entry is not None:
                    self._step(optimizer, entry)
        if record["check"] is None:
            return True
        turn, found = record["check"]
        return bool(self._hash_of(turn) == found)

    def step_alone(self) -> None:
        """Steps the mean gradients in the flat vector with this replica's own settings."""
        with self._replaying():
            for optimizer in self.optimizers:
                optimizer.step()

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        """Gives the optimizers the mean in the flat vector. Nothing of it stays in ``.grad``, where the
        next ``backward()`` would add to it."""
        self.flat.grads(1.0, overflow=False)
        self.flat.statistics()
        self.steps.replaying = True
        try:
            yield
        finally:
            self.steps.replaying = False
            self.flat.drop_grads()

    def _step(self, optimizer: Optimizer, entry: Json) -> None:
        set_groups(optimizer, entry["groups"])
        if entry["factor"] != 1.0:
            grads = [p.grad for p in params_of(optimizer) if p.grad is not None]
            torch._foreach_mul_(grads, torch.tensor(entry["factor"], dtype=torch.float32))
        optimizer.step()

    def skip_step(self) -> None:
        """The training loop's step to come changes nothing: this replica has the newest version already.

        ``.grad`` holds the mean that was replayed last, or zeros if the run's state was taken since.
        """
        self.flat.grads(self.loss_scale, overflow=False)
        self.flat.forget_given()
        self.steps.skip()

    def follow(self, record: Json) -> None:
        """Takes over schedulers, learning rates and loss scale."""
        for scheduler, state in zip(self.schedulers, record["schedulers"]):
            _update(scheduler, state)
        for optimizer, groups in zip(self.optimizers, record["next"]):
            set_groups(optimizer, groups)
        if self.scaler is not None and record["scaler"]:
            self.scaler.load_state_dict(record["scaler"])

    def hashes(self) -> list[int]:
        """The hash of every tensor of the flat vector, then of the optimizer state of each.

        Running statistics are left out: forward passes change them between rounds.
        """
        values = [_hash([slot.tensor]) for slot in self.flat.params]
        others = [0] * (len(self.flat.tensors) - len(values))
        states = [_hash(self._state_of(slot.tensor)) for slot in self.flat.params]
        return [*values, *others, *states]

    def _hash_of(self, turn: int) -> int:
        """The hash of a part of every parameter and of its optimizer state; parts take turns."""
        parts = []
        for slot in self.flat.params:
            for tensor in (slot.tensor, *self._state_of(slot.tensor)):
                flat = tensor.detach().reshape(-1)
                size = flat.numel()
                parts.append(flat[size * turn // _CHECK_TURNS : size * (turn + 1) // _CHECK_TURNS])
        return _hash([part for part in parts if part.numel()])

    def _state_of(self, param: Tensor) -> list[Tensor]:
        tensors = []
        for optimizer in self.optimizers:
            tensors += [tensor for _, tensor in tensors_in(optimizer.state.get(param, {}), "")]
        return tensors

    def capture(self, version: int, epoch: int) -> bytearray:
        """The whole state after this version, as bytes."""
        tensors = dict(self._tensors())
        numbers = []
        for place, optimizer in enumerate(self.optimizers):
            held = {}
            for name, param in self._params_of(optimizer):
                state = optimizer.state.get(param, {})
                for key, value in state.items():
                    for path, tensor in tensors_in(value, str(key)):
                        tensors[_state_name(place, path, name)] = tensor
                held[name] = {str(key): without_tensors(v, str(key)) for key, v in state.items()}
            numbers.append(held)
        kinds = _kinds(self.optimizers)
        meta = {
            "version": version,
            "kinds": kinds,
            "numbers": numbers,
            "hashes": self.hashes(),
            **self._settings(epoch),
        }
        return pack(tensors, meta)

    def kinds(self) -> list[str]:
        """The kinds of the optimizers."""
        return _kinds(self.optimizers)

    def restore(self, blob: bytes | bytearray) -> tuple[int, Json]:
        """Takes over a state; returns its version, and its settings for :meth:`follow`."""
        tensors, meta = unpack(blob)
        if (kinds := _kinds(self.optimizers)) != meta["kinds"]:
            raise PacelineError(
                f"the worker that sent its state trains with {' and '.join(meta['kinds'])}, and this one with "
                f"{' and '.join(kinds)}: give all workers the same optimizers"
            )
        with torch.no_grad():
            for name, tensor in self._tensors():
                tensor.copy_(_named(tensors, name))
            for place, optimizer in enumerate(self.optimizers):
                numbers = meta["numbers"][place]
                counts_on_device = _counts_on_device(optimizer)
                for name, param in self._params_of(optimizer):

                    def found(path: str) -> Tensor:
                        value = _named(tensors, _state_name(place, path, name))
                        on_cpu = path == "step" and param not in counts_on_device
                        return value.clone() if on_cpu else _state_like(value, param)

                    state = with_tensors(numbers.get(name, {}), found)
                    if state:
                        optimizer.state[param] = state
                    else:
                        optimizer.state.pop(param, None)
        self._check_restored(meta["hashes"])
        self.flat.clear()
        return int(meta["version"]), meta

    def _check_restored(self, hashes: Sequence[int]) -> None:
        """A state is as it was on the worker that sent it, or it is not trained on."""
        for place, (here, there) in enumerate(zip(self.hashes(), hashes)):
            if here != there:
                count = len(self.flat.tensors)
                name = self.flat.tensors[place % count][0]
                what = "the optimizer's state of" if place >= count else "the parameter"
                raise PacelineError(
                    f"{what} `{name}` differs after it was taken from the run: this worker's model or "
                    "optimizer has another dtype than those of the other workers"
                )

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the model's state that are no parameters to train."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self._frozen())

    def frozen_hash(self) -> int:
        """The hash of frozen parameters and buffers. Those of normalization layers are left out: forward
        passes change them."""
        layers = (module for model in self.models.values() for module in model.modules())
        norms = (layer for layer in layers if isinstance(layer, nn.modules.batchnorm._NormBase))
        moving = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
        return _hash([tensor for _, tensor in self._frozen() if id(tensor) not in moving])

    def restore_frozen(self, blob: bytes | bytearray) -> None:
        """Takes over frozen parameters and buffers of a state."""
        tensors, _ = unpack(blob)
        with torch.no_grad():
            for name, tensor in self._frozen():
                tensor.copy_(_named(tensors, name))

    def _frozen(self) -> Iterator[tuple[str, Tensor]]:
        trained = {id(slot.tensor) for slot in self.flat.params}
        return ((name, tensor) for name, tensor in self._tensors() if id(tensor) not in trained)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        seen = set()
        for prefix, model in self.models.items():
            for name, tensor in model.state_dict(keep_vars=True).items():
                if isinstance(tensor, Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"model.{full_name(prefix, name)}", tensor

    def _params_of(self, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
        named = {slot.tensor: slot.name for slot in self.flat.params}
        for param in params_of(optimizer):
            if param in named:
                yield named[param], param


def can_replay(record: Json) -> bool:
    """Whether the record tells how gradients were changed before they were stepped."""
    return all(entry is None or entry["factor"] is not None for entry in record["optimizers"])


def _kinds(optimizers: Sequence[Optimizer]) -> list[str]:
    return [type(optimizer).__name__ for optimizer in optimizers]


def _state_name(place: int, path: str, parameter: str) -> str:
    return f"optimizer.{place}.{path}.{parameter}"


def _counts_on_device(optimizer: Optimizer) -> set[Tensor]:
    """Parameters whose count of steps is on their device; that of others is on the CPU."""
    groups = (g for g in optimizer.param_groups if g.get("fused") or g.get("capturable"))
    return {param for group in groups for param in group["params"]}


def _state_like(value: Tensor, param: Tensor) -> Tensor:
    """A parameter's optimizer state as the optimizer would have made it."""
    if value.shape != param.shape or param.is_contiguous():
        return value.to(param.device, copy=True)
    return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)


def _update(scheduler: Any, state: Json) -> None:
    """Takes over the part of a scheduler's state that JSON could hold."""
    scheduler.load_state_dict(_merged(scheduler.state_dict(), state))


def _merged(old: Any, new: Json) -> Any:
    """``old`` with the values of ``new``, which JSON has carried: its keys are texts."""
    if isinstance(old, dict) and isinstance(new, dict):
        merged = copy.copy(old)
        keys = {str(key): key for key in old}
        for text, value in new.items():
            key = keys.get(text, text)
            merged[key] = _merged(old.get(key), value)
        return merged
    if isinstance(old, list | tuple) and isinstance(new, list) and len(old) == len(new):
        # ``None`` is what JSON could not hold.
        values = [a if b is None else _merged(a, b) for a, b in zip(old, new)]
        return values if isinstance(old, list) else tuple(values)
    return new


def _named(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise PacelineError(f"the run's state has no tensor `{name.removeprefix('model.')}`")
    return tensors[name]


def _hash(tensors: Sequence[Tensor]) -> int:
    total = 0
    for tensor in tensors:
        total = (total * 31 + _native.hash_values(_words(tensor))) % (1 << 64)
    return total


def _words(tensor: Tensor) -> npt.NDArray[np.float32]:
    """A tensor's bytes as 32-bit words."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.dtype is torch.float32:
        array: npt.NDArray[np.float32] = flat.numpy()
        return array
    data = flat.view(torch.uint8).numpy()
    return np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)]).view(np.float32)
