"""The steps of the training loop's own optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .errors import PacelineError
from .parameters import FlatVector
from .state import Json, plain


class OptimizerSteps:
    """Observes every step for the record of its round, scales its learning rates, or makes it change nothing.

    With ``step(closure)`` it is the closure that contributes, so all of this happens after the closure.
    """

    def __init__(self, flat: FlatVector, optimizers: Sequence[Optimizer]) -> None:
        self.replaying = False
        """Whether the steps are those of other workers."""
        self.lr_factor: Callable[[], float] | None = None
        """The factor on the learning rates of a step."""
        self.check: Callable[[], None] = lambda: None
        """Raises an error if there is no mean to step."""
        self.done = [False] * len(optimizers)
        self._flat = flat
        self._optimizers = list(optimizers)
        self._entries: list[Json] = [None] * len(optimizers)
        self._counts = [len(params_of(optimizer)) for optimizer in optimizers]
        self._skips = False
        self._withheld: list[tuple[Tensor, Tensor | None]] = []
        self._unscaled: list[tuple[dict[str, Any], Any]] = []

    def watch(self) -> list[Any]:
        """Observes the optimizers; returns the handles that end it."""
        handles = []
        for place, optimizer in enumerate(self._optimizers):
            handles.append(optimizer.register_step_pre_hook(self._before(place)))
            handles.append(optimizer.register_step_post_hook(self._after(place)))
        return handles

    def take_entries(self) -> list[Json]:
        """How each optimizer has stepped, ``None`` if it has not. Begins the next round."""
        entries = [entry if done else None for entry, done in zip(self._entries, self.done)]
        self.forget()
        return entries

    def forget(self) -> None:
        """Steps so far belong to no record, and the next ones count."""
        self.done = [False] * len(self._optimizers)
        self._skips = False

    def skip(self) -> None:
        """The steps until :meth:`forget` change nothing.

        Optimizers skip a parameter without a gradient, with its momentum, weight decay and count of
        steps, so that gradients are withheld from them while they step.
        """
        self._skips = True

    def _before(self, place: int) -> Callable[..., Any]:
        def hook(_optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            if self.replaying:
                return None
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            if not callable(closure):
                self._begin(place)
                return None

            def contribute() -> Any:
                loss = closure()
                self._begin(place)
                return loss

            if "closure" in kwargs:
                return args, {**kwargs, "closure": contribute}
            return (args[0], contribute, *args[2:]), kwargs

        return hook

    def _begin(self, place: int) -> None:
        optimizer = self._optimizers[place]
        params = params_of(optimizer)
        if len(params) != self._counts[place]:
            raise PacelineError(
                f"the optimizer has {len(params)} parameters now, and had {self._counts[place]} at paceline.init: "
                "close the session, and call paceline.init again with the parameters that were added"
            )
        if self._skips:
            self._withheld = [(param, param.grad) for param in params]
            for param in params:
                param.grad = None
            return
        self.check()
        if self.lr_factor is not None:
            factor = self.lr_factor()
            for group in optimizer.param_groups:
                self._unscaled.append((group, group["lr"]))
                group["lr"] = group["lr"] * factor
        self._entries[place] = self._entry(optimizer)

    def _entry(self, optimizer: Optimizer) -> Json:
        """How this step changes the parameters; ``None`` if it changes nothing."""
        # A GradScaler leaves it to fused optimizers to unscale gradients, and to skip a step.
        scale, found_inf = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
        if found_inf is not None and float(found_inf) != 0.0:
            return None
        factor = self._flat.factor(params_of(optimizer))
        if factor is not None and scale is not None:
            factor /= float(scale)
        return {"factor": factor, "groups": groups_of(optimizer)}

    def _after(self, place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self.replaying:
                return
            self.done[place] = True
            for param, grad in self._withheld:
                param.grad = grad
            for group, rate in self._unscaled:
                group["lr"] = rate
            self._withheld.clear()
            self._unscaled.clear()

        return hook


def params_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of all groups."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def groups_of(optimizer: Optimizer) -> Json:
    """The hyperparameters of the parameter groups. Values that all groups share are told once."""
    groups = [
        {key: plain(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    shared, each = {}, {}
    for key in dict.fromkeys(key for group in groups for key in group):
        values = [group.get(key) for group in groups]
        if any(value != values[0] for value in values):
            each[key] = values
        elif values[0] is not None:
            shared[key] = values[0]
    return {"shared": shared, "each": each}


def set_groups(optimizer: Optimizer, groups: Json) -> None:
    """Takes over what :func:`groups_of` told."""
    for place, group in enumerate(optimizer.param_groups):
        for key, value in groups["shared"].items():
            _set(group, key, value)
        for key, values in groups["each"].items():
            if place < len(values) and values[place] is not None:
                _set(group, key, values[place])


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    old = group.get(key)
    if isinstance(old, Tensor):
        old.fill_(value)
    else:
        group[key] = tuple(value) if isinstance(old, tuple) else value
