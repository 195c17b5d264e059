"""The flat vector that travels: the gradients of all parameters, and what goes with them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .errors import PacelineError

log = logging.getLogger("paceline")

PRESENCE = "paceline.presence"
"""The tensor behind all others: which parameters had a gradient, and whether one overflowed."""

_BESIDE = 1
"""The group of values that travel with the gradients and do not count in their norm."""

_TRAVELS = {torch.float32, torch.float16, torch.bfloat16}
_SAMPLES = 8


@dataclass(frozen=True)
class Slot:
    """A tensor's place in the flat vector."""

    name: str
    tensor: Tensor
    offset: int
    size: int
    group: int = 0

    @property
    def range(self) -> slice:
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Buffer:
    """A buffer's place in the flat vector. ``Module.to`` replaces buffers, so it is looked up anew."""

    name: str
    module: nn.Module
    attribute: str
    offset: int
    size: int

    @property
    def tensor(self) -> Tensor:
        tensor: Tensor = getattr(self.module, self.attribute)
        return tensor

    @property
    def range(self) -> slice:
        return slice(self.offset, self.offset + self.size)


class FlatVector:
    """Parameters that are trained, running statistics, and the presence of gradients, laid end to end.

    Parameters come in reverse order of registration, which is about the order in which ``backward()``
    completes their gradients.
    """

    def __init__(
        self,
        models: dict[str, nn.Module],
        optimizers: Sequence[Optimizer],
        *,
        by_group: bool,
        presence: bool,
    ) -> None:
        self.params: list[Slot] = []
        self.buffers: list[Buffer] = []
        self.by_param: dict[Tensor, int] = {}
        groups = _groups(optimizers)
        found = list(_named_parameters(models))
        self._frozen = [(name, param) for name, param in found if not param.requires_grad]
        named = [(name, param) for name, param in found if param.requires_grad]
        if by_group:
            # Without an optimizer a parameter stays as it is.
            named = [(n, p) for n, p in named if p in groups]
        if not named:
            raise PacelineError("the model has no parameter that requires a gradient")
        _check(named, groups)
        _warn_of_unstepped(named, groups)
        named.reverse()
        if by_group:
            named.sort(key=lambda item: groups.get(item[1], 0))
        at = 0
        for name, param in named:
            group = groups.get(param, 0) if by_group else 0
            self.by_param[param] = len(self.params)
            self.params.append(Slot(name, param, at, param.numel(), group))
            at += param.numel()
        if presence:
            for name, module, attribute in _running_statistics(models):
                size = getattr(module, attribute).numel()
                self.buffers.append(Buffer(name, module, attribute, at, size))
                at += size
        self.presence_at = at
        self.length = at + (len(self.params) + 1 if presence else 0)
        self.has_presence = presence
        self.values = torch.zeros(self.length, dtype=torch.float32, device="cpu")
        self.array: npt.NDArray[np.float32] = self.values.numpy()
        self._views = [self.values[s.range].view(s.tensor.shape) for s in self.params]
        # The gradients that `.grad` was given, until it is known whether the loop has changed them.
        self._given: dict[int, tuple[Tensor, int]] = {}
        self._scaled = False
        self._sampled = torch.cat([_spread(slot) for slot in self.params])
        self._before = self.values[self._sampled]
        # Norms cost a pass over all gradients. They are taken once the loop was seen to change gradients.
        self._takes_norms = False
        self._norms: list[Tensor] | None = None

    def check_frozen(self) -> None:
        """Refuses parameters that were frozen and are not any more: their gradients do not travel."""
        for name, param in self._frozen:
            if param.requires_grad:
                raise PacelineError(
                    f"parameter `{name}` was frozen at paceline.init and requires a gradient now: it must "
                    "require one at paceline.init, and may be frozen afterwards"
                )

    @property
    def params_end(self) -> int:
        """Where the parameters end and the running statistics begin."""
        return self.params[-1].offset + self.params[-1].size

    @property
    def tensors(self) -> list[tuple[str, list[int], int]]:
        """Name, shape and optimizer group of every tensor, in order."""
        listed = [(s.name, list(s.tensor.shape), s.group) for s in self.params]
        listed += [(b.name, list(b.tensor.shape), _BESIDE) for b in self.buffers]
        if self.has_presence:
            listed.append((PRESENCE, [len(self.params) + 1], _BESIDE))
        return listed

    def grads(self, scale: float, overflow: bool) -> None:
        """Gives every parameter that any worker had a gradient for its mean gradient."""
        present = self.array[self.presence_at : self.presence_at + len(self.params)]
        everywhere = bool(present.all())
        if overflow:
            self.values[: self.presence_at].fill_(float("inf"))
        elif scale != 1.0:
            self.values[: self.presence_at].mul_(scale)
        self._scaled = overflow or scale != 1.0
        self._given.clear()
        for place, (slot, view) in enumerate(zip(self.params, self._views)):
            if not everywhere and present[place] == 0.0:
                slot.tensor.grad = None
            else:
                slot.tensor.grad = given = as_laid_out(view, slot.tensor)
                self._given[place] = given, given._version

    def drop_grads(self) -> None:
        """Leaves no gradient in ``.grad``."""
        self.forget_given()
        for slot in self.params:
            slot.tensor.grad = None

    def forget_given(self) -> None:
        """Changes to the gradients in ``.grad`` do not matter."""
        self._given.clear()

    def clear(self) -> None:
        """Makes the mean zero, for every parameter."""
        self.values.zero_()
        if self.has_presence:
            self.values[self.presence_at : -1].fill_(1.0)

    def statistics(self) -> None:
        """Sets the running statistics to their means."""
        for slot in self.buffers:
            slot.tensor.copy_(self.values[slot.range].view(slot.tensor.shape))

    @property
    def overflowed(self) -> bool:
        """Whether the gradient of any contribution was infinite under a loss scale."""
        return bool(self.array[self.presence_at + len(self.params)] != 0.0)

    def remember(self) -> None:
        """Notes the mean gradients as they are, to tell later how they were changed."""
        self._before = self.values[self._sampled]
        self._norms = list(torch._foreach_norm(self._views)) if self._takes_norms else None

    def factor(self, params: Iterable[Tensor]) -> float | None:
        """The factor by which the gradients of ``params`` were multiplied since :meth:`remember`.

        Clipping by norm and unscaling multiply all gradients alike. ``None`` if they were changed in
        another way, and for the first change: what to compare it with is kept from then on.
        """
        places = [self.by_param[p] for p in params if p in self.by_param and p.grad is not None]
        as_given = [self._is_as_given(place) for place in places]
        if all(as_given) and not self._scaled:
            return 1.0
        self._takes_norms = True
        if not places:
            return 1.0
        factor = self._sampled_factor(places)
        return factor if factor is not None and self._agree_norms(places, factor) else None

    def _is_as_given(self, place: int) -> bool:
        given, version = self._given.pop(place, (None, 0))
        return given is not None and given is self.params[place].tensor.grad and given._version == version

    def _sampled_factor(self, places: Sequence[int]) -> float | None:
        """The factor between some elements before and after, exactly as torch multiplies them."""
        pairs = self._samples(places)
        if all(torch.equal(before, after) for before, after in pairs):
            return 1.0
        if not all(bool(after.isfinite().all()) for _, after in pairs):
            return None
        before, after = max(pairs, key=lambda pair: float(pair[0].abs().max()))
        largest = int(before.abs().argmax())
        if before[largest] == 0.0:
            return None
        ratio = np.float32(float(after[largest]) / float(before[largest]))
        for candidate in _neighbours(ratio, before.dtype):
            factor = torch.tensor(candidate, dtype=torch.float32, device="cpu")
            if all(torch.equal(before * factor, after) for before, after in pairs):
                return float(candidate)
        return None

    def _agree_norms(self, places: Sequence[int], factor: float) -> bool:
        """Whether no other element was changed by another factor, as far as the norms tell."""
        if self._norms is None:
            return False
        grads = [self.params[place].tensor.grad for place in places]
        after = [float(norm) for norm in torch._foreach_norm([g for g in grads if g is not None])]
        before = [float(self._norms[place]) * factor for place in places]
        exact = all(self.params[place].tensor.dtype is torch.float32 for place in places)
        return bool(np.allclose(after, before, rtol=1e-6 if exact else 1e-2, atol=0.0))

    def _samples(self, places: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Some elements of each gradient, as they were and as they are."""
        counts = [min(slot.size, _SAMPLES) for slot in self.params]
        starts = np.cumsum([0, *counts])
        pairs = []
        for place in places:
            slot, part = self.params[place], slice(starts[place], starts[place + 1])
            grad = slot.tensor.grad
            assert grad is not None
            if slot.size:
                index = (self._sampled[part] - slot.offset).to(grad.device)
                after = grad.detach().reshape(-1)[index].cpu()
                pairs.append((self._before[part].to(after.dtype), after))
        return pairs


def as_laid_out(values: Tensor, param: Tensor) -> Tensor:
    """Values of a parameter's shape on its device, with its type and strides; not copied if they have them.

    Fused optimizers take the elements of parameter, gradient and state in the order of memory.
    """
    if param.is_contiguous():
        return values.to(param.device, param.dtype)
    return torch.empty_like(param, requires_grad=False).copy_(values)


def as_array(tensor: Tensor) -> npt.NDArray[np.float32]:
    """A tensor's values as a flat array of ``float32``, without a copy where that is possible."""
    flat = tensor.detach()
    if flat.is_sparse:
        flat = flat.to_dense()
    if flat.dtype is not torch.float32 or flat.device.type != "cpu":
        flat = flat.to("cpu", torch.float32)
    array: npt.NDArray[np.float32] = flat.reshape(-1).numpy()
    return array


def _neighbours(value: np.float32, dtype: torch.dtype) -> Iterator[np.float32]:
    """The values around ``value``. The factor of a half-precision gradient is often a half itself: those
    next to ``value`` come first."""
    if dtype is not torch.float32:
        half = torch.tensor(value, dtype=dtype).view(torch.int16)
        for step in (0, -1, 1):
            yield np.float32((half + step).view(dtype).item())
    yield value
    low = high = value
    for _ in range(3):
        low, high = np.nextafter(low, np.float32(-1)), np.nextafter(high, np.float32(np.inf))
        yield low
        yield high


def _spread(slot: Slot) -> Tensor:
    count = min(slot.size, _SAMPLES)
    return slot.offset + torch.arange(count, device="cpu") * slot.size // max(count, 1)


def _groups(optimizers: Sequence[Optimizer]) -> dict[Tensor, int]:
    groups, number = {}, 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for param in group["params"]:
                groups[param] = number
            number += 1
    return groups


def _named_parameters(models: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    seen: set[nn.Parameter] = set()
    for prefix, model in models.items():
        for name, param in model.named_parameters():
            if param not in seen:
                seen.add(param)
                yield full_name(prefix, name), param


def full_name(prefix: str, name: str) -> str:
    """A tensor's name in the run: that of its model, then its own."""
    # torch.compile wraps a module and shows in its names.
    plain = name.removeprefix("_orig_mod.")
    return f"{prefix}.{plain}" if prefix else plain


def _running_statistics(models: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module, str]]:
    """Names of the running statistics, with the modules and attributes that hold them."""
    for prefix, model in models.items():
        for path, module in model.named_modules():
            if not isinstance(module, nn.modules.batchnorm._NormBase):
                continue
            for name in ("running_mean", "running_var"):
                if getattr(module, name) is not None:
                    yield full_name(prefix, f"{path}.{name}"), module, name


def _warn_of_unstepped(named: Sequence[tuple[str, nn.Parameter]], groups: dict[Tensor, int]) -> None:
    """An optimizer that the session does not know steps on other gradients on every worker."""
    names = [f"`{name}`" for name, param in named if groups and param not in groups]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        log.warning(
            "%s%s belong to no optimizer of the session: give paceline.init all optimizers of the training loop, or "
            "replicas will differ",
            ", ".join(names[:3]),
            more,
        )


def _check(named: Sequence[tuple[str, nn.Parameter]], groups: dict[Tensor, int]) -> None:
    for name, param in named:
        if param.dtype not in _TRAVELS:
            raise PacelineError(
                f"parameter `{name}` is {param.dtype}, which is not supported: gradients travel as "
                "float32, from parameters of float32, float16 or bfloat16"
            )
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise PacelineError(
                f"parameter `{name}` has no shape yet: run the model once before paceline.init"
            )
    if groups and not any(param in groups for _, param in named):
        raise PacelineError("the optimizer has none of the model's parameters")
    own: set[Tensor] = {param for _, param in named}
    for held in groups:
        if held.requires_grad and held not in own:
            raise PacelineError(
                f"the optimizer has a parameter of shape {list(held.shape)} that is in none of the "
                "models: give paceline.init all models that it trains"
            )
