"""Torch optimizers as the shards know them (mode ``"server"``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from .errors import PacelineError

_IGNORED = {
    "params", "lr", "foreach", "fused", "capturable", "differentiable",
    # Notes of learning-rate schedulers.
    "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
}  # fmt: skip
"""Options that do not change the result, and the learning rate, which follows every round."""


def describe(optimizers: Sequence[Optimizer]) -> list[str]:
    """Every parameter group's optimizer, as the shards read it; refuses options they do not have."""
    return [_group(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]


def rates(optimizers: Sequence[Optimizer]) -> list[float]:
    """The learning rate of every parameter group."""
    return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]


def check_fresh(optimizers: Sequence[Optimizer]) -> None:
    """Refuses optimizers that have a state: the shards begin with none."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            if any(value is not None for value in state.values()):
                raise PacelineError(
                    f'{type(optimizer).__name__} has a state already, which mode "server" cannot take over: the '
                    'optimizer is on the shards. Resume the run itself, with PACELINE_RESUME or "paceline '
                    'train --resume", or use mode="mean"'
                )


def _group(optimizer: Optimizer, group: dict[str, Any]) -> str:
    kind = type(optimizer)
    if kind is torch.optim.SGD:
        return _sgd(group)
    if kind is torch.optim.AdamW:
        return _adam("adamw", group)
    if kind is torch.optim.Adam:
        decoupled = group.get("decoupled_weight_decay", False)
        return _adam("adamw" if decoupled else "adam", group)
    raise PacelineError(
        f'mode "server" has SGD, Adam and AdamW, not {kind.__name__}: use mode="mean", where every '
        "optimizer works"
    )


def _sgd(group: dict[str, Any]) -> str:
    _refuse("SGD", group, {"momentum", "nesterov", "weight_decay"}, dampening=0, maximize=False)
    if not group["momentum"]:
        return f"sgd:weight_decay={group['weight_decay']}"
    text = f"momentum:{group['momentum']},weight_decay={group['weight_decay']}"
    return text + (",nesterov" if group["nesterov"] else "")


def _adam(name: str, group: dict[str, Any]) -> str:
    known = {"betas", "eps", "weight_decay", "decoupled_weight_decay"}
    _refuse(name, group, known, amsgrad=False, maximize=False)
    beta1, beta2 = group["betas"]
    return (
        f"{name}:beta1={beta1},beta2={beta2},eps={group['eps']},weight_decay={group['weight_decay']}"
    )


def _refuse(name: str, group: dict[str, Any], known: set[str], **only: object) -> None:
    for option, value in group.items():
        if option in known or option in _IGNORED:
            continue
        if option not in only or value != only[option]:
            raise PacelineError(
                f'mode "server" does not support {option}={value!r} of {name}: use mode="mean"'
            )
