"""OpenTelemetry and Sentry see ordered tasks by their own instrumentation of Celery."""

from __future__ import annotations

import pytest

from tests.worker.users import users_pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.full

PROJECT = """
from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("proj", broker="redis://localhost:1/0")
options = {"app": app, "shared": False, "max_retries": 1, "retry_in": lambda n: 0, "shards": 1}

@ordered_task(**options)
def sync(payloads_by_id):
    if any("bad" in payloads for payloads in payloads_by_id.values()):
        raise ValueError("a bad one")

@ordered_task(**options, batch_size=10)
def batch(payloads_by_id):
    pass
"""

OPENTELEMETRY = """
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_lowkiq.integration import task as task_module
from proj import app, batch, sync
from tests.waiting import eventually

memory = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(provider)
CeleryInstrumentor().instrument()
ours = trace.get_tracer("ours")

@pytest.fixture(autouse=True)
def nothing_seen():
    memory.clear()

@pytest.fixture
def lowkiq_app(lowkiq_server):
    app.conf.broker_url = lowkiq_server.url
    return app

def spans(name):
    return [span for span in memory.get_finished_spans() if span.name == name]

def contexts(found):
    return {(context.trace_id, context.span_id) for context in found}
"""


@pytest.fixture
def passes(pytester, monkeypatch):
    return users_pytest(pytester, monkeypatch, proj=PROJECT)


def test_opentelemetry_sees_calls_and_runs(passes):
    passes(
        OPENTELEMETRY
        + """
def test_a_run_of_one_call_is_part_of_its_callers_trace(lowkiq, monkeypatch):
    monkeypatch.delattr(task_module, "lazy_result")
    with ours.start_as_current_span("request"):
        result = sync.delay("1", "x")
    lowkiq.drain()
    (request,), (call,), (run,) = spans("request"), spans("apply_async/proj.sync"), spans("run/proj.sync")
    assert call.parent.span_id == request.context.span_id
    assert run.parent.span_id == call.context.span_id
    assert run.context.trace_id == request.context.trace_id
    assert run.attributes["messaging.message.id"] == result.id
    assert run.attributes["messaging.destination"] == "proj.sync"
    assert run.links == ()

def test_calls_in_bulk(lowkiq):
    with ours.start_as_current_span("request"):
        sync.perform_async([{"id": 1, "payload": "x"}, {"id": 2, "payload": "y"}])
    assert lowkiq.drain() == 2
    (request,), calls, runs = spans("request"), spans("apply_async/proj.sync"), spans("run/proj.sync")
    assert [call.parent.span_id for call in calls] == [request.context.span_id] * 2
    assert {run.parent.span_id for run in runs} == {call.context.span_id for call in calls}
    assert len(runs) == 2

def test_a_real_worker(lowkiq):
    sync.delay("1", "x")
    with lowkiq.worker():
        eventually(lambda: spans("run/proj.sync"))
    (call,), (run,) = spans("apply_async/proj.sync"), spans("run/proj.sync")
    assert run.parent.span_id == call.context.span_id

def test_a_failed_run_says_why(lowkiq):
    sync.delay("1", "bad")
    lowkiq.drain(propagate=False)
    retried, failed = spans("run/proj.sync")
    assert "a bad one" in retried.attributes["celery.retry.reason"]
    assert retried.context.trace_id == failed.context.trace_id
    assert not failed.status.is_ok
    assert [event.name for event in failed.events] == ["exception"]
""",
        4,
    )


def test_a_merged_run_links_to_the_spans_of_its_calls(passes):
    passes(
        OPENTELEMETRY
        + """
@pytest.mark.parametrize("task, ids", [(sync, ("1", "1")), (batch, ("1", "2"))])
def test_runs_of_several(lowkiq, task, ids):
    for place, job_id in enumerate(ids):
        with ours.start_as_current_span("request"):
            task.delay(job_id, place)
    assert lowkiq.drain() == 1
    calls = spans(f"apply_async/{task.name}")
    runs = spans(f"run/{task.name}")
    (whole,) = [run for run in runs if run.links]
    assert contexts(link.context for link in whole.links) == contexts(call.context for call in calls)
    assert whole.parent is None
    ends = [run for run in runs if run is not whole]
    assert {end.parent.span_id for end in ends} == {call.context.span_id for call in calls}
    assert len(ends) == 2

def test_many_calls(lowkiq):
    for place in range(300):
        sync.delay("1", place % 7)
    assert lowkiq.drain() == 1
    (whole,) = [run for run in spans("run/proj.sync") if run.links]
    assert len(whole.links) == 128
    assert contexts(link.context for link in whole.links) <= contexts(
        call.context for call in spans("apply_async/proj.sync")
    )

def test_what_cannot_be_read_does_not_stop_the_run(lowkiq, monkeypatch):
    from celery_lowkiq.integration import tracing as module
    monkeypatch.setattr(module, "islice", None)
    sync.delay("1", "a")
    sync.delay("1", "b")
    assert lowkiq.drain() == 1
    lowkiq.assert_nothing_enqueued()
    assert sync.ordered_queue.job("1").dead is None
""",
        4,
    )


def test_sentry_sees_calls_runs_and_errors(passes):
    passes(
        """
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

class Kept(Transport):
    items = []

    def capture_envelope(self, envelope):
        self.items += [item.payload.json for item in envelope.items]

# As a process of the user's does it: before the worker's consumer is imported.
sentry_sdk.init(
    "https://key@localhost/1", transport=Kept, traces_sample_rate=1.0, integrations=[CeleryIntegration()]
)

import pytest
from proj import app, sync
from tests.waiting import eventually
from celery_lowkiq.integration import task as task_module

@pytest.fixture(autouse=True)
def nothing_seen():
    Kept.items.clear()

@pytest.fixture
def lowkiq_app(lowkiq_server):
    app.conf.broker_url = lowkiq_server.url
    return app

def seen(**wanted):
    return [item for item in Kept.items if all(item.get(name) == value for name, value in wanted.items())]

def request(*payloads):
    with sentry_sdk.start_transaction(name="request"):
        return [sync.delay("1", payload) for payload in payloads]

def trace_of(item):
    return item["contexts"]["trace"]

def runs():
    return seen(type="transaction", transaction="proj.sync")

def errors():
    return [item for item in Kept.items if "exception" in item]

def test_a_run_of_one_call_is_part_of_its_callers_trace(lowkiq, monkeypatch):
    monkeypatch.delattr(task_module, "lazy_result")
    request("x")
    lowkiq.drain()
    (caller,), (run,) = seen(transaction="request"), runs()
    submitted = [span["span_id"] for span in caller["spans"] if span["op"] == "queue.submit.celery"]
    assert trace_of(run)["trace_id"] == trace_of(caller)["trace_id"]
    assert trace_of(run)["parent_span_id"] in submitted
    (process,) = [span for span in run["spans"] if span["op"] == "queue.process"]
    assert process["data"]["messaging.destination.name"] == "proj.sync"
    assert process["data"]["messaging.message.receive.latency"] > 0

def test_a_real_worker(lowkiq):
    request("x")
    with lowkiq.worker():
        eventually(runs)
    assert trace_of(runs()[0])["trace_id"] == trace_of(seen(transaction="request")[0])["trace_id"]

def test_calls_in_bulk(lowkiq):
    with sentry_sdk.start_transaction(name="request"):
        sync.perform_async([{"id": 1, "payload": "x"}, {"id": 2, "payload": "y"}])
    assert lowkiq.drain() == 2
    (caller,) = seen(transaction="request")
    submitted = {span["span_id"] for span in caller["spans"] if span["op"] == "queue.submit.celery"}
    parents = {trace_of(run)["parent_span_id"] for run in runs()}
    assert parents <= submitted
    assert len(parents) == 2

def test_an_error_is_an_event_when_no_retry_is_left(lowkiq):
    (result,) = request("bad")
    lowkiq.drain(propagate=False)
    assert len(runs()) == 2
    (error,) = errors()
    assert error["exception"]["values"][-1]["value"] == "a bad one"
    assert error["tags"]["celery_task_id"] == result.id
    assert trace_of(error)["trace_id"] == trace_of(seen(transaction="request")[0])["trace_id"]

def test_a_merged_run_has_a_trace_of_its_own_and_each_call_ends_in_its_callers(lowkiq):
    request("a")
    request("b")
    assert lowkiq.drain() == 1
    callers = {trace_of(item)["trace_id"] for item in seen(transaction="request")}
    found = [trace_of(run)["trace_id"] for run in runs()]
    assert len(callers) == 2
    assert len(found) == 3
    assert callers < set(found)

def test_an_error_of_a_merged_run_is_one_event(lowkiq):
    request("bad")
    request("good")
    lowkiq.drain(propagate=False)
    (error,) = errors()
    assert error["exception"]["values"][-1]["value"] == "a bad one"
    assert sync.ordered_queue.job("1").dead is not None
""",
        6,
    )
