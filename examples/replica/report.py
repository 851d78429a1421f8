"""The results, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The result of one side; ``stale`` counts writes of an older version over a newer one."""

    messages: int
    calls: int
    stale: int
    wrong: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether all writes came in order and the mirror is right."""
        return self.stale == 0 and self.wrong == 0


#: Titles of the rows, and what stands in them.
ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("messages", lambda outcome: f"{outcome.messages:,}"),
    ("function calls", lambda outcome: f"{outcome.calls:,}"),
    ("stale overwrites", lambda outcome: f"{outcome.stale:,}"),
    ("wrong files at the end", lambda outcome: f"{outcome.wrong:,}"),
    ("time", lambda outcome: f"{outcome.seconds:.1f} s"),
)


def table(celery: Outcome, ordered: Outcome) -> str:
    """Both sides side by side."""
    lines = [f"{'':24}{'plain Celery':>14}{'ordered':>14}"]
    lines += [f"{title:24}{cell(celery):>14}{cell(ordered):>14}" for title, cell in ROWS]
    return "\n".join(lines)


def as_json(events: int, paths: int, celery: Outcome, ordered: Outcome) -> str:
    """One line of JSON; ``events`` are those of the stream, without the copies."""
    sides = {"ordered": _figures(ordered), "celery": _figures(celery)}
    return json.dumps({"events": events, "paths": paths, **sides})


def _figures(outcome: Outcome) -> dict[str, float]:
    return {
        "calls": outcome.calls,
        "stale": outcome.stale,
        "wrong": outcome.wrong,
        "seconds": round(outcome.seconds, 2),
    }
