"""The samples that a run used, by its event log."""

from __future__ import annotations

import json
from pathlib import Path


def used_samples(run: Path) -> dict[int, list[int]]:
    """Positions that the run used, by epoch, from its event log. A straggler's part is the first samples of
    its portion."""
    given: dict[int, list[tuple[int, int]]] = {}
    weights: dict[int, tuple[int, float]] = {}
    used: dict[int, list[int]] = {}
    with (run / "events.jsonl").open() as log:
        for event in map(json.loads, log):
            if event["event"] == "round_started":
                for work in event["work"]:
                    ranges = work["portion"]
                    given[work["id"]] = [
                        (r["epoch"], at) for r in ranges for at in range(r["start"], r["end"])
                    ]
            elif event["event"] == "arrived":
                weights[event["worker"]] = (event["id"], event["weight"])
            elif event["event"] == "closed":
                for worker, weight in event["closes"][0]["members"]:
                    work, sent = weights[worker]
                    assert sent == weight
                    for epoch, at in given[work][: int(weight)]:
                        used.setdefault(epoch, []).append(at)
    return used
