"""The samples of a soak run as a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .samples import OF_PROCESS, OF_REDIS, Sample

#: Points of a line, at most.
POINTS = 240
MB = 1e6
LABELS = {
    "rss": "RSS, MB",
    "descriptors": "open descriptors",
    "threads": "threads",
    "memory": "memory of Redis, MB",
    "keys": "keys in Redis",
}
IN_MB = ("rss", "memory")


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Write the picture: each measure over the time of the run, with deploys and kills."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(2, 3, figsize=(12, 6), sharex=True)
    panels = list(rows.flat)
    for axes, measure in zip(panels, (*OF_PROCESS, *OF_REDIS), strict=False):
        _lines(axes, samples, measure)
        _steps(axes, samples)
        axes.set_ylabel(LABELS[measure])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes")
        axes.grid(alpha=0.3)
    legend, last = panels[0].get_legend_handles_labels(), panels[-1]
    last.axis("off")
    last.legend(*legend, loc="center")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _lines(axes: Any, samples: Sequence[Sample], measure: str) -> None:
    """A line for each node, broken where its process was replaced; one for the producer; or one for Redis."""
    lines: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for sample in samples:
        if measure in sample:
            value = sample[measure] / (MB if measure in IN_MB else 1)
            lines[sample.get("name", "Redis")].append((sample["at"] / 60, value, sample.get("pid", 0)))
    resident = max(name for name in lines)
    for name, points in sorted(lines.items()):
        kept = points[:: max(1, len(points) // POINTS)]
        values = [
            value if at == 0 or kept[at - 1][2] == pid else float("nan")
            for at, (_, value, pid) in enumerate(kept)
        ]
        main = name in {"producer", "Redis"} or name == resident
        axes.plot([p[0] for p in kept], values, label=name, linewidth=1.4 if main else 0.8)


def _steps(axes: Any, samples: Sequence[Sample]) -> None:
    for what, color in (("deploy", "tab:gray"), ("kill", "tab:red")):
        for at in (sample["at"] / 60 for sample in samples if sample["what"] == what):
            axes.axvline(at, color=color, linewidth=0.6, linestyle=":")
