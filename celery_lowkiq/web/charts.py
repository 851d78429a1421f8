"""Charts as SVG text, built from numbers only: no styles, no scripts, no text from users."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from celery_lowkiq.rules.history import KEPT, Sample

#: Seconds per column, of the chart and of a sparkline.
MINUTE, MINUTES = 60, 150
WIDTH, HEIGHT = 1200, 140
SMALL_WIDTH, SMALL_HEIGHT = 96, 20
BAR_WIDTH, BAR_HEIGHT = 400, 10
#: Minimum height of a column that is not empty.
LEAST = 2.0


@dataclass(frozen=True)
class Column:
    """Counts of a span of time that begins at ``at`` (Unix s)."""

    at: float
    processed: int = 0
    failed: int = 0


def columns(samples: Sequence[Sample], now: float, span: int) -> list[Column]:
    """Return the columns of the last hour, oldest first; an increase counts at its later sample."""
    last = int(now // span)
    sums = {number: [0, 0] for number in range(last - KEPT // span + 1, last + 1)}
    for before, after in pairwise(samples):
        place = sums.get(int(after.at // span))
        if place is not None:
            # A counter that was reset counts as 0.
            place[0] += max(0, after.processed - before.processed)
            place[1] += max(0, after.failed - before.failed)
    return [Column(number * span, *counts) for number, counts in sums.items()]


def peak(found: Sequence[Column]) -> int:
    """Return the largest sum of a column."""
    return max((column.processed + column.failed for column in found), default=0)


def history_chart(found: Sequence[Column], note_id: str) -> Markup:
    """Return a chart with failed above processed. ``note_id``: the element that the script writes into."""
    processed, failed = sum(c.processed for c in found), sum(c.failed for c in found)
    said = f"Last hour: {processed:,} jobs processed, {failed:,} runs failed"
    body = _columns(found, WIDTH, HEIGHT, labelled=True)
    return Markup(  # noqa: S704 numbers and fixed words
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{said}" data-chart="{note_id}">{body}'
        f'<line class="chart-cursor" y1="0" y2="{HEIGHT}" x1="-9" x2="-9"/></svg>'
    )


def sparkline(found: Sequence[Column]) -> Markup:
    """Return a small chart for a table."""
    body = _columns(found, SMALL_WIDTH, SMALL_HEIGHT, labelled=False)
    return Markup(  # noqa: S704 numbers only
        f'<svg class="spark" viewBox="0 0 {SMALL_WIDTH} {SMALL_HEIGHT}" aria-hidden="true">{body}</svg>'
    )


def stacked_bar(counts: Mapping[str, int], most: int) -> Markup:
    """Return a horizontal bar of counts by their kinds; ``most`` fills its width."""
    text, at = "", 0.0
    for kind, count in counts.items():
        width = _height(count, most, BAR_WIDTH)
        text += _rect(kind, at, 0, min(width, BAR_WIDTH - at), BAR_HEIGHT)
        at += width
    return Markup(  # noqa: S704 numbers and fixed words
        f'<svg class="bar" viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true">{text}</svg>'
    )


def _columns(found: Sequence[Column], width: int, height: int, labelled: bool) -> str:
    top = peak(found)
    step = width / max(1, len(found))
    return "".join(_column(column, i * step, step, top, height, labelled) for i, column in enumerate(found))


def _column(column: Column, left: float, step: float, top: int, height: int, labelled: bool) -> str:
    failed = _height(column.failed, top, height)
    done = min(_height(column.processed, top, height), height - failed)
    at, width = left + step * 0.14, step * 0.72
    text = _rect("done", at, height - done, width, done) + _rect(
        "failed", at, height - done - failed, width, failed
    )
    return text + (f'<g data-x="{left + step / 2:.1f}" data-at="{_label(column)}"/>' if labelled else "")


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    if not height:
        return ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _height(count: int, top: int, height: int) -> float:
    return max(LEAST, count / top * (height - LEAST)) if count else 0.0


def _label(column: Column) -> str:
    clock = time.strftime("%H:%M UTC", time.gmtime(column.at))
    return f"{clock} · {column.processed:,} processed · {column.failed:,} failed"
