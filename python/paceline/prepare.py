"""Makes a session of the user's model and optimizer, after a look at what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .errors import wrapped_in_ddp
from .joining import as_texts
from .launch import Run
from .session import Session

_LR_SCALINGS = ("linear", "sqrt", "adascale")
"""The rules of ``lr_scaling``."""


def init(
    model: nn.Module | Iterable[nn.Module] | Mapping[str, nn.Module],
    optimizer: Optimizer | Iterable[Optimizer],
    scheduler: Any | Iterable[Any] | None = None,
    scaler: Any | None = None,
    *,
    mode: str = "mean",
    policy: str | None = None,
    straggler: str | None = None,
    lr_scaling: str | None = None,
    batch_size: int | None = None,
    accumulate: int = 1,
    epochs: int | None = None,
    seed: int = 0,
    hash_every: int = 50,
    server: str | None = None,
    **settings: object,
) -> Session:
    """Prepares a model and its optimizer for training together with other workers.

    Args:
        model: The model to train, or a list or dict of models that train together.
        optimizer: The optimizer of the model, or a list of optimizers.
        scheduler: The learning-rate scheduler, or a list of them. A worker that missed rounds takes over the
            run's schedulers.
        scaler: The ``GradScaler`` of the training loop, if it has one. A session supports one.
        mode: ``"mean"``: ``.grad`` becomes the mean over the workers whose contributions the round used,
            and every worker steps its own optimizer. ``"server"``: the optimizer runs on the shards, and
            workers hold no optimizer state. Default: ``"mean"``.
        policy: The policy that decides when a round stops waiting, such as ``"auto"`` (the default) or
            ``"full"``.
        straggler: What a straggler does at the cut. ``"salvage"`` (the default): its finished micro-batches
            count. ``"abort"``: it contributes nothing.
        lr_scaling: How the learning rate scales with the samples behind an update: ``"linear"`` or
            ``"sqrt"``, or ``"adascale"`` in mode ``"server"``. By default it does not.
        batch_size: Number of samples behind each ``backward()`` of a loop over its own data. Not needed with
            :meth:`Session.loader`.
        accumulate: Number of batches per contribution, for gradient accumulation. Default: 1.
        epochs: Number of epochs after which the run ends. By default it ends when all workers have left.
        seed: Seed of the order of samples. Default: 0.
        hash_every: Number of rounds between two comparisons of the replicas; 0 disables them. Default: 50.
        server: Address of the server, ``HOST:PORT``. By default ``PACELINE_SERVER``, or a server that the
            script starts.
        settings: Further settings of the run, by their names in a config file, such as ``quorum=2``.

    Returns:
        The session.
    """
    if mode not in ("mean", "server"):
        raise ValueError(f'mode must be "mean" or "server", not {mode!r}')
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("hash_every", hash_every, 0)):
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1, not {accumulate}")
    if lr_scaling not in (None, "none", *_LR_SCALINGS):
        raise ValueError(f"lr_scaling must be one of {', '.join(_LR_SCALINGS)}, not {lr_scaling!r}")
    if lr_scaling == "adascale" and mode == "mean":
        raise ValueError('lr_scaling="adascale" needs mode="server", where the shards measure norms')
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(
            f"scaler must be one GradScaler, not {type(scaler).__name__}: the losses of a session share one "
            "scale"
        )
    models = _models(model)
    texts = as_texts({"policy": policy, "straggler": straggler, **settings})
    if mode == "server" and lr_scaling is not None:
        texts["lr-scaling"] = lr_scaling
    return Session(
        models,
        _listed(optimizer, Optimizer),
        _listed(scheduler, None),
        scaler,
        mode=mode,
        batch_size=batch_size,
        accumulate=accumulate,
        seed=seed,
        epochs=epochs,
        hash_every=hash_every,
        lr_scaling=lr_scaling if mode == "mean" else None,
        run=Run.at(server) if server else None,
        settings=texts,
    )


def _models(model: Any) -> dict[str, nn.Module]:
    if isinstance(model, nn.Module):
        models = {"": model}
    elif isinstance(model, Mapping):
        models = dict(model)
    else:
        models = {str(place): each for place, each in enumerate(model)}
    for each in models.values():
        if isinstance(each, nn.parallel.DistributedDataParallel):
            raise wrapped_in_ddp()
    return models


def _listed(value: Any, kind: type | None) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return list(value)
    if kind is None or isinstance(value, kind):
        return [value]
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
