"""The map of a queue: its lanes with their shards, and what each works."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from celery_lowkiq.rules.reports import NodeReport, Running, ShardReport
from celery_lowkiq.rules.resharding import MigrationState
from celery_lowkiq.rules.shard_hints import LATE
from celery_lowkiq.rules.text import duration, ranges

from .formatting import plain

#: Lag (s) from which a shard is very late.
VERY_LATE = 300.0
#: Numbers of jobs from which the colour is darker.
STEPS = (1, 10, 100, 1000)
#: Shards of each lane up to which two lanes stand side by side.
NARROW = 7
#: Maximum number of rows for single lanes; with more, a row is of a node, and the last one of all others.
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
    #: Whether nothing is known of it, since its master is away.
    away: bool = False


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
    """Which shards of the old number have nothing left to sort, and the nodes that move the others."""

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
    #: Whether rows are of nodes, since there are too many lanes.
    is_of_nodes: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether two rows stand side by side."""
        longest = max((len(row.cells) for row in self.rows if row.node), default=0)
        return not self.is_of_nodes and longest <= NARROW

    @property
    def groups(self) -> list[tuple[str, tuple[Row, ...]]]:
        """The rows that stand together, with the node of all of them, or ""."""
        if self.is_of_nodes:
            return [("", self.rows)]
        return [(name, tuple(rows)) for name, rows in groupby(self.rows, key=lambda row: row.node)]

    @property
    def unowned(self) -> int:
        """Number of shards without a living owner, as far as their masters answer."""
        return sum(cell.kind == "unowned" and not cell.away for row in self.rows for cell in row.cells)


def lane_map(
    queue: str,
    shards: Sequence[ShardReport],
    nodes: Sequence[NodeReport],
    migration: MigrationState | None = None,
) -> LaneMap:
    """Return the map of a queue. It is as long as the number of shards, and has MAX_ROWS rows at most."""
    serving = [node for node in nodes if node.alive and queue in node.queues]
    found = _lane_rows(shards, serving, migration)
    is_of_nodes = len(found) > MAX_ROWS
    if is_of_nodes:
        found = _together(found)
    lanes = [lane for node in serving for lane in node.lanes]
    busy = sum(lane.running is not None and lane.running.shard.queue == queue for lane in lanes)
    moves = _moves(migration, serving) if migration else None
    return LaneMap(tuple(found), len(shards), len(lanes), busy, moves, is_of_nodes)


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


def _together(rows: Iterable[Row]) -> list[Row]:
    """A row for each node; for the last ones together, if there are too many."""
    by_node: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_node[row.node].append(row)
    names = [name for name in by_node if name]
    if len(names) >= MAX_ROWS:
        last = names[MAX_ROWS - 2 :]
        by_node[f"{len(last)} more nodes"] = [row for name in last for row in by_node.pop(name)]
        if "" in by_node:
            by_node[""] = by_node.pop("")
    return [_sum_of(name, found) for name, found in by_node.items()]


def _sum_of(name: str, rows: Sequence[Row]) -> Row:
    cells = sorted((cell for row in rows for cell in row.cells), key=lambda cell: cell.index)
    lanes = sum(row.lanes for row in rows)
    return Row(name, "", tuple(cells), None, lanes, sum(row.busy for row in rows))


def cell_of(shard: ShardReport, migration: MigrationState | None = None) -> Cell:
    """Return the cell of a shard: its colour, and its state as text."""
    move, unsorted = _move(shard, migration) if migration else ("", 0)
    away, runs = shard.away is not None, shard.running is not None
    return Cell(shard.index, _kind(shard), _text(shard, move), runs, move, unsorted, away)


def _kind(shard: ShardReport) -> str:
    stats = shard.stats
    if shard.away is not None or shard.owner is None or shard.alive is False:
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
    if shard.away is not None:
        return f"Shard {shard.index} · {plain(shard.away)} is away"
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
