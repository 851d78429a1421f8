"""One scene for all golden files: a worker, and jobs in each state that they can be in."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from starlette.testclient import TestClient

from celery_lowkiq import Tracker, track
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.web import make_app
from tests.foreign import drop_shared
from tests.golden import shop
from tests.waiting import eventually
from tests.web.migrating import begun
from tests.worker.listening import Listener
from tests.worker.nodes import Worker, worker

#: When delayed jobs are due: always in the future, and the same in each run.
FAR = 9_000_000_000.0
NODE = "golden@test"


@dataclass
class Scene:
    """The app with its worker, the dashboard, a tracker, and a listener to its events."""

    app: Celery
    node: Worker
    browser: TestClient
    tracker: Tracker
    listener: Listener


@contextlib.contextmanager
def scene(directory: Path) -> Iterator[Scene]:
    """A lane that runs a job for too long; jobs that wait, failed, died, are held, paused or due far ahead.

    Raises AssertionError when the worker does not get there.
    """
    with EmbeddedServer() as server, contextlib.ExitStack() as stack:
        app = shop.app
        settings = {"broker_url": server.url, "lowkiq_url": server.url}
        app.conf.update(settings)
        drop_shared(app, shop.__name__)
        listener = stack.enter_context(Listener(app, "task-", "lowkiq-", "worker-online"))
        env = {"SHOP_GATE": directory / "gate", "SHOP_SETTINGS": json.dumps(settings)}
        node = worker(
            app,
            directory / "log",
            "-E",
            "-n",
            NODE,
            "-X",
            "moved",
            module="tests.golden.shop",
            lanes=1,
            **env,
        )
        stack.callback(node.teardown)
        eventually(lambda: node.ready() or node.container.status == "exited")
        assert node.ready(), node.logs()
        eventually(lambda: listener.of("worker-online"))
        tracker = _fill(app, listener)
        browser = TestClient(make_app(app), base_url="http://localhost:5556", client=("127.0.0.1", 50000))
        _change(browser, queue="mail", action="pause_ids", ids=["p"])
        begun(app, Inspector(app).queue("moved"), 3)
        yield Scene(app, node, browser, tracker, listener)


def _change(browser: TestClient, **change: Any) -> None:
    answer = browser.post("/api/v1/changes", json={**change, "wait": 10})
    assert answer.status_code == 200, answer.text


def _fill(app: Celery, listener: Listener) -> Tracker:
    held, failing, mail, slow, moved = (app.tasks[n] for n in ("held", "failing", "mail", "slow", "moved"))
    mail.apply_async(("done", "ok"), score=1)
    eventually(lambda: mail.ordered_queue.stats().processed == 1)
    mail.apply_async(("d", "bad"), score=1)
    held.apply_async(("h", {"n": 1}), score=1)
    failing.apply_async(("f", "late"), score=1)
    moved.apply_async(("m", "there"), score=1)
    eventually(lambda: mail.ordered_queue.stats().morgue_length == 1)
    eventually(lambda: held.ordered_queue.stats().morgue_length == 1)
    eventually(lambda: failing.ordered_queue.stats().retries == 1)
    held.apply_async(("h", {"n": 2}), score=2)
    mail.perform_async(
        [
            {"id": "w", "payload": {"v": 1, "text": "\u00e4"}, "score": 1, "perform_in": FAR},
            {"id": "w", "payload": 2, "score": 2.5, "perform_in": FAR},
            {"id": "p", "payload": "x" * 40, "score": 3, "perform_in": FAR},
        ]
    )
    with track("import", app=app) as tracker:
        failing.apply_async(("t", {"n": 1}), score=1, tracker=tracker)
    eventually(lambda: failing.ordered_queue.stats().retries == 2)
    slow.apply_async(("r", "now"), score=1)
    eventually(lambda: slow.ordered_queue.stats().busy == 1)
    slow.apply_async(("s", "next"), score=1)
    eventually(lambda: listener.of("lowkiq-overdue"))
    eventually(
        lambda: any(
            lane.running and lane.running.overdue for node in Inspector(app).nodes() for lane in node.lanes
        )
    )
    eventually(lambda: Inspector(app).queue("mail").history())
    return tracker
