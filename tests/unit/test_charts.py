"""Tests of ``web/charts.py``."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.resharding import MigrationState, Phase, ShardProgress
from celery_lowkiq.rules.text import ranges
from celery_lowkiq.rules.views import LaneReport, NodeReport, Running, ShardReport, Stats
from celery_lowkiq.web.charts import MAX_ROWS, lane_map


def node(name, lanes, runs=None, queue="orders", **others):
    """A node whose lanes have shards; ``runs``: ids that lanes run, of their first shards."""
    reports = []
    for lane, indexes in lanes.items():
        shards = tuple(ShardRef("orders", index) for index in indexes)
        job_id = (runs or {}).get(lane)
        shard = shards[0] if shards and queue == "orders" else ShardRef(queue, 0)
        running = Running(shard, (job_id,), 1, 2.0) if job_id else None
        reports.append(LaneReport(lane, shards, len(shards), running))
    options = {"quiet": False, "stopping": False, "silent": 1.0, **others}
    return NodeReport(name, f"{name}-1", 1, 10.0, queues=("orders",), lanes=tuple(reports), **options)


def shards(count, nodes, **stats):
    """Shards that the nodes list, and others without an owner."""
    for index in range(count):
        ref = ShardRef("orders", index)
        owner = next((one for one in nodes if one.lane_of(ref)), None)
        lane = owner.lane_of(ref).name if owner else None
        name, running = (owner.name, owner.running(ref)) if owner else (None, None)
        yield ShardReport(
            index, Stats(**stats), name, 1, 1.0, bool(owner and owner.alive), 1.0, running, None, lane=lane
        )


def mapped(count, *nodes, migration=None, **stats):
    return lane_map("orders", tuple(shards(count, nodes, **stats)), nodes, migration)


def rows_of(found):
    return {(row.node, row.lane): ranges(cell.index for cell in row.cells) for row in found.rows}


def test_each_shard_is_in_the_row_of_its_lane():
    found = mapped(6, node("b", {"lane-10": [1], "lane-9": [0, 3]}), node("a", {"lane-0": [2], "lane-1": []}))
    assert list(rows_of(found).items()) == [
        (("a", "lane-0"), "2"),
        (("a", "lane-1"), ""),
        (("b", "lane-9"), "0,3"),
        (("b", "lane-10"), "1"),
        (("", ""), "4-5"),
    ]
    assert (found.unowned, found.lanes, found.busy) == (2, 4, 0)


def test_a_row_has_what_its_lane_runs():
    found = mapped(3, node("a", {"lane-0": [0, 1], "lane-1": [2]}, {"lane-0": "42"}))
    first, second = found.rows
    assert (first.running.ids, first.running.seconds, second.running) == (("42",), 3.0, None)
    assert [cell.runs for cell in first.cells] == [True, False]
    assert found.busy == 1


def test_a_lane_may_run_a_batch_of_another_queue():
    found = mapped(1, node("a", {"lane-0": [0]}, {"lane-0": "7"}, queue="invoices"))
    assert found.rows[0].running.shard == ShardRef("invoices", 0)
    assert (found.busy, found.rows[0].cells[0].runs) == (0, False)


def test_a_silent_node_works_nothing():
    found = mapped(2, node("a", {"lane-0": [0, 1]}, silent=11.0))
    assert rows_of(found) == {("", ""): "0-1"}


@pytest.mark.parametrize(
    "nodes, lanes, rows", [(4, 16, 64), (5, 16, MAX_ROWS - 1), (63, 2, MAX_ROWS - 1), (200, 16, MAX_ROWS - 1)]
)
def test_rows_are_bounded_and_each_shard_has_its_cell(nodes, lanes, rows):
    count = 4096
    found = mapped(
        count,
        *(
            node(f"n{n:03}", {f"lane-{m}": range(n * lanes + m, count, nodes * lanes) for m in range(lanes)})
            for n in range(nodes)
        ),
    )
    assert len(found.rows) == rows
    assert found.lanes == nodes * lanes
    cells = sorted(cell.index for row in found.rows for cell in row.cells)
    assert cells == list(range(count))
    assert sum(row.lanes for row in found.rows) == nodes * lanes


def moving(former, new, left, **others):
    progress = tuple(
        ShardProgress(index, f"{former}>{new}", 8, left.get(index, 0), 0, 0, 0, 0)
        for index in range(max(former, new))
    )
    return MigrationState("orders", 1, Phase.MOVE, former, new, 1.0, None, None, progress, **others)


def test_a_move_shows_old_and_new_numbers_and_what_is_left():
    nodes = node("a", {"lane-0": [0, 1, 2]}), node("b", {"lane-0": [3, 4, 5]})
    found = mapped(6, *nodes, migration=moving(4, 6, {1: 8, 2: 1}))
    cells = [cell for row in found.rows for cell in row.cells]
    assert [cell.move for cell in cells] == ["", "", "", "", "new", "new"]
    assert [cell.unsorted for cell in cells] == [0, 4, 1, 0, 0, 0]
    assert (found.moves.moved, found.moves.done, found.moves.nodes) == (2, "0,3", ("a", "b"))
    fewer = mapped(6, *nodes, migration=moving(6, 4, {5: 4}))
    assert [cell.move for row in fewer.rows for cell in row.cells] == ["", "", "", "", "old", "old"]
    assert "will be removed" in fewer.rows[1].cells[1].text
