"""Async def tasks, and functions of one id, in a worker, a drain, and eager mode."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from celery import Celery, _state, current_task, signals
from celery.exceptions import Ignore, SoftTimeLimitExceeded, TaskRevokedError

from celery_lowkiq import Again, BusinessFailure, OrderedTask, ordered_task
from celery_lowkiq.integration.settings import read_settings
from tests.waiting import eventually
from tests.worker.users import users_pytest

pytest_plugins = ["pytester"]

WAIT = 30


@pytest.fixture
def lowkiq_app(lowkiq_server):
    app = Celery("awaiting", broker=lowkiq_server.url, backend="cache+memory://", set_as_current=False)
    app.conf.update(lowkiq_lease_seconds=2.0, worker_redirect_stdouts=False)
    yield app
    app.close()


@pytest.fixture
def ordered(lowkiq_app):
    """The decorator, for tasks of one shard that keep their results and are not retried."""

    def ordered(**options):
        return ordered_task(
            app=lowkiq_app, shared=False, shards=1, ignore_result=False, max_retries=0, **options
        )

    return ordered


def lane_of(worker, number=0):
    return worker.consumer.ordered_queues._engine.runtime._lanes[number]


# -- what runs


def test_a_function_of_a_batch(lowkiq, ordered):
    @ordered(batch_size=3)
    async def sync(payloads_by_id):
        await asyncio.sleep(0)
        return payloads_by_id

    results = [sync.delay(n, "x") for n in range(3)]
    assert lowkiq.drain() == 1
    assert [result.get(WAIT) for result in results] == [{"0": ["x"], "1": ["x"], "2": ["x"]}] * 3


def test_a_run_of_several_ids_replaces_no_call(lowkiq, lowkiq_app, ordered):
    @ordered(per_id=True, batch_size=2, bind=True)
    async def work(self, job_id, payloads):
        self.replace(lowkiq_app.signature("other"))

    results = [work.delay(n) for n in range(2)]
    assert lowkiq.drain(propagate=False) == 1
    errors = [str(result.get(WAIT, propagate=False)) for result in results]
    assert errors == ["self.replace() replaces the calls of all ids of a run: set batch_size=1"] * 2


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_each_id_has_its_own_result_and_error(lowkiq, ordered, is_async):
    def work(job_id, payloads):
        if job_id == "bad":
            raise ValueError("a bad one")
        if job_id == "business":
            raise BusinessFailure("no stock")
        if job_id == "cancelled":
            raise asyncio.CancelledError
        return [job_id, payloads]

    async def awaits(job_id, payloads):
        await asyncio.sleep(0)
        return work(job_id, payloads)

    task = ordered(per_id=True, batch_size=10, name="work")(awaits if is_async else work)
    ids = ("1", "bad", "2", "business", "cancelled")
    results = {job_id: task.delay(job_id, "x") for job_id in ids}
    merged = [task.delay("many", n) for n in range(2)]
    assert lowkiq.drain(propagate=False) == 1
    assert results["1"].get(WAIT) == ["1", ["x"]]
    assert results["2"].get(WAIT) == ["2", ["x"]]
    assert [result.get(WAIT) for result in merged] == [["many", [0, 1]]] * 2
    assert repr(results["bad"].get(WAIT, propagate=False)) == "ValueError('a bad one')"
    assert "no stock" in repr(results["business"].get(WAIT, propagate=False))
    assert results["cancelled"].state == "FAILURE"
    assert {job.id for job in task.ordered_queue.morgue().items} == {"bad", "cancelled"}


def test_only_the_id_that_is_not_done_runs_again(lowkiq, ordered):
    runs = []

    @ordered(per_id=True, batch_size=5)
    async def work(job_id, payloads):
        runs.append(job_id)
        if runs.count("2") == 1 and job_id == "2":
            raise Again(after=0)

    for n in range(3):
        work.delay(n)
    assert lowkiq.drain() == 2
    assert runs == ["0", "1", "2", "2"]


def test_the_only_id_of_a_run_may_be_ignored(lowkiq, ordered):
    @ordered(per_id=True)
    async def ignores(job_id, payloads):
        raise Ignore

    result = ignores.delay("1")
    lowkiq.drain()
    assert (result.state, ignores.ordered_queue.stats().length) == ("PENDING", 0)


def test_a_function_that_keeps_its_signature(lowkiq, ordered):
    @ordered(by="order_id", bind=True)
    async def save(self, order_id, status="new"):
        await asyncio.sleep(0)
        return [self.request.id, order_id, status]

    result = save.delay(42, status="paid")
    lowkiq.drain()
    assert result.get(WAIT) == [result.id, 42, "paid"]
    assert save.apply((42,)).get()[1:] == [42, "new"]


def test_a_function_that_keeps_its_signature_runs_as_a_plain_one(lowkiq, lowkiq_app, ordered):
    lowkiq_app.conf.lowkiq_plain = ["work"]

    @ordered(by="order_id", bind=True, name="work")
    async def save(self, order_id, status="new"):
        await asyncio.sleep(0)
        return [self.request.id, order_id, status]

    with lowkiq.worker():
        assert save.delay(43).get(WAIT)[1:] == [43, "new"]


def test_a_worker_does_not_stay_the_current_app(lowkiq, monkeypatch):
    other = Celery("other", set_as_current=False)
    monkeypatch.setattr(_state._tls, "current_app", other)
    monkeypatch.setattr(_state, "default_app", other)
    with lowkiq.worker():
        pass
    assert _state._tls.current_app is _state.default_app is other


def test_a_class(lowkiq, lowkiq_app):
    class Work(OrderedTask):
        name, abstract, shards, ignore_result, per_id = "of-a-class", False, 1, False, True

        async def run(self, job_id, payloads):
            await asyncio.sleep(0)
            return [self.name, job_id, self.request.id]

    work = lowkiq_app.register_task(Work())
    result = work.delay("1")
    lowkiq.drain()
    assert result.get(WAIT) == ["of-a-class", "1", result.id]


def test_autoretry_sees_the_error_of_a_coroutine(lowkiq, lowkiq_app):
    runs = []

    @ordered_task(
        app=lowkiq_app, shared=False, autoretry_for=(OSError,), retry_backoff=1000, retry_jitter=False
    )
    async def work(payloads_by_id):
        await asyncio.sleep(0)
        runs.append(1)
        raise OSError("away")

    work.delay("1")
    assert lowkiq.drain(propagate=False) == 1
    assert 500 < lowkiq.due_in(work, "1") <= 600


# -- where it runs


@pytest.mark.parametrize("observed", [False, True], ids=["plain", "traced"])
def test_the_request_is_right_in_the_body_and_in_its_children(lowkiq, lowkiq_app, ordered, observed):
    found = {}

    @ordered(bind=True, per_id=True, batch_size=2)
    async def looks(self, job_id, payloads):
        async def child():
            await asyncio.sleep(0)
            return self.request.id

        await asyncio.sleep(0)
        (of_child,) = await asyncio.gather(child())
        ids = {job.id for job in self.request.lowkiq.jobs}
        found[job_id] = (self.request.id, of_child, current_task.name, ids, threading.current_thread().name)

    seen = []
    note = lambda task_id=None, **_: seen.append(task_id)  # noqa: E731
    if observed:
        signals.task_prerun.connect(note)
    try:
        looks.perform_async([{"id": 1}, {"id": 2}])
        lowkiq.drain()
    finally:
        signals.task_prerun.disconnect(note)
    request = found["1"][0]
    assert found == {
        job_id: (request, request, looks.name, {"1", "2"}, "lowkiq-loop") for job_id in ("1", "2")
    }
    assert not observed or seen == [request]
    assert looks.request.id is None


def test_a_call_made_in_a_body_is_a_child_of_its_run(lowkiq, lowkiq_app, ordered):
    @ordered()
    async def parent(payloads_by_id):
        return (await child.adelay("1")).id

    @ordered(bind=True)
    async def child(self, payloads_by_id):
        return [self.request.parent_id, self.request.root_id]

    result = parent.delay("1")
    lowkiq.drain()
    of_child = lowkiq_app.AsyncResult(result.get(WAIT))
    assert of_child.get(WAIT) == [result.id, result.id]


# -- outside a worker


def test_eager_runs(lowkiq_app, ordered):
    @ordered(per_id=True, batch_size=5, bind=True)
    async def work(self, job_id, payloads):
        await asyncio.sleep(0)
        if job_id == "bad":
            raise ValueError("a bad one")
        return [job_id, payloads, self.request.is_eager, bool(current_task)]

    right = ["1", ["x"], True, True]
    assert work.apply(("1", "x")).get() == right
    assert repr(work.apply(("bad",)).result) == "ValueError('a bad one')"
    lowkiq_app.conf.task_always_eager = True
    good, bad = work.perform_async([{"id": 1, "payload": "x"}, {"id": "bad"}], results=True)
    assert (good.get(), repr(bad.result), bad.state) == (right, "ValueError('a bad one')", "FAILURE")
    assert asyncio.run(of_a_loop(work)) == ("InvalidCall", right, ["1", ["x"], False, False])


async def of_a_loop(work):
    refused = work.apply(("1", "x")).result
    assert "write await task.run(...)" in str(refused)
    eager = await work.adelay("1", "x")
    return type(refused).__name__, eager.get(), await work("1", ["x"])


# -- what ends it


def test_a_soft_time_limit(lowkiq, ordered):
    @ordered(per_id=True, batch_size=2, soft_time_limit=0.2)
    async def work(job_id, payloads):
        await asyncio.sleep(600 if job_id == "slow" else 0)
        return "done"

    slow, quick = work.delay("slow"), work.delay("quick")
    lowkiq.drain(propagate=False)
    assert isinstance(slow.get(WAIT, propagate=False), SoftTimeLimitExceeded)
    assert quick.get(WAIT) == "done"
    (dead,) = work.ordered_queue.morgue().items
    assert dead.error.splitlines()[-1].startswith("billiard.exceptions.SoftTimeLimitExceeded")
    assert "in work" in dead.error


def test_the_soft_time_limit_of_a_call(lowkiq, ordered):
    """It replaces that of the task, and the run's request shows it."""

    @ordered(bind=True, by="job_id", soft_time_limit=600)
    async def work(self, job_id):
        await asyncio.sleep(600 if job_id == "slow" else 0)
        return self.request.timelimit

    slow, quick = (work.apply_async((name,), soft_time_limit=0.2) for name in ("slow", "quick"))
    lowkiq.drain(propagate=False)
    error = slow.get(WAIT, propagate=False)
    assert (type(error), error.args) == (SoftTimeLimitExceeded, (0.2,))
    assert quick.get(WAIT) == [None, 0.2]


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_a_run_is_terminated(lowkiq, lowkiq_app, ordered, merged):
    running, revoked = threading.Event(), []

    @ordered(bind=True)
    async def work(self, payloads_by_id):
        running.request = self.request.id
        running.set()
        await asyncio.sleep(600)

    note = lambda request=None, terminated=None, **_: revoked.append((request.id, terminated))  # noqa: E731
    signals.task_revoked.connect(note)
    try:
        results = [work.delay("1", n) for n in range(2 if merged else 1)]
        with lowkiq.worker(without_heartbeat=False):
            assert running.wait(WAIT)
            lowkiq_app.control.revoke(running.request, terminate=True)
            for result in results:
                with pytest.raises(TaskRevokedError):
                    result.get(WAIT)
            eventually(lambda: work.ordered_queue.stats().length == 0)
    finally:
        signals.task_revoked.disconnect(note)
    assert sorted(revoked) == sorted((result.id, True) for result in results)


def test_a_lost_lease_cancels_the_bodies_of_its_shard(lowkiq, ordered):
    began, ended = threading.Event(), []

    @ordered(per_id=True)
    async def work(job_id, payloads):
        if began.is_set():
            return
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(time.monotonic())

    work.delay("1")
    with lowkiq.worker() as worker:
        assert began.wait(WAIT)
        batch = eventually(lambda: lane_of(worker).batch)
        lost_at = time.monotonic()
        batch.lost.set()
        eventually(lambda: ended)
        # 50 ms where nothing else runs.
        assert ended[0] - lost_at < 5
        eventually(lambda: work.ordered_queue.stats().length == 0)
    assert work.ordered_queue.stats().morgue_length == 0


def test_a_worker_that_may_not_wait_cancels_its_bodies_and_returns_their_jobs(lowkiq, lowkiq_app, ordered):
    lowkiq_app.conf.lowkiq_shutdown_timeout = 0.0
    lowkiq._context.settings = read_settings(lowkiq_app)
    began, ended = threading.Event(), []

    @ordered(per_id=True)
    async def work(job_id, payloads):
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(job_id)

    work.delay("1")
    with lowkiq.worker():
        assert began.wait(WAIT)
    assert ended == ["1"]
    job = work.ordered_queue.job("1")
    assert (job.waiting.retry_count, job.processing) == (-1, None)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("lane", "lowkiq-loop"))]


def test_the_lag_of_the_event_loop_is_a_metric(lowkiq, lowkiq_app, ordered):
    pytest.importorskip("prometheus_client")
    lowkiq_app.conf.lowkiq_metrics_port = 0
    lowkiq._context.settings = read_settings(lowkiq_app)

    @ordered()
    async def work(payloads_by_id):
        await asyncio.sleep(0.1)

    result = work.delay("1")
    with lowkiq.worker() as worker:
        result.get(WAIT)
        metrics = worker.consumer.ordered_queues._engine._metrics
        labels = {"node": worker.hostname}
        eventually(lambda: metrics._registry.get_sample_value("lowkiq_loop_lag_seconds_count", labels))


# -- instruments

PROJECT = """
import asyncio
from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("proj", broker="redis://localhost:1/0")
seen = []
look = lambda: "the function"

@ordered_task(app=app, shared=False, shards=1, max_retries=0, per_id=True, batch_size=2)
async def sync(job_id, payloads):
    async def child():
        await asyncio.sleep(0)
        return look()
    await asyncio.sleep(0)
    seen.append((look(), *await asyncio.gather(child())))
    if "bad" in payloads:
        raise ValueError("a bad one")
"""
COMMON = """
import proj, pytest
from proj import seen, sync

@pytest.fixture
def lowkiq_app(lowkiq_server):
    proj.app.conf.broker_url = lowkiq_server.url
    return proj.app
"""


@pytest.fixture
def passes(pytester, monkeypatch):
    run = users_pytest(pytester, monkeypatch, proj=PROJECT)
    return lambda tests: run(tests, 1)


@pytest.mark.full
def test_sentry(passes):
    pytest.importorskip("sentry_sdk")
    passes(
        """
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

caught = []

class Kept(Transport):
    def capture_envelope(self, envelope):
        pass

def keep(event, hint):
    caught.append((event["exception"]["values"][-1]["type"], event["transaction"]))

sentry_sdk.init(
    "https://key@localhost/1", transport=Kept, traces_sample_rate=1.0, integrations=[CeleryIntegration()],
    before_send=keep,
)
"""
        + COMMON
        + """
def test_it(lowkiq):
    proj.look = lambda: sentry_sdk.get_current_scope().transaction.name
    sync.delay("1", "good")
    lowkiq.drain()
    assert seen == [("proj.sync", "proj.sync")]
    sync.delay("1", "bad")
    lowkiq.drain(propagate=False)
    assert caught == [("ValueError", "proj.sync")]
"""
    )


@pytest.mark.full
def test_opentelemetry(passes):
    pytest.importorskip("opentelemetry.instrumentation.celery")
    passes(
        """
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
CeleryInstrumentor().instrument()
"""
        + COMMON
        + """
def test_it(lowkiq):
    proj.look = lambda: trace.get_current_span().name
    sync.perform_async([{"id": 1}, {"id": 2}])
    lowkiq.drain()
    assert seen == [("run/proj.sync", "run/proj.sync")] * 2
"""
    )
