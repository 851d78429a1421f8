"""Order of runs, from a ledger: which calls came late, and which ran at once with another one of their id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict


class Run(TypedDict):
    """A line of the ledger: the ``n``-th call of an id, with the times of its run (monotonic, s)."""

    id: int
    n: int
    began: float
    ended: float


@dataclass(frozen=True)
class Phase:
    """Order in a span of time; ``last``: when the last run out of order began, in s after the beginning."""

    name: str
    seconds: float
    runs: int
    late: int
    at_once: int
    last: float

    def __str__(self) -> str:
        return (
            f"{self.name:<18}{self.seconds:6.1f} s, {self.runs:5,} runs: {self.late} late, "
            f"{self.at_once} at once, the last after {self.last:.1f} s"
        )


def phases(runs: Iterable[Run], ends: dict[str, float]) -> dict[str, Phase]:
    """The order in each phase, by the times at which phases end."""
    runs = sorted(runs, key=lambda run: run["began"])
    late, at_once = disorder(runs)
    found, begin = {}, runs[0]["began"]
    for name, end in ends.items():
        inside, behind, overlapping = (
            [run["began"] - begin for run in each if begin <= run["began"] < end]
            for each in (runs, late, at_once)
        )
        last = max(behind + overlapping, default=0.0)
        found[name] = Phase(name, end - begin, len(inside), len(behind), len(overlapping), last)
        begin = end
    return found


def disorder(runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
    """Runs that began after a newer call of their id, and runs that began before another one of it ended.

    ``runs`` are in the order of their begin.
    """
    newest: dict[int, int] = defaultdict(int)
    busy_until: dict[int, float] = defaultdict(float)
    late, at_once = [], []
    for run in runs:
        if run["n"] < newest[run["id"]]:
            late.append(run)
        if run["began"] < busy_until[run["id"]]:
            at_once.append(run)
        newest[run["id"]] = max(newest[run["id"]], run["n"])
        busy_until[run["id"]] = max(busy_until[run["id"]], run["ended"])
    return late, at_once
