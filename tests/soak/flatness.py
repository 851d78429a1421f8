"""Whether what was measured stayed flat: a pure function of the samples.

Each figure is growth as a part of what was there before, and may be at most 2 %; what is counted in tens
(descriptors, threads) may grow by one, as when a pool opens a connection late. A shrinking measure passes.

- What lives through the run: Redis, the producer, and the resident, a node that is neither deployed nor
  killed. The first half of the run is warm-up. Two windows are compared: the first one after it, and the last
  one of the run. A window is as long as the time between two deploys, so that each has the same number of
  deploys and kills. Each counts with its median, because samples fall into the midst of work.
- Nodes that are deployed start afresh, so their age decides. Half of the time between two deploys is their
  warm-up. Growth in a life compares the two quarters after it; the median of all lives counts. Growth over
  lives compares the median at one age, the third quarter, of the first third of all lives with that of the
  last third: it shows whether what Redis keeps makes a node larger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from tests.chaos.report import Gate
from tests.soak.samples import OF_PROCESS, OF_REDIS, Sample

LIMIT = 0.02
#: Measures that may grow by one.
COUNTED = ("descriptors", "threads")
#: Fewer samples in a window say nothing.
FEWEST = 5
#: Fewer lives have no first and last third.
FEWEST_LIVES = 6

Values = Sequence[tuple[float, float]]
#: A level before and after.
Levels = tuple[float, float]


def flatness_gates(samples: Sequence[Sample], window: float, resident: str) -> Iterator[Gate]:
    """A gate for each measure of each thing; without a figure where the run was too short."""
    end = max((sample["at"] for sample in samples), default=0.0)
    for measure in OF_REDIS:
        of_redis = [(s["at"], s[measure]) for s in samples if s["what"] == "redis"]
        yield _gate("Redis", measure, over_run(of_redis, window, end))
    for measure in OF_PROCESS:
        for name, shown in (("producer", "producer"), (resident, "resident")):
            values = [(s["at"], s[measure]) for s in samples if s.get("name") == name]
            yield _gate(shown, measure, over_run(values, window, end))
        restarted = [s for s in samples if s["what"] == "process" and s["name"] not in ("producer", resident)]
        lives = _lives(restarted, measure)
        yield _gate("nodes in a life,", measure, in_lives(lives, window))
        yield _gate("nodes over lives,", measure, over_lives(lives, window))


def _gate(what: str, measure: str, levels: Levels | None) -> Gate:
    name = f"growth of {what} {measure.replace('_', ' ')}"
    if levels is None:
        return Gate(name, None, LIMIT)
    before, after = levels
    limit = max(LIMIT, 1 / before) if measure in COUNTED else LIMIT
    return Gate(name, round(after / before - 1, 6), round(limit, 6))


def over_run(values: Values, window: float, end: float) -> Levels | None:
    """Levels in the first window of the second half of the run, and in the last one."""
    if end < 4 * window:
        return None
    before = _between(values, end / 2, end / 2 + window)
    after = _between(values, end - window, end)
    return (median(before), median(after)) if before and after else None


def in_lives(lives: Iterable[Values], window: float) -> Levels | None:
    """Levels in the third and in the fourth quarter of a window of a process's age, for the middle life."""
    known = []
    for life in lives:
        third, fourth = (
            _between(life, window / 2, window * 3 / 4),
            _between(life, window * 3 / 4, window),
        )
        if third and fourth:
            known.append((median(third), median(fourth)))
    return sorted(known, key=lambda levels: levels[1] / levels[0])[len(known) // 2] if known else None


def over_lives(lives: Iterable[Values], window: float) -> Levels | None:
    """Levels at one age, of the first lives of the run and of the last ones."""
    levels = [median(level) for life in lives if (level := _between(life, window / 2, window * 3 / 4))]
    third = len(levels) // 3
    return (median(levels[:third]), median(levels[-third:])) if len(levels) >= FEWEST_LIVES else None


def _lives(samples: Iterable[Sample], measure: str) -> list[Values]:
    """The measure by age, for each process in the order of their starts."""
    lives: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        lives[sample["pid"]].append((sample["age"], sample[measure]))
    return list(lives.values())


def _between(values: Values, begin: float, end: float) -> list[float]:
    found = [value for at, value in values if begin <= at < end]
    return found if len(found) >= FEWEST else []
