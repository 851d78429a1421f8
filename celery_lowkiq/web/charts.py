"""Charts as SVG text, built from numbers only: no styles, no scripts, no text from users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from celery_lowkiq.rules.history import DAY, HOUR, Sample, Span
from celery_lowkiq.rules.text import duration
from celery_lowkiq.rules.times import iso

#: Seconds per column, of the chart of a span and of a sparkline.
CHART_STEPS = {HOUR: 60, DAY: 1200}
SPARK_STEP = 150
#: Lines of the grid, from 0 to the top, and from the left to the right.
ROWS, PARTS = 2, 4
WIDTH, HEIGHT = 1200, 140
SMALL_WIDTH, SMALL_HEIGHT = 96, 20
BAR_WIDTH, BAR_HEIGHT = 400, 10
#: Minimum height of a column that is not empty.
LEAST = 2.0


@dataclass(frozen=True)
class Column:
    """Counts of a time that begins at ``at`` (Unix s), and the largest lag (s) in it."""

    at: float
    processed: int = 0
    failed: int = 0
    lag: float = 0.0


@dataclass(frozen=True)
class Chart:
    """Columns of a span of time, oldest first, each of ``step`` s."""

    span: Span
    step: int
    columns: Sequence[Column]

    @property
    def processed(self) -> int:
        return sum(column.processed for column in self.columns)

    @property
    def failed(self) -> int:
        return sum(column.failed for column in self.columns)

    @property
    def peak(self) -> int:
        """The largest number of runs in a column."""
        return max((column.processed + column.failed for column in self.columns), default=0)

    @property
    def lag(self) -> float:
        """The largest lag (s)."""
        return max((column.lag for column in self.columns), default=0.0)

    @property
    def top(self) -> int:
        """The number at the upper end of the scale."""
        return round_up(self.peak)

    @property
    def top_lag(self) -> int:
        """The lag (s) at the upper end of its scale."""
        return round_up(self.lag)


def chart_of(samples: Sequence[Sample], now: float, span: Span = HOUR, step: int | None = None) -> Chart:
    """Return the chart of a history; an increase counts at its later sample."""
    step = step or CHART_STEPS[span]
    last = int(now // step)
    sums = {number: [0, 0] for number in range(last - span.seconds // step + 1, last + 1)}
    lags = dict.fromkeys(sums, 0.0)
    for sample in samples:
        if (number := int(sample.at // step)) in lags:
            lags[number] = max(lags[number], sample.lag)
    for before, after in pairwise(samples):
        place = sums.get(int(after.at // step))
        if place is not None:
            # A counter that was reset counts as 0.
            place[0] += max(0, after.processed - before.processed)
            place[1] += max(0, after.failed - before.failed)
    return Chart(span, step, [Column(n * step, done, failed, lags[n]) for n, (done, failed) in sums.items()])


def round_up(value: float) -> int:
    """Return the next even number with two digits other than 0; at least 2."""
    unit = int(10 ** max(0, len(str(math.ceil(value))) - 2))
    rounded = math.ceil(value / unit) * unit
    return max(2, rounded + rounded % 2)


def history_chart(chart: Chart, note_id: str) -> Markup:
    """Return a chart with failed above processed, and the lag as a line.

    ``note_id``: the element that the script writes into.
    """
    said = f"Last {chart.span.name}: {chart.processed:,} jobs processed, {chart.failed:,} runs failed"
    body = _columns(chart.columns, chart.top, WIDTH, HEIGHT, labelled=True)
    return Markup(  # noqa: S704 numbers and fixed words
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{said}" data-chart="{note_id}">{_grid()}{body}{_lag_line(chart)}'
        f'<line class="chart-cursor" y1="0" y2="{HEIGHT}" x1="-9" x2="-9"/></svg>'
    )


def sparkline(chart: Chart) -> Markup:
    """Return a small chart for a table."""
    body = _columns(chart.columns, chart.peak, SMALL_WIDTH, SMALL_HEIGHT, labelled=False)
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


def _grid() -> str:
    across = [HEIGHT * row / ROWS for row in range(ROWS)]
    down = [WIDTH * part / PARTS for part in range(1, PARTS)]
    lines = [(0.0, y, float(WIDTH), y) for y in across] + [(x, 0.0, x, float(HEIGHT)) for x in down]
    return "".join(
        f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        for x1, y1, x2, y2 in lines
    )


def _lag_line(chart: Chart) -> str:
    if not chart.lag:
        return ""
    step = WIDTH / len(chart.columns)
    points = " ".join(
        f"{(i + 0.5) * step:.1f},{HEIGHT * (1 - column.lag / chart.top_lag):.1f}"
        for i, column in enumerate(chart.columns)
    )
    return f'<polyline class="lag-line" points="{points}"/>'


def _columns(found: Sequence[Column], top: int, width: int, height: int, labelled: bool) -> str:
    step = width / max(1, len(found))
    return "".join(_column(column, i * step, step, top, height, labelled) for i, column in enumerate(found))


def _column(column: Column, left: float, step: float, top: int, height: int, labelled: bool) -> str:
    failed = _height(column.failed, top, height)
    done = min(_height(column.processed, top, height), height - failed)
    at, width = left + step * 0.14, step * 0.72
    text = _rect("done", at, height - done, width, done) + _rect(
        "failed", at, height - done - failed, width, failed
    )
    return text + (
        f'<g data-x="{left + step / 2:.1f}" data-at="{iso(column.at)}" data-text="{_label(column)}"/>'
        if labelled
        else ""
    )


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    if not height:
        return ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _height(count: int, top: int, height: int) -> float:
    return max(LEAST, count / top * (height - LEAST)) if count else 0.0


def _label(column: Column) -> str:
    lag = f" · lag {duration(column.lag)}" if column.lag else ""
    return f"{column.processed:,} processed · {column.failed:,} failed{lag}"
