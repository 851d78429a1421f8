"""A plain task becomes ordered, and plain again, while it is called and worked."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict

import pytest

from tests.waiting import eventually
from tests.worker.nodes import worker
from tests.worker.run_order import phases
from tests.worker.switching import RELEASES, make_app

IDS = 50


class Callers:
    """Calls of each id by ascending numbers, one at a time, from the app of the current release, or of the
    one before: a fleet of callers is not deployed in one moment.
    """

    def __init__(self, url, total):
        self.apps = {release: make_app(release, url) for release in RELEASES}
        self.current = ["plain"]
        self.sent = 0
        self.until = 0
        self._numbers = defaultdict(int)
        self._chance = random.Random(7)
        self._total = total
        self._lock = threading.Condition()
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def call(self, number):
        """Make ``number`` more calls, in the background."""
        with self._lock:
            self.until += number
            self._lock.notify()

    def _call(self):
        while self.sent < self._total:
            with self._lock:
                self._lock.wait_for(lambda: self.sent < self.until)
            order_id = self._chance.randrange(IDS)
            self._numbers[order_id] += 1
            app = self.apps[self._chance.choice(self.current)]
            app.tasks["save_order"].delay(order_id, self._numbers[order_id])
            self.sent += 1


@pytest.fixture
def nodes(tmp_path, settings):
    started = []

    def start(release):
        url = settings["broker_url"]
        log = tmp_path / f"{len(started)}-{release}.log"
        env = {"RELEASE": release, "SWITCHING_URL": url, "SWITCHING_LEDGER": tmp_path / "ledger"}
        app = make_app(release, url)
        started.append(worker(app, log, "-n", f"{len(started)}@test", module="tests.worker.switching", **env))
        eventually(started[-1].ready)
        return started[-1]

    yield start
    for node in started:
        node.teardown()


@pytest.mark.full
def test_no_call_is_lost_on_the_way(nodes, tmp_path, settings):
    """Order holds once all earlier calls have run. With ``-s``, it prints the figures of docs/in-place.md."""
    total = 10_000
    step = total // 10
    path = tmp_path / "ledger"
    callers = Callers(settings["broker_url"], total)
    ends = {}

    def all_have_run():
        return path.read_bytes().count(b"\n") >= callers.until

    def end(phase, condition=lambda: True):
        eventually(condition, 300)
        ends[phase] = time.monotonic()

    def deploy(release):
        callers.current = [callers.current[-1], release]
        for place, old in enumerate(fleet):
            callers.call(step)
            fleet[place] = nodes(release)
            old.container.kill("SIGTERM")
            assert old.exit_status(60) == 0
        callers.current = [release]

    callers.call(2 * step)
    fleet = [nodes("plain") for _ in range(3)]
    end("plain")
    deploy("ordered")
    end("deploy to ordered")
    end("earlier calls", all_have_run)
    callers.call(step)
    end("ordered", all_have_run)
    callers.call(step)
    deploy("back")
    end("deploy to plain")
    end("plain again", all_have_run)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    order = phases(found, ends)
    print("", *order.values(), sep="\n")
    by_id = defaultdict(list)
    for run in found:
        by_id[run["id"]].append(run)
    expected = {(order_id, n) for order_id, each in by_id.items() for n in range(1, len(each) + 1)}
    assert len(found) == total == callers.sent
    assert {(run["id"], run["n"]) for run in found} == expected
    assert (order["ordered"].late, order["ordered"].at_once) == (0, 0)
