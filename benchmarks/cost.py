"""What a job costs: wall time, and the processor time of those that take part."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import TypeAlias

from .bench import Bench

#: Those whose processor time is counted.
PARTIES = ("client", "worker", "redis")


@dataclass(frozen=True)
class Cost:
    """Microseconds a job. None: takes no part, or was not measured."""

    wall: float
    client: float | None = None
    worker: float | None = None
    redis: float | None = None

    @property
    def cpu(self) -> dict[str, float]:
        """Processor time by party."""
        times = {party: getattr(self, party) for party in PARTIES}
        return {party: took for party, took in times.items() if took is not None}


#: One round of a side. None: what it needs is not installed.
Measure: TypeAlias = "Callable[[], Cost] | None"


def interleaved(rounds: int, measures: Mapping[str, Measure]) -> dict[str, list[Cost]]:
    """All sides after each other in each round, so that a slow moment of the machine meets all of them.

    In another order each time: a side is faster just after one that runs the same code and scripts.
    """
    found: dict[str, list[Cost]] = {name: [] for name in measures}
    for number in range(rounds):
        for name, measure in random.Random(number).sample(list(measures.items()), len(measures)):
            if measure is not None:
                found[name].append(measure())
    return found


def medians(costs: Sequence[Cost]) -> Cost:
    """The median of each figure."""
    figures: dict[str, list[float]] = {field.name: [] for field in fields(Cost)}
    for cost in costs:
        for name, values in figures.items():
            if (value := getattr(cost, name)) is not None:
                values.append(value)
    return Cost(**{name: median(values) for name, values in figures.items() if values})


def called(bench: Bench, action: Callable[[], object], jobs: int) -> Cost:
    """The cost of calls that this process makes."""
    redis = bench.redis_cpu()
    cpu, began = time.process_time(), time.perf_counter()
    action()
    wall, client = time.perf_counter() - began, time.process_time() - cpu
    took = (wall, client, bench.redis_cpu() - redis)
    wall, client, redis = (seconds / jobs * 1e6 for seconds in took)
    return Cost(wall, client=client, redis=redis)
