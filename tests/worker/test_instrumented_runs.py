"""Packages that instrument Celery see each run, also of a call that comes without a header of theirs.

A run that nothing observes is a plain one, which none of them would see.
"""

from __future__ import annotations

import pytest

from tests.worker.users import users_pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.full

PROJECT = """
from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("proj", broker="redis://localhost:1/0")
seen = []
look = lambda: "the function"

@ordered_task(app=app, shared=False, shards=1)
def sync(payloads_by_id):
    seen.append(look())
"""
COMMON = """
import pytest
import proj
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.request import RunObservers
from celery_lowkiq.rules.models import Call
from proj import app, seen, sync
from tests.waiting import eventually

observed = []
look_at_run = RunObservers.look

def noted(observers):
    found = look_at_run(observers)
    observed.append(found is not None)
    return found

RunObservers.look = noted

@pytest.fixture
def lowkiq_app(lowkiq_server):
    app.conf.broker_url = lowkiq_server.url
    return app

def push():
    # As a process without the package does it.
    context_of(app).store.push(sync.queue_spec, [Call("1", b'"x"')])

def run_once(lowkiq):
    with lowkiq.worker():
        push()
        eventually(lambda: seen)

"""


@pytest.fixture
def passes(pytester, monkeypatch):
    run = users_pytest(pytester, monkeypatch, proj=PROJECT)

    def passes(*, before: str = "", test: str) -> None:
        run(before + COMMON + test, 1)

    return passes


def test_without_a_package_the_run_is_a_plain_one(passes):
    passes(
        test="""
def test_it(lowkiq):
    run_once(lowkiq)
    assert (seen, observed) == (["the function"], [False])
"""
    )


def test_sentry(passes):
    pytest.importorskip("sentry_sdk")
    passes(
        before="""
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

class Kept(Transport):
    def capture_envelope(self, envelope):
        pass

sentry_sdk.init(
    "https://key@localhost/1", transport=Kept, traces_sample_rate=1.0, integrations=[CeleryIntegration()]
)
""",
        test="""
def test_it(lowkiq):
    proj.look = lambda: sentry_sdk.get_current_scope().transaction.name
    run_once(lowkiq)
    assert (seen, observed) == (["proj.sync"], [True])
""",
    )


def test_opentelemetry(passes):
    pytest.importorskip("opentelemetry.instrumentation.celery")
    passes(
        before="""
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
CeleryInstrumentor().instrument()
""",
        test="""
def test_it(lowkiq):
    proj.look = lambda: trace.get_current_span().name
    run_once(lowkiq)
    assert (seen, observed) == (["run/proj.sync"], [True])
""",
    )


def test_new_relic(passes, monkeypatch):
    pytest.importorskip("newrelic", reason="newrelic is no test requirement, for its size")
    # No connection, and no key.
    monkeypatch.setenv("NEW_RELIC_DEVELOPER_MODE", "true")
    passes(
        before="""
import newrelic.agent

newrelic.agent.initialize()
newrelic.agent.register_application(timeout=10)
""",
        test="""
def test_it(lowkiq):
    proj.look = lambda: newrelic.agent.current_transaction().name
    run_once(lowkiq)
    assert (seen, observed) == (["proj.sync"], [True])
""",
    )


def test_datadog(passes, monkeypatch):
    pytest.importorskip("ddtrace", reason="ddtrace is no test requirement, for its size")
    for name in ("DD_INSTRUMENTATION_TELEMETRY_ENABLED", "DD_REMOTE_CONFIGURATION_ENABLED"):
        monkeypatch.setenv(name, "false")
    passes(
        before="""
import ddtrace
from ddtrace.trace import tracer

ddtrace.patch(celery=True)
""",
        test="""
def test_it(lowkiq):
    proj.look = lambda: tracer.current_span().resource
    run_once(lowkiq)
    assert (seen, observed) == (["proj.sync"], [True])
""",
    )


def test_django(passes, monkeypatch):
    """Not a tool: a project closes its connections around each run."""
    pytest.importorskip("django")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "site_settings")
    passes(
        before="""
import sys
from types import ModuleType

sys.modules["site_settings"] = ModuleType("site_settings")
""",
        test="""
def test_it(lowkiq):
    run_once(lowkiq)
    assert (seen, observed) == (["the function"], [True])
""",
    )


def test_flower(passes):
    pytest.importorskip("flower")
    passes(
        before="""
import threading
from types import SimpleNamespace
from flower.events import Events
""",
        test="""
def test_it(lowkiq):
    # In place of tornado's loop: no page is served.
    loop = SimpleNamespace(add_callback=lambda function, *about: function(*about))
    events = Events(app, loop, max_tasks_in_memory=10)
    threading.Thread.start(events)
    def runs():
        app.control.enable_events()
        push()
        return [task.name for task in events.state.tasks.values() if task.state == "SUCCESS"]
    # Without heartbeats there are no events.
    with lowkiq.worker(without_heartbeat=False):
        eventually(lambda: events.state.workers)
        eventually(runs)
    assert observed[-1]
""",
    )


def test_celery_prometheus_exporter(passes):
    pytest.importorskip("celery_prometheus_exporter")
    passes(
        before="""
from celery_prometheus_exporter import TASKS, EnableEventsThread, MonitorThread
""",
        test="""
def test_it(lowkiq):
    MonitorThread(app=app, daemon=True).start()
    def count():
        EnableEventsThread(app=app).enable_events()
        push()
        return TASKS.labels(state="SUCCESS")._value.get()
    with lowkiq.worker(without_heartbeat=False):
        eventually(count)
    assert observed[-1]
""",
    )


def test_celery_exporter(passes):
    reason = "celery-exporter has no wheel, and its source does not build with current tools"
    pytest.importorskip("celery_exporter", reason=reason)
    passes(
        test="""
def test_it(lowkiq):
    # What its monitor does: it enables events, and reads them.
    with lowkiq.worker(without_heartbeat=False):
        app.control.enable_events()
        eventually(lambda: push() or True in observed)
"""
    )
