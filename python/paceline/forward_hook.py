"""Runs code of a session before each forward pass of a model."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from .contribution import Contribution


class ForwardHook:
    """A forward pre-hook that belongs to the contribution of a session.

    ``copy.deepcopy``, ``AveragedModel`` and ``torch.save`` copy the hooks of a model with it. A copy of
    this one belongs to no session and does nothing.
    """

    def __init__(self, contribution: Contribution | None = None) -> None:
        self._contribution = weakref.ref(contribution) if contribution is not None else None

    @property
    def contribution(self) -> Contribution | None:
        """The contribution that the hook belongs to, if its session still exists."""
        return self._contribution() if self._contribution is not None else None

    def __call__(self, model: nn.Module, _inputs: Any) -> None:
        if (contribution := self.contribution) is not None:
            contribution.before_forward(model)

    def __deepcopy__(self, _memo: Any) -> ForwardHook:
        return ForwardHook()

    def __reduce__(self) -> tuple[type[ForwardHook], tuple[()]]:
        return ForwardHook, ()
