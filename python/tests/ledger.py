"""The samples that a run used, by its event log."""

from __future__ import annotations

import json
from pathlib import Path


def used_samples(run: Path) -> dict[int, list[int]]:
    """Positions that the run used, by epoch, from its event log. A straggler's part is the first samples of
    its portion. Rounds that were lost before a resume do not count."""
    given: dict[int, list[tuple[int, int]]] = {}
    weights: dict[int, tuple[int, float]] = {}
    rounds: dict[int, list[tuple[int, int]]] = {}
    with (run / "events.jsonl").open() as log:
        for event in map(json.loads, log):
            if event["event"] == "run_started":
                rounds = {at: used for at, used in rounds.items() if at < event["version"]}
            elif event["event"] == "round_started":
                for work in event["work"]:
                    ranges = work["portion"]
                    given[work["id"]] = [
                        (r["epoch"], at) for r in ranges for at in range(r["start"], r["end"])
                    ]
            elif event["event"] == "arrived":
                weights[event["worker"]] = (event["id"], event["weight"])
            elif event["event"] == "closed":
                used = rounds[event["round"]] = []
                for worker, weight in event["closes"][0]["members"]:
                    work, sent = weights[worker]
                    assert sent == weight
                    used += given[work][: int(weight)]
    by_epoch: dict[int, list[int]] = {}
    for samples in rounds.values():
        for epoch, at in samples:
            by_epoch.setdefault(epoch, []).append(at)
    return by_epoch
