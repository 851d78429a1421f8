"""The samples of a soak run as a picture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.soak.samples import OF_PROCESS, OF_REDIS, Sample, resident_of

#: Points of a line, at most.
POINTS = 240
MB = 1e6
LABELS = {
    "rss": "RSS, MB",
    "descriptors": "open descriptors",
    "threads": "threads",
    "memory": "memory of Redis, MB",
    "keys": "keys in Redis",
    "lasting_keys": "keys without a time to live",
}
IN_MB = ("rss", "memory")


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Write the picture: each measure over the time of the run, with deploys and kills."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(2, 3, figsize=(12, 6))
    panels = list(rows.flat)
    resident = resident_of(samples)
    for axes, measure in zip(panels, (*OF_PROCESS, *OF_REDIS), strict=False):
        _lines(axes, samples, measure, resident)
        _steps(axes, samples)
        axes.set_ylabel(LABELS[measure])
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.set_xlabel("minutes")
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path)
    pyplot.close(figure)


def _lines(axes: Any, samples: Sequence[Sample], measure: str, resident: str) -> None:
    """A line for each node, broken where its process was replaced; one for the producer; or one for Redis."""
    lines: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for sample in samples:
        if measure in sample:
            value = sample[measure] / (MB if measure in IN_MB else 1)
            lines[sample.get("name", "Redis")].append((sample["at"] / 60, value, sample.get("pid", 0)))
    for name, points in sorted(lines.items()):
        kept = points[:: max(1, len(points) // POINTS)]
        pids = [pid for _, _, pid in kept]
        values = [
            value if before == pid else math.nan
            for before, (_, value, pid) in zip([pids[0], *pids], kept, strict=False)
        ]
        label = "resident" if name == resident else name
        width = 0.8 if label.startswith("node") else 1.6
        axes.plot([at for at, _, _ in kept], values, label=label, linewidth=width)


def _steps(axes: Any, samples: Sequence[Sample]) -> None:
    for what, color in (("deploy", "black"), ("kill", "tab:red")):
        times = [sample["at"] / 60 for sample in samples if sample["what"] == what]
        for number, at in enumerate(times):
            label = what if number == 0 else None
            axes.axvline(at, color=color, linewidth=0.8, linestyle=":", label=label)
