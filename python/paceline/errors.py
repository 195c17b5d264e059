"""The exceptions of Paceline."""

from __future__ import annotations


class PacelineError(RuntimeError):
    """Something that stops training: the message says what, where and what to do."""


class RunEnded(PacelineError):
    """The run is over while the training loop still computes.

    Iterating over :meth:`paceline.Session.loader` ends by itself when the run does. A loop over its
    own data gets this exception from ``backward()`` instead.
    """
