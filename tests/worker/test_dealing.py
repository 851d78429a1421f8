"""Which lane, and which node, gets which shard: the same in every process."""

from __future__ import annotations

import pytest

from celery_lowkiq.integration.inspector import Inspector
from tests.marks import first_often
from tests.waiting import eventually
from tests.worker import many
from tests.worker.dealing import SHARDS

README = {
    "lane-0": ["A/0", "B/0", "B/3", "D/1"],
    "lane-1": ["A/1", "B/1", "C/0"],
    "lane-2": ["A/2", "B/2", "D/0"],
}
#: Ways to start a process in which tasks are registered in another order.
STARTS = [
    {"module": "tests.worker.dealing", "PYTHONHASHSEED": 1},
    {"module": "tests.worker.dealing_again", "PYTHONHASHSEED": 2, "PYTHONOPTIMIZE": 1},
    {"module": "tests.worker.dealing", "PYTHONHASHSEED": 3, "PYTHONOPTIMIZE": 2, "PYTHONMALLOC": "malloc"},
]


def dealt(app):
    """Shards by lane, by node."""
    return {
        report.name: {lane.name: [str(shard) for shard in lane.shards] for lane in report.lanes}
        for report in Inspector(app).nodes()
    }


def count(nodes):
    return sum(len(shards) for lanes in nodes.values() for shards in lanes.values())


@pytest.mark.parametrize("start", first_often(STARTS), ids=[str(number) for number in range(len(STARTS))])
def test_o1_a_worker_deals_its_shards_to_three_lanes_as_lowkiqs_readme_does(app, start_worker, start):
    """O1: queues are sorted by name, in whatever order the tasks were registered."""
    start_worker(lanes=3, **start)
    eventually(lambda: count(dealt(app)) == 10)
    assert dealt(app) == {"w0@test": README}


@pytest.mark.parametrize("second", first_often([1, 2]))
def test_o1_the_parts_of_two_nodes_cover_all_shards(app, settings, start_worker, second):
    """O1: a fixed splitter gets the same list in both processes."""
    settings["lowkiq_splitter"] = "tests.worker.parts:first"
    start_worker(lanes=3, **STARTS[0])
    settings["lowkiq_splitter"] = "tests.worker.parts:second"
    start_worker(lanes=3, **STARTS[second])
    nodes = eventually(lambda: (found := dealt(app)) and count(found) == 10 and found)
    everything = {f"{name}/{number}" for name, shards in SHARDS.items() for number in range(shards)}
    assert {shard for lanes in nodes.values() for shards in lanes.values() for shard in shards} == everything
    assert sorted(nodes["w0@test"]["lane-0"]) == ["A/0", "B/3"]


@pytest.mark.full
@pytest.mark.timeout(420)
def test_m1_a_worker_takes_2400_shards_and_another_all_that_a_killed_one_had(app, settings, start_worker):
    """M1: within 5 s and 1.05 lease times + 3 s on a machine with nothing else to do; here, at all, and each
    shard is served.
    """
    settings["lowkiq_lease_seconds"] = 4.0

    def shards():
        """How many each living node has."""
        alive = [report for report in Inspector(app).nodes() if report.alive]
        return {report.name: sum(lane.shard_count for lane in report.lanes) for report in alive}

    everything = many.QUEUES * many.SHARDS
    first = start_worker(module="tests.worker.many")
    eventually(lambda: shards() == {"w0@test": everything}, 120)
    start_worker(module="tests.worker.many")
    eventually(lambda: shards() == {"w0@test": everything // 2, "w1@test": everything // 2}, 120)
    first.kill("SIGKILL")
    first.exit_status()
    eventually(lambda: shards() == {"w1@test": everything}, 120)
    with many.make_app(**settings) as made:
        task = made.tasks["many-50"]
        task.perform_async([{"id": n} for n in range(1000)])
        eventually(lambda: task.ordered_queue.stats().processed == 1000, 60)
