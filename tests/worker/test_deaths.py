"""R8 and R22: payloads that kill their worker are found and buried; the shards of the dead are soon taken."""

from __future__ import annotations

import time
from functools import partial

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from tests.marks import first_often
from tests.outages import away
from tests.waiting import eventually
from tests.worker.checks import shares

#: 1.05 T until a silent owner is given up, T/5 between looks, and 1 s; with T = 1 s.
TAKEOVER_LEASES = 1.05 + 0.2 + 1.0
#: What a machine that has other things to do may take longer.
BUSY_MACHINE = 2.0


@pytest.mark.parametrize("how", first_often(["kill", "exit", "segfault"]))
def test_a_payload_that_kills_is_buried_after_max_crashes_of_its_own(app, start_worker, ledger, how):
    """A death of the whole batch marks its jobs; only deaths of a job that ran alone count."""
    batches = app.tasks["batches"]
    payloads = {"killer": how, "mate-1": "good", "mate-2": "good"}
    batches.perform_async([{"id": name, "payload": what, "perform_in": 1} for name, what in payloads.items()])
    deaths = 0
    while not settled(batches):
        node = start_worker(wait=False)
        eventually(partial(ended_or_settled, node, batches), 60)
        deaths += node.container.status == "exited"
    assert deaths == 1 + batches.max_crashes
    (buried,) = batches.ordered_queue.morgue().items
    assert buried.id == "killer"
    assert buried.error.startswith("poison pill")
    survivors = [job_id for line in ledger.lines("survived") for job_id in line["ids"]]
    assert sorted(survivors) == ["mate-1", "mate-2"]
    first, *others = (list(line["payloads"]) for line in ledger.lines("batch"))
    assert len(first) == 3
    assert all(len(batch) == 1 for batch in others)


def ended_or_settled(node, task):
    return node.container.status == "exited" or settled(task)


def settled(task):
    stats = task.ordered_queue.stats()
    return stats.length == stats.busy == 0


@pytest.mark.full
def test_who_dies_together_with_redis_is_not_to_blame(settings, app, start_worker, ledger, tmp_path):
    gated = app.tasks["gated"]
    with EmbeddedServer(port=0, appendonly=True, config={"appendfsync": "always"}) as store:
        settings["lowkiq_url"] = app.conf.lowkiq_url = store.url
        gated.delay("1")
        for number in range(1 + gated.max_crashes):
            node = start_worker()
            ledger.wait_for("start", number + 1)
            with away(store):
                node.kill("SIGKILL")
                node.exit_status()
        (tmp_path / "gate").touch()
        start_worker()
        ledger.wait_for("end")
        eventually(lambda: gated.ordered_queue.stats().processed == 1)
        assert gated.ordered_queue.stats().morgue_length == 0


@pytest.mark.parametrize("deaths", first_often([1, 3]))
def test_the_shards_of_a_dead_worker_are_soon_taken(app, start_worker, deaths):
    nodes = [start_worker(), start_worker()]
    for death in range(deaths):
        if death:
            nodes = [nodes[1], start_worker()]
        eventually(lambda: shares(app) == [7, 7], 60)
        died_at = time.monotonic()
        nodes[0].kill("SIGKILL")
        eventually(lambda: shares(app) == [14])
        seconds = time.monotonic() - died_at
        print(f"taken over {seconds:.2f} s after a death")
        assert seconds <= TAKEOVER_LEASES + BUSY_MACHINE
