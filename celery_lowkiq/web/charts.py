"""Pictures as SVG text, made of numbers only: no style, no script, nothing that anybody else has chosen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from celery_lowkiq.rules.history import KEPT, Sample

#: A column of the chart stands for so many s; of a small one for more.
MINUTE, MINUTES = 60, 150
WIDTH, HEIGHT = 1200, 140
SMALL_WIDTH, SMALL_HEIGHT = 96, 20
#: A column with something in it is at least so high.
LEAST = 2.0


@dataclass(frozen=True)
class Column:
    """What was done in one span of time that begins at Unix s ``at``."""

    at: float
    processed: int = 0
    failed: int = 0


def columns(samples: Sequence[Sample], now: float, span: int) -> list[Column]:
    """The last hour, oldest first. What was done between two samples counts where the later one lies."""
    last = int(now // span)
    sums = {number: [0, 0] for number in range(last - KEPT // span + 1, last + 1)}
    for before, after in pairwise(samples):
        place = sums.get(int(after.at // span))
        if place is not None:
            # A counter that began anew counts from nothing.
            place[0] += max(0, after.processed - before.processed)
            place[1] += max(0, after.failed - before.failed)
    return [Column(number * span, *counts) for number, counts in sums.items()]


def peak(found: Sequence[Column]) -> int:
    """The most in one column."""
    return max((column.processed + column.failed for column in found), default=0)


def history_chart(found: Sequence[Column], note_id: str) -> Markup:
    """A column a minute: processed, and failed on top of it. ``note_id``: what the script writes into."""
    processed, failed = sum(c.processed for c in found), sum(c.failed for c in found)
    said = f"Last hour: {processed:,} jobs processed, {failed:,} runs failed"
    body = _columns(found, WIDTH, HEIGHT, told=True)
    return Markup(  # noqa: S704 numbers and our own words
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{said}" data-chart="{note_id}">{body}'
        f'<line class="chart-cursor" y1="0" y2="{HEIGHT}" x1="-9" x2="-9"/></svg>'
    )


def sparkline(found: Sequence[Column]) -> Markup:
    """The same, small enough for a table."""
    body = _columns(found, SMALL_WIDTH, SMALL_HEIGHT, told=False)
    return Markup(  # noqa: S704 numbers only
        f'<svg class="spark" viewBox="0 0 {SMALL_WIDTH} {SMALL_HEIGHT}" aria-hidden="true">{body}</svg>'
    )


def _columns(found: Sequence[Column], width: int, height: int, told: bool) -> str:
    top = peak(found)
    step = width / max(1, len(found))
    return "".join(_column(column, i * step, step, top, height, told) for i, column in enumerate(found))


def _column(column: Column, left: float, step: float, top: int, height: int, told: bool) -> str:
    failed = _height(column.failed, top, height)
    done = min(_height(column.processed, top, height), height - failed)
    at, width = left + step * 0.14, step * 0.72
    text = _rect("done", at, height - done, width, done) + _rect(
        "failed", at, height - done - failed, width, failed
    )
    return text + (f'<g data-x="{left + step / 2:.1f}" data-at="{_told(column)}"/>' if told else "")


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    if not height:
        return ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _height(count: int, top: int, height: int) -> float:
    return max(LEAST, count / top * (height - LEAST)) if count else 0.0


def _told(column: Column) -> str:
    clock = time.strftime("%H:%M UTC", time.gmtime(column.at))
    return f"{clock} · {column.processed:,} processed · {column.failed:,} failed"
