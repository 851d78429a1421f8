"""The curves of a run as a picture: cost against queue length, throughput against lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .bench import Bench
from .worker import ordered

LANES = (1, 2, 4, 8, 16, 32)
NAMES = {"push": "push", "claim": "claim", "claim-settle": "claim and settle"}


def by_lanes(bench: Bench) -> list[dict[str, float]]:
    """Blank jobs a second by number of lanes; on one interpreter, more lanes only help tasks that wait."""
    return [
        {"lanes": lanes, "jobs_per_second": 1e6 / ordered(bench, "wide", 10_000, lanes=lanes).wall}
        for lanes in LANES
    ]


def draw(curves: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    """Write the picture, with the curves that there are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    lengths = curves.get("length", ())
    for name, label in NAMES.items():
        left.plot([c["length"] for c in lengths], [c[name] for c in lengths], marker="o", label=label)
    _name(left, "waiting ids in 24 shards", "µs, batch 1, one round trip each")
    left.set_xscale("log")
    left.legend()
    lanes = curves.get("lanes", ())
    right.plot([c["lanes"] for c in lanes], [c["jobs_per_second"] for c in lanes], marker="o")
    right.set_xscale("log", base=2)
    _name(right, "lanes of one worker", "blank jobs a second, batch 1")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _name(axes: Any, below: str, beside: str) -> None:
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
