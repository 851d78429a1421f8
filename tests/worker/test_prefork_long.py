"""Celery's pool of processes beside lanes, for long: ``nox -s prefork`` runs this for ten minutes."""

from __future__ import annotations

import os
import time
from collections import Counter

import psutil
import pytest
import redis

from tests.waiting import eventually
from tests.worker.checks import overlaps
from tests.worker.test_deaths import settled

pytestmark = pytest.mark.full

MINUTES = float(os.environ.get("LOWKIQ_PREFORK_MINUTES", "0.1"))
#: Calls in a second. A plain task costs a fork, 50 to 100 ms of CPU, on each of the two workers: a machine of
#: two cores is not saturated, and a child that is late hangs.
PLAIN, ORDERED = 2, 50
IDS = 100
#: Seconds until a plain task that was sent has run. A child that hangs is ended by Celery after 4 s.
LATE = 60.0
#: What Celery logs of a child that hangs, or ends by itself.
TROUBLE = ("Timed out waiting for UP message", "WorkerLostError", "exited with")


def send_paced(app, server, turns):
    """Send ordered calls, and a plain task to each worker in each turn. Returns how many ordered calls."""
    record, plain, part = app.tasks["record"], app.tasks["plain"], ORDERED // PLAIN
    began = time.monotonic()
    for turn in range(turns):
        # A moment by the clock is what is waited for.
        eventually(lambda: time.monotonic() >= began + turn / PLAIN)  # noqa: B023
        # Without pace, tasks that wait would hide a child that hangs.
        eventually(lambda: max(server.llen("celery"), server.llen("control")) < 2 * PLAIN, LATE)
        plain.delay(turn)
        plain.apply_async((f"control {turn}",), queue="control")
        numbers = range(turn * part, (turn + 1) * part)
        record.perform_async([{"id": n % IDS, "payload": n, "score": n} for n in numbers])
    return turns * part


def figures(node):
    """Of a worker's main process: threads, descriptors, and MiB."""
    process = psutil.Process(node.container.process.pid)
    return process.num_threads(), process.num_fds(), round(process.memory_info().rss / 2**20, 1)


@pytest.mark.timeout(180 * MINUTES + 600)
def test_celerys_children_are_replaced_beside_lanes(app, empty_redis, start_worker, ledger):
    """Each plain task ends its child. A fork of a process with lanes hangs in half of the cases.

    A worker without ordered queues runs as many plain tasks at the same time: what it has, too, is Celery's.
    """
    options = {"pool": "prefork", "lanes": 2, "PROJ_WORK": "0.001"}
    control = start_worker("--max-tasks-per-child=1", "-Q", "control", **options)
    node = start_worker("--max-tasks-per-child=1", **options)
    node.wait_for_log("ordered queues are served by process")
    before = figures(node)
    sent = int(60 * MINUTES * PLAIN)
    with redis.Redis(unix_socket_path=empty_redis.socket_path) as server:
        ordered = send_paced(app, server, sent)
    by_value = lambda: Counter(line["value"] for line in ledger.lines("plain"))  # noqa: E731
    expected = [value for n in range(sent) for value in (n, f"control {n}")]
    eventually(lambda: len(by_value()) == len(expected), LATE)
    eventually(lambda: settled(app.tasks["record"]))
    after, trouble = figures(node), {}
    for each, name in ((node, "beside lanes"), (control, "control")):
        trouble[name] = {what: each.logs().count(what) for what in TROUBLE}
    ran = {}
    for line in ledger.lines("end"):
        ran.setdefault(line["id"], []).extend(line["payloads"])
    children = {line["pid"] for line in ledger.lines("plain")}
    print(
        f"{MINUTES:g} minutes: {sent} plain tasks on each worker, {len(children)} children; "
        f"{ordered} ordered calls; threads, descriptors, MiB of the main process {before} -> "
        f"{after}; {trouble}; load {os.getloadavg()[0]:.1f}"
    )
    assert by_value() == dict.fromkeys(expected, 1)
    assert ran == {str(n): list(range(n, ordered, IDS)) for n in range(min(IDS, ordered))}
    assert overlaps(ledger.lines()) == []
    assert trouble["beside lanes"] == trouble["control"] == dict.fromkeys(TROUBLE, 0)
    assert node.logs().count("ordered queues are served by process") == 1
    assert after[0] == 1
    assert after[1] <= before[1] + 6
    for each in (node, control):
        each.kill("SIGTERM")
        assert each.exit_status() == 0, each.logs()
