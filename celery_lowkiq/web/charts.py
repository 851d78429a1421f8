"""Charts as SVG: histories, the lane map, the progress of a move."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from markupsafe import Markup

from celery_lowkiq.rules.health import LATE
from celery_lowkiq.rules.resharding import MigrationState
from celery_lowkiq.rules.text import duration, iso, ranges
from celery_lowkiq.rules.views import DAY, HOUR, NodeReport, Running, Sample, ShardReport, Span
from celery_lowkiq.web.formatting import plain

# The map of a queue: its lanes with their shards, and what each works.

#: Lag (s) from which a shard is very late.
VERY_LATE = 300.0
#: Numbers of jobs from which the colour is darker.
STEPS = (1, 10, 100, 1000)
#: Maximum number of rows; with more lanes, one row is of the last ones together.
MAX_ROWS = 64


@dataclass(frozen=True)
class Cell:
    """A shard. ``kind`` is its colour: idle, some-1 to some-4, late, very-late, paused or unowned.

    ``move``, while jobs move to another number of shards: ``old`` or ``new`` when only one of both numbers
    has it, else ""; ``unsorted``: parts of four of its jobs that are still to be sorted.
    """

    index: int
    kind: str
    text: str
    runs: bool
    move: str = ""
    unsorted: int = 0
    #: True if nothing is known of the shard, because its master is unreachable.
    unreachable: bool = False


@dataclass(frozen=True)
class Row:
    """A lane of a node with its shards, or several lanes together; without a node: shards that no node has.

    ``running``: its batch, which may be of another queue. ``busy``: how many of its lanes run something.
    """

    node: str
    lane: str
    cells: tuple[Cell, ...]
    running: Running | None = None
    lanes: int = 1
    busy: int = 0


@dataclass(frozen=True)
class Moves:
    """Shards of the old number that have nothing left to sort, and the nodes that move the other shards."""

    moved: int
    former: int
    done: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class LaneMap:
    """The rows of a queue, and how many lanes work on it; ``moves`` while jobs move."""

    rows: tuple[Row, ...]
    shards: int
    lanes: int
    busy: int
    moves: Moves | None = None

    @property
    def groups(self) -> list[tuple[str, tuple[Row, ...]]]:
        """The rows by their node; without a node last."""
        return [(name, tuple(rows)) for name, rows in groupby(self.rows, key=lambda row: row.node)]

    @property
    def unowned(self) -> int:
        """Number of shards without a living owner, as far as their masters respond."""
        return sum(cell.kind == "unowned" and not cell.unreachable for row in self.rows for cell in row.cells)


def lane_map(
    queue: str,
    shards: Sequence[ShardReport],
    nodes: Sequence[NodeReport],
    migration: MigrationState | None = None,
) -> LaneMap:
    """Return the map of a queue. It is as long as the number of shards, and has MAX_ROWS rows at most."""
    serving = [node for node in nodes if node.alive and queue in node.queues]
    rows = _bounded(_lane_rows(shards, serving, migration))
    lanes = [lane for node in serving for lane in node.lanes]
    busy = sum(lane.running is not None and lane.running.shard.queue == queue for lane in lanes)
    moves = _moves(migration, serving) if migration else None
    return LaneMap(tuple(rows), len(shards), len(lanes), busy, moves)


def _lane_rows(
    shards: Iterable[ShardReport], serving: Iterable[NodeReport], migration: MigrationState | None
) -> list[Row]:
    """A row for each lane of a node that serves the queue, and for shards that none of these lists."""
    cells: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    runs: dict[tuple[str, str], Running | None] = {}
    for node in serving:
        for lane in node.lanes:
            ran = lane.running and replace(lane.running, seconds=lane.running.seconds + node.silent)
            runs[node.name, lane.name], cells[node.name, lane.name] = ran, []
    for shard in shards:
        place = (shard.owner or "", shard.lane or "") if shard.alive else ("", "")
        cells[place].append(cell_of(shard, migration))
        runs[place] = runs.get(place) or shard.running
    rows = [
        Row(*place, tuple(found), runs[place], int(bool(place[1])), int(bool(runs[place])))
        for place, found in cells.items()
    ]
    return sorted(rows, key=lambda row: (not row.node, row.node, not row.lane, _natural(row.lane)))


def _natural(name: str) -> tuple[str, int]:
    """``lane-10`` comes after ``lane-9``."""
    digits = name[len(name.rstrip("0123456789")) :]
    return name.removesuffix(digits), int(digits or -1)


def _bounded(rows: list[Row]) -> list[Row]:
    """The rows; if they are too many, the last lanes are one row."""
    if len(rows) <= MAX_ROWS:
        return rows
    lanes = [row for row in rows if row.node]
    kept, others = lanes[: MAX_ROWS - 2], lanes[MAX_ROWS - 2 :]
    cells = sorted((cell for row in others for cell in row.cells), key=lambda cell: cell.index)
    counts = sum(row.lanes for row in others), sum(row.busy for row in others)
    return [
        *kept,
        Row("Other lanes", "", tuple(cells), None, *counts),
        *(row for row in rows if not row.node),
    ]


def cell_of(shard: ShardReport, migration: MigrationState | None = None) -> Cell:
    """Return the cell of a shard: its colour, and its state as text."""
    move, unsorted = _move(shard, migration) if migration else ("", 0)
    unreachable, runs = shard.unreachable is not None, shard.running is not None
    return Cell(shard.index, _kind(shard), _text(shard, move), runs, move, unsorted, unreachable)


def _kind(shard: ShardReport) -> str:
    stats = shard.stats
    if shard.unreachable is not None or shard.owner is None or shard.alive is False:
        return "unowned"
    if shard.paused_since is not None:
        return "paused"
    if stats.lag >= LATE:
        return "very-late" if stats.lag >= VERY_LATE else "late"
    level = sum(stats.length + stats.busy >= step for step in STEPS)
    return f"some-{level}" if level else "idle"


def _move(shard: ShardReport, migration: MigrationState) -> tuple[str, int]:
    if shard.index >= migration.former:
        return "new", 0
    if shard.index >= len(migration.progress):
        return "", 0
    move = "old" if shard.index >= migration.shards else ""
    progress = migration.progress[shard.index]
    left = migration.unsorted(progress)
    return move, -(-4 * left // progress.waiting) if progress.waiting else 0


def _moves(migration: MigrationState, serving: Iterable[NodeReport]) -> Moves:
    sources = migration.progress[: migration.former]
    left = {one.index for one in sources if migration.unsorted(one) or one.transfers or one.in_flight}
    done = sorted({one.index for one in sources} - left)
    names = tuple(node.name for node in serving)
    return Moves(len(done), migration.former, ranges(done), names)


def _text(shard: ShardReport, move: str) -> str:
    if shard.unreachable is not None:
        return f"Shard {shard.index} · {plain(shard.unreachable)} is unreachable"
    parts = [f"Shard {shard.index}", f"{shard.stats.length:,} waiting"]
    parts += [{"old": "will be removed", "new": "new"}[move]] if move else []
    parts += [f"{shard.moving:,} to sort"] if shard.moving else []
    parts += [f"lag {duration(shard.stats.lag)}"] if shard.stats.lag else []
    parts += [f"{shard.jobs_per_minute:,.0f} a minute"] if shard.jobs_per_minute else []
    parts += ["paused"] if shard.paused_since is not None else []
    parts.append("no owner" if shard.owner is None else plain(shard.owner))
    parts += ["silent"] if shard.owner and shard.alive is False else []
    if shard.running is not None:
        parts.append(f"runs {plain(', '.join(shard.running.ids[:3]))}")
    return " · ".join(parts)


# The picture of a migration: bars of the former shards on the left, of the new ones on the right.

#: Maximum number of bars of a side. With more shards, a bar is of several.
MAX_BARS = 48


@dataclass(frozen=True)
class Bar:
    """Jobs of some shards, ``3`` or ``0-7``: those that claims may take, and those that are to be sorted."""

    shards: str
    sorted: int
    unsorted: int

    @property
    def count(self) -> int:
        """All jobs of the bar."""
        return self.sorted + self.unsorted


@dataclass(frozen=True)
class Picture:
    """Left: jobs to sort, and those that may run in shards that are removed. Right: all others that wait."""

    left: tuple[Bar, ...]
    right: tuple[Bar, ...]

    @property
    def largest(self) -> int:
        """The largest count of a bar."""
        return max(bar.count for bar in (*self.left, *self.right))

    @property
    def sorted(self) -> int:
        """Jobs that claims may take."""
        return sum(bar.sorted for bar in (*self.left, *self.right))

    @property
    def unsorted(self) -> int:
        """Jobs that are to be sorted."""
        return sum(bar.unsorted for bar in (*self.left, *self.right))


def picture_of(state: MigrationState) -> Picture:
    """Return the picture of a migration. Each job is in one bar, and in one bar only."""
    former, shards = state.former, state.shards
    left, right = [], []
    for shard in state.progress:
        unsorted = state.unsorted(shard)
        done = shard.waiting - unsorted
        if shard.index < former:
            left.append((0 if shard.index < shards else done, unsorted))
        if shard.index < shards:
            right.append((done, 0 if shard.index < former else unsorted))
    return Picture(_bars(left), _bars(right))


def _bars(counts: Sequence[tuple[int, int]]) -> tuple[Bar, ...]:
    size = -(-len(counts) // MAX_BARS)
    starts = range(0, len(counts), size)
    return tuple(_bar(start, counts[start : start + size]) for start in starts)


def _bar(start: int, counts: Sequence[tuple[int, int]]) -> Bar:
    shards = ranges(range(start, start + len(counts)))
    return Bar(shards, sum(done for done, _ in counts), sum(unsorted for _, unsorted in counts))


# Charts as SVG text, built from numbers only: no styles, no scripts, no text from users.

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
class Chart:
    """Columns of a span of time, oldest first, each of ``step`` s.

    A column is the sample of its time: what was counted in it, and the largest lag.
    """

    span: Span
    step: int
    columns: Sequence[Sample]

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
    return Chart(span, step, [Sample(n * step, done, failed, lags[n]) for n, (done, failed) in sums.items()])


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


def _columns(found: Sequence[Sample], top: int, width: int, height: int, labelled: bool) -> str:
    step = width / max(1, len(found))
    return "".join(_column(column, i * step, step, top, height, labelled) for i, column in enumerate(found))


def _column(column: Sample, left: float, step: float, top: int, height: int, labelled: bool) -> str:
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


def _label(column: Sample) -> str:
    lag = f" · lag {duration(column.lag)}" if column.lag else ""
    return f"{column.processed:,} processed · {column.failed:,} failed{lag}"
