"""Whether what was measured stayed flat: a pure function of the samples.

Each figure is growth as a part of what was there before, and may be at most 2 %. A shrinking measure passes.

- What lives through the run: Redis, the producer, and the resident, a node that is neither deployed nor
  killed. Two windows are compared: the first one after the warm-up, and the last one of the run. A window is
  as long as the time between two deploys, so that each has the same number of deploys and kills. The warm-up
  is one window. Each counts with its median, since samples fall into the midst of work.
- Nodes that are deployed start afresh, so their age decides. Half of the time between two deploys is their
  warm-up. Growth in a life compares the two quarters after it; the median of all lives counts. Growth over
  lives compares the median at one age, the third quarter, of the first third of all lives with that of the
  last third: it shows whether what Redis keeps makes a node larger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from tests.chaos.checker import Gate

from .samples import OF_PROCESS, OF_REDIS, Sample

LIMIT = 0.02
#: Fewer samples in a window say nothing.
FEWEST = 5
#: Fewer lives have no first and last third.
FEWEST_LIVES = 6

Values = Sequence[tuple[float, float]]


def flatness_gates(samples: Sequence[Sample], window: float, resident: str) -> Iterator[Gate]:
    """A gate for each measure of each thing; without a figure where the run was too short."""
    end = max((sample["at"] for sample in samples), default=0.0)
    for measure in OF_REDIS:
        of_redis = [(s["at"], s[measure]) for s in samples if s["what"] == "redis"]
        yield Gate(f"growth of Redis {measure.replace('_', ' ')}", over_run(of_redis, window, end), LIMIT)
    for measure in OF_PROCESS:
        for name in ("producer", resident):
            values = [(s["at"], s[measure]) for s in samples if s.get("name") == name]
            shown = "producer" if name == "producer" else "resident"
            yield Gate(f"growth of {shown} {measure}", over_run(values, window, end), LIMIT)
        lives = _lives((s for s in samples if s["what"] == "process" and s["name"] != "producer"), measure)
        short = [life for name, life in lives if name != resident]
        yield Gate(f"growth of nodes' {measure} in a life", in_lives(short, window), LIMIT)
        yield Gate(f"growth of nodes' {measure} over lives", over_lives(short, window), LIMIT)


def over_run(values: Values, window: float, end: float) -> float | None:
    """Growth from the window after the warm-up to the last one of the run."""
    return _growth(_between(values, window, 2 * window), _between(values, max(2 * window, end - window), end))


def in_lives(lives: Iterable[Values], window: float) -> float | None:
    """Growth from the third quarter of a window of a process's age to the fourth: the median of all lives."""
    third, fourth = (window / 2, window * 3 / 4), (window * 3 / 4, window)
    growths = [_growth(_between(life, *third), _between(life, *fourth)) for life in lives]
    known = [growth for growth in growths if growth is not None]
    return median(known) if known else None


def over_lives(lives: Iterable[Values], window: float) -> float | None:
    """Growth of the measure at one age from the first lives of the run to the last ones."""
    levels = [level for life in lives if (level := _between(life, window / 2, window * 3 / 4))]
    if len(levels) < FEWEST_LIVES:
        return None
    third = len(levels) // 3
    first, last = (median(map(median, part)) for part in (levels[:third], levels[-third:]))
    return last / first - 1


def _lives(samples: Iterable[Sample], measure: str) -> list[tuple[str, Values]]:
    """For each process, in order of their starts: its node, and the measure by age."""
    lives: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        lives[sample["name"], sample["pid"]].append((sample["age"], sample[measure]))
    return [(name, life) for (name, _), life in lives.items()]


def _between(values: Values, begin: float, end: float) -> list[float]:
    found = [value for at, value in values if begin <= at < end]
    return found if len(found) >= FEWEST else []


def _growth(before: Sequence[float], after: Sequence[float]) -> float | None:
    return median(after) / median(before) - 1 if before and after else None
