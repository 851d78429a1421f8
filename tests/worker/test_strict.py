"""lowkiq_exclusion = "strict": no instruction of a task runs after its lease."""

from __future__ import annotations

import signal
import time

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="strict needs Linux")


@pytest.fixture
def settings(settings):
    return {**settings, "lowkiq_exclusion": "strict"}


def test_a_worker_that_is_frozen_past_its_lease_never_wakes(app, start_worker, ledger):
    """It dies while it is stopped, and another worker does its job."""
    record = app.tasks["record"]
    record.delay("1", "payload")
    frozen = start_worker(PROJ_WORK="30")
    ledger.wait_for("start")
    frozen.kill("SIGSTOP")
    stopped_at = time.monotonic()
    assert frozen.exit_status() == -signal.SIGKILL
    lived = time.monotonic() - stopped_at
    other = start_worker()
    (end,) = ledger.wait_for("end")
    assert end["pid"] == other.container.process.pid
    # The lease of 1 s had 0.8 s left at most.
    assert lived < 0.8 + 1.0


@pytest.mark.full
def test_an_idle_worker_that_is_frozen_goes_on(app, start_worker, ledger):
    node = start_worker()
    app.tasks["record"].delay("1")
    ledger.wait_for("end")
    # Idle it is when the job's end is stored: else the other one runs it again.
    eventually(lambda: (s := app.tasks["record"].ordered_queue.stats()).processed == 1 and s.busy == 0)
    owner = {lease.owner for lease in observe(app)}
    node.kill("SIGSTOP")
    counters = [lease.counter for lease in observe(app)]
    other = start_worker()
    eventually(lambda: {lease.owner for lease in observe(app)}.isdisjoint(owner))
    node.kill("SIGCONT")
    other.kill("SIGTERM")
    assert other.exit_status() == 0
    app.tasks["record"].delay("2")
    (_, end) = ledger.wait_for("end", 2)
    assert end["pid"] == node.container.process.pid
    assert all(now.counter > before for now, before in zip(observe(app), counters, strict=True))


def observe(app):
    task = app.tasks["record"]
    return task.ordered_queue._context.store.observe(task.queue_spec.shard_refs())


@pytest.mark.full
def test_a_run_that_never_ends_ends_with_its_worker(settings, app, start_worker, ledger):
    """``max_run`` is over: its lease is not renewed, and others get its shard. P3: the log says so before."""
    settings["lowkiq_lease_seconds"] = 3.0
    gated, record = app.tasks["gated"], app.tasks["record"]
    gated.delay("1")
    node = start_worker()
    ledger.wait_for("start")
    assert node.exit_status() == -signal.SIGKILL
    assert "has run job" in node.logs()
    assert "strict exclusion ends this process (SIGKILL)" in node.logs()
    record.delay("other")
    start_worker()
    ledger.wait_for("end")


@pytest.fixture
def mortal(settings):
    """A store of its own, that may end."""
    settings["lowkiq_lease_seconds"] = 3.0
    with EmbeddedServer(port=0, appendonly=True, config={"appendfsync": "always"}) as store:
        settings["lowkiq_url"] = store.url
        yield store


def test_redis_away_for_longer_than_the_lease_ends_what_runs_and_nothing_else(
    mortal, app, start_worker, ledger
):
    record = app.tasks["record"]
    record.delay("1")
    busy = start_worker(PROJ_WORK="30")
    ledger.wait_for("start")
    idle = start_worker()
    mortal.kill()
    assert busy.exit_status() == -signal.SIGKILL
    # P3
    *_, last = [line for line in busy.logs().splitlines() if "/MainProcess]" in line]
    assert "CRITICAL" in last
    assert "strict exclusion ends this process (SIGKILL) in 0." in last
    assert "a batch of shard record/" in last
    assert "strict exclusion" not in idle.logs()
    mortal.restart()
    (end,) = ledger.wait_for("end")
    assert end["pid"] == idle.container.process.pid
    eventually(lambda: record.ordered_queue.stats().processed == 1)
