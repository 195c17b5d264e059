"""Runs code of a session before each forward pass of a model."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from .session import Session


class ForwardHook:
    """A forward pre-hook that belongs to a session.

    ``copy.deepcopy``, ``AveragedModel`` and ``torch.save`` copy the hooks of a model with it. A copy of
    this one belongs to no session and does nothing.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = weakref.ref(session) if session is not None else None

    @property
    def session(self) -> Session | None:
        """The session that the hook belongs to, if there still is one."""
        return self._session() if self._session is not None else None

    def __call__(self, model: nn.Module, _inputs: Any) -> None:
        if (session := self.session) is not None:
            session._before_forward(model)

    def __deepcopy__(self, _memo: Any) -> ForwardHook:
        return ForwardHook()

    def __reduce__(self) -> tuple[type[ForwardHook], tuple[()]]:
        return ForwardHook, ()
