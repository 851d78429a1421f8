"""Ordered tasks that are registered while a worker runs."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from celery.contrib.testing.worker import start_worker

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.bootstep import step
from tests.waiting import eventually
from tests.worker.users import ROOT, users_pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("root_level")

CONFIG = """
import pytest

@pytest.fixture(scope="session")
def celery_config(lowkiq_server):
    return {"broker_url": lowkiq_server.url, "result_backend": "cache+memory://"}
"""
HEAD = """
import logging
import pytest
from celery_lowkiq import ordered_task

"""
THREADS = """
@pytest.fixture(scope="session")
def celery_worker_pool():
    return "threads"
"""


@pytest.fixture
def passes(pytester, monkeypatch):
    """Run a user's tests with Celery's own plugin, which pytest-celery replaces where both are."""
    pytester.makeini("[pytest]\naddopts = -p no:celery -p celery.contrib.pytest")
    return users_pytest(pytester, monkeypatch, conftest=CONFIG)


@pytest.fixture
def late_task(app):
    """Registers an ordered task that keeps what its runs get."""
    app.finalize()

    def register(name, **options):
        got = []

        @ordered_task(app=app, name=name, **options)
        def run(payloads_by_id):
            got.append(payloads_by_id)

        return app.tasks[name], got

    return register


@pytest.fixture
def said(monkeypatch):
    """The messages that contain a text; looks for late tasks come often. A worker takes the handlers of the
    root logger away, and caplog's with them.
    """
    monkeypatch.setattr(step, "LOOK", 0.05)
    messages = []

    class Keep(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("celery_lowkiq"), Keep(logging.WARNING)
    logger.addHandler(handler)
    yield lambda part: [message for message in messages if part in message]
    logger.removeHandler(handler)


def in_process(app):
    return start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, loglevel="WARNING")


@pytest.mark.full
def test_celerys_pytest_idiom(passes):
    """F9: the task never ran, without a word. The first begins with the lanes, the second joins them."""
    passes(
        HEAD
        + THREADS
        + """
def test_it(celery_app, celery_worker):
    @celery_app.task
    def plain(x):
        return x

    @ordered_task(app=celery_app)
    def first(payloads_by_id):
        return "first"

    celery_worker.reload()
    assert plain.delay(3).get(timeout=30) == 3
    assert first.delay("1", "x").get(timeout=30) == "first"

    @ordered_task(app=celery_app, rate_limit="100/s")
    def second(payloads_by_id):
        return "second"

    celery_worker.reload()
    assert second.delay("1", "x").get(timeout=30) == "second"
    assert first.delay("1", "x").get(timeout=30) == "first"
""",
        1,
    )


@pytest.mark.full
def test_the_idiom_with_a_pool_that_cannot_serve_warns(passes):
    """F9: Celery's fixture has the pool "solo" by default."""
    passes(
        HEAD
        + """
def test_it(celery_app, celery_worker, caplog):
    caplog.set_level(logging.WARNING, "celery_lowkiq")
    @ordered_task(app=celery_app, name="late")
    def late(payloads_by_id):
        pass

    celery_worker.reload()
    celery_worker.reload()
    said = [record.getMessage() for record in caplog.records if "late" in record.getMessage()]
    assert said == [
        "ordered queues (late) are not served: ordered queues need the pool threads or prefork: "
        "start a worker with -P threads"
    ]
""",
        1,
    )


@pytest.mark.parametrize(
    "begin", [lambda worker: worker.reload(), lambda worker: worker.app.control.pool_restart()]
)
def test_a_late_task_without_a_reload_is_named_once(app, late_task, said, begin):
    app.conf.worker_pool_restarts = True
    with in_process(app) as worker:
        task, got = late_task("late_one")
        task.delay("1", "waits")
        late = worker.consumer.ordered_queues._late
        # In Celery 5.5 a second worker of a process has the event loop and timers of the first one.
        eventually(lambda: late.look() or said("late_one"))
        late.look()
        late.look()
        (warning,) = said("late_one")
        assert "(late_one), because their tasks were registered after its start" in warning
        assert got == []
        begin(worker)
        eventually(lambda: got == [{"1": ["waits"]}])
    assert len(said("late_one")) == 1


def test_a_late_queue_can_be_added(app, late_task):
    """``add_consumer`` asked the broker for a queue of that name, and its calls waited."""
    with in_process(app) as worker:
        task, got = late_task("late_two")
        task.delay("1", "waits")
        answers = app.control.add_consumer("late_two", reply=True, timeout=5.0)
        assert [answer for reply in answers for answer in reply.values()] == [{"ok": "add consumer late_two"}]
        eventually(lambda: got == [{"1": ["waits"]}])
        assert "late_two" not in worker.app.amqp.queues.consume_from


def test_a_fixed_splitter_names_the_queue_that_it_cannot_serve(app, late_task, said):
    app.conf.lowkiq_splitter = "default"
    with in_process(app) as worker:
        late_task("late_three")
        worker.reload()
        worker.reload()
        assert len(said("late_three")) == 1
        assert "deals shards once" in said("late_three")[0]


def test_two_late_tasks_of_one_queue_are_refused_and_stop_nothing(app, late_task, said):
    with in_process(app) as worker:
        late_task("late_four", queue_name="shared")
        late_task("late_five", queue_name="shared")
        worker.reload()
        worker.reload()
        assert len(said("queue_name='shared'")) == 1
        app.tasks["record"].delay("1")
        eventually(lambda: app.tasks["record"].ordered_queue.stats().processed == 1)


WITHOUT_STEP = """
import logging, sys
from celery import Celery
from celery._state import _task_stack
app = Celery("plain", set_as_current=False)
@app.task(bind=True)
def imports(self):
    assert "celery_lowkiq" not in sys.modules
    from celery_lowkiq import ordered_task
    for name in ("one", "two"):
        @ordered_task(app=app, name=name)
        def run(payloads_by_id):
            pass
app.finalize()
app.loader.init_worker()
logging.basicConfig(format="%(levelname)s %(message)s")
imports.push_request(called_directly=False)
_task_stack.push(imports)
imports.run()
"""


def test_a_worker_that_started_without_this_package_warns():
    """Nothing of it looks for ordered tasks: the first that a run registers is named at once."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_STEP], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("WARNING this worker does not serve the ordered queues (one), because")
