"""Longer than the default tests: two workers, kills of workers and of Redis, for a minute."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from tests.waiting import eventually
from tests.worker.checks import overlaps
from tests.worker.conftest import app, ledger, settings, start_worker  # noqa: F401 - fixtures

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SECONDS = float(os.environ.get("LOWKIQ_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("LOWKIQ_CHAOS_SEED", "1"))


@pytest.fixture
def store_server(settings):  # noqa: F811
    """A store that survives its own death, as with appendfsync always."""
    with EmbeddedServer(port=0, appendonly=True, config={"appendfsync": "always"}) as server:
        settings.update(lowkiq_url=server.url)
        yield server


def test_nothing_is_lost_whatever_dies(store_server, app, start_worker, ledger):  # noqa: F811
    """Two workers that share the shards; what dies is started again."""
    print(f"LOWKIQ_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    record = app.tasks["record"]
    pushed: dict[str, list[int]] = defaultdict(list)
    nodes = [start_worker(PROJ_WORK="0.002") for _ in range(2)]
    faults = 0
    ends_at = time.monotonic() + SECONDS
    step = 0
    while time.monotonic() < ends_at:
        step += 1
        record.perform_async([{"id": n, "payload": step, "score": step} for n in range(100)])
        for n in range(100):
            pushed[str(n)].append(step)
        done = len(ledger.lines("end"))
        ledger.wait_for("end", done + chance.randint(1, 60))
        what = chance.random()
        if what < 0.4:
            position = chance.randrange(2)
            nodes[position].kill("SIGKILL")
            nodes[position].exit_status()
            nodes[position] = start_worker(PROJ_WORK="0.002")
            faults += 1
        elif what < 0.6:
            store_server.kill()
            store_server.restart()
            faults += 1
    eventually(lambda: (s := record.ordered_queue.stats()).length == s.busy == 0, 120)
    lines = ledger.lines()
    processed = defaultdict(set)
    for line in lines:
        if line["event"] == "end":
            assert line["payloads"] == sorted(line["payloads"])
            processed[line["id"]] |= set(line["payloads"])
    print(f"{faults} faults, {step * 100} payloads, {len(lines)} lines")
    assert faults > 0
    assert {job_id: processed[job_id] for job_id in pushed} == {i: set(steps) for i, steps in pushed.items()}
    assert overlaps(lines) == []
    assert record.ordered_queue.stats().morgue_length == 0
