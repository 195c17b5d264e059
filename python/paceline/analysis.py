"""Analyses and replays of run-times, for scripts and notebooks."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline import _native

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def analyze(
    trace: str | os.PathLike[str] | ArrayLike,
    *,
    overhead: float = 0.0,
    noise_scale: float | None = None,
    run_hours: float = 100.0,
) -> Analysis:
    """Reports what stragglers cost and what could be saved, as ``paceline analyze`` does.

    Args:
        trace: a path that ``paceline analyze`` reads (CSV, Parquet, the folder of a run or of a
            recording), or an array of rounds × workers with seconds; NaN is an absent worker.
        overhead: time between the end of a round and the next, in the unit of the trace.
        noise_scale: gradient noise scale in contributions; by default the number of workers.
        run_hours: length of a run under full synchronisation, to report savings in hours.
    """
    native = _trace(trace)
    return Analysis(*_native.analyze(native, overhead, noise_scale, run_hours))


def simulate(
    trace: str | os.PathLike[str] | ArrayLike,
    policies: Sequence[str] = ("full", "static:0.9", "auto"),
    *,
    seeds: int = 3,
    straggler: str = "abort",
    overhead: float | str = 0.0,
    quorum: int = 1,
) -> Simulation:
    """Replays run-times under policies, as ``paceline simulate`` does.

    Args:
        trace: as for :func:`analyze`.
        policies: names that ``paceline policies`` lists, and ``oracle`` and ``best-static``, which
            know the future.
        seeds: replays per policy. Seed 0 is the trace unchanged; others begin at another round and
            number the workers in another order.
        straggler: what a worker past the cut does: ``abort``, ``finish``, or ``salvage`` (needs a
            trace with micro-batches).
        overhead: time between the end of a round and the next: seconds, or a multiple of the median
            run-time such as ``"0.1x"``.
        quorum: least contributions of a round.
    """
    native = _trace(trace)
    names = [policies] if isinstance(policies, str) else list(policies)
    replays, text, page = _native.simulate(native, names, seeds, straggler, str(overhead), quorum)
    return Simulation([json.loads(replay) for replay in replays], text, page, native.waits_included)


class _Report:
    """Results as text, and as a page with charts in notebooks."""

    def __init__(self, text: str, page: str) -> None:
        self._text = text
        self._page = page

    def __str__(self) -> str:
        return self._text

    def to_html(self) -> str:
        """The report of the command line (``--html``): one self-contained page with charts."""
        return self._page

    def _repr_html_(self) -> str:
        # The page has styles of its own, which must not reach the notebook.
        page = html.escape(self._page)
        return f'<iframe srcdoc="{page}" sandbox style="width:100%;height:720px;border:0"></iframe>'


class Analysis(_Report):
    """What stragglers cost in a trace. Made by :func:`analyze`."""

    def __init__(self, data: str, text: str, page: str) -> None:
        super().__init__(text, page)
        self._data: dict[str, Any] = json.loads(data)

    def to_dict(self) -> dict[str, Any]:
        """All figures, as ``paceline analyze --json`` prints them."""
        return self._data

    @property
    def name(self) -> str:
        """The name of the trace."""
        return str(self._data["name"])

    @property
    def workers(self) -> int:
        """The number of workers."""
        return int(self._data["workers"])

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return int(self._data["rounds"])

    @property
    def idle(self) -> float:
        """The share of their time that workers wait for the slowest under full synchronisation."""
        return float(self._data["cost"]["idle"])

    @property
    def best_count(self) -> int:
        """The best fixed number of workers to wait for, in hindsight."""
        return int(self._data["cost"]["fixed"]["count"])

    @property
    def best_gain(self) -> float:
        """The rate of the best fixed count over that of full synchronisation."""
        return float(self._data["cost"]["fixed"]["gain"])

    @property
    def oracle_gain(self) -> float:
        """The rate of the best count of every round over that of full synchronisation: no cutoff of
        whole workers can do better."""
        return float(self._data["cost"]["oracle"]["gain"])

    @property
    def slow_workers(self) -> list[str]:
        """The workers that are clearly slower than typical, slowest first."""
        return [worker["worker"] for worker in self._data["ranking"]["workers"] if worker["slow"]]

    @property
    def waits_included(self) -> bool:
        """Whether run-times include waits for other workers: stragglers then cost more than the
        figures say."""
        return bool(self._data["waits_included"])

    def __repr__(self) -> str:
        return (
            f"<Analysis of {self.name!r}: {self.workers} workers, {self.rounds} rounds, "
            f"idle {self.idle:.1%}, best_count {self.best_count}, best_gain {self.best_gain:.3f}, "
            f"oracle_gain {self.oracle_gain:.3f}>"
        )


class Simulation(_Report):
    """Replays of a trace under policies. Made by :func:`simulate`."""

    def __init__(
        self, replays: list[dict[str, Any]], text: str, page: str, waits_included: bool
    ) -> None:
        super().__init__(text, page)
        self._replays = replays
        self._waits_included = waits_included

    def to_dict(self) -> dict[str, Any]:
        """All figures: ``replays`` has one entry per policy and seed, as ``paceline simulate --json``
        prints them."""
        return {"replays": self._replays, "waits_included": self._waits_included}

    @property
    def policies(self) -> list[str]:
        """The policies, in the order given."""
        return list(dict.fromkeys(replay["policy"] for replay in self._replays))

    @property
    def gains(self) -> dict[str, float]:
        """Each policy's rate over that of full synchronisation, as the mean over seeds."""
        return self._means("of_full")

    @property
    def of_oracle(self) -> dict[str, float]:
        """Each policy's rate over that of the best count of every round, as the mean over seeds."""
        return self._means("of_oracle")

    @property
    def waits_included(self) -> bool:
        """Whether run-times include waits for other workers: gains are then understated."""
        return self._waits_included

    def _means(self, figure: str) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for replay in self._replays:
            values.setdefault(replay["policy"], []).append(replay[figure])
        return {policy: sum(found) / len(found) for policy, found in values.items()}

    def __repr__(self) -> str:
        gains = ", ".join(f"{policy} {gain:.3f}×" for policy, gain in self.gains.items())
        return f"<Simulation: {gains} of full synchronisation>"


def _trace(trace: str | os.PathLike[str] | ArrayLike) -> _native.Trace:
    if isinstance(trace, (str, os.PathLike)):
        return _native.Trace.read(trace)
    import numpy

    cells = numpy.ascontiguousarray(trace, dtype=numpy.float64)
    if cells.ndim != 2:
        raise ValueError(f"a trace has two dimensions, rounds × workers, not {cells.ndim}")
    return _native.Trace.from_cells("array", cells.shape[1], cells.tobytes())
