"""Results of plain runs in Celery's Redis backend: written together, before their jobs are settled."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.backends.redis import RedisBackend
from celery.result import AsyncResult
from kombu import serialization
from redis.exceptions import ConnectionError as Unreachable

from celery_lowkiq import ordered_task
from celery_lowkiq.integration import result_writes
from celery_lowkiq.integration import result_writes as redis_results
from celery_lowkiq.integration import result_writes as result_buffer
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.models import Batch, Disposition, Lease, ShardRef
from tests.unit.lanes import Reader, TrackerStore, job
from tests.waiting import eventually

# Celery warns of each error from outside a function.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class Lane:
    """Runs batches of a task that returns its last payload."""

    def __init__(self, url, backend=RedisBackend, **settings):
        self.app = Celery("unit", broker=url, backend=url, set_as_current=False)
        self.app.conf.update(redis_socket_timeout=30, **settings)
        #: What each run does before it returns, or what it returns in place of its payload.
        self.act = lambda task: None

        @ordered_task(app=self.app, shared=False, bind=True, name="t", retry_in=lambda retry_count: 1)
        def function(task, payloads_by_id):
            ((payload,),) = payloads_by_id.values()
            return self.act(task) or payload

        self.app.finalize()
        self.task = self.app.tasks["t"]
        self.task.backend = self.backend = backend(app=self.app, url=url.removeprefix("redis+"))
        self.task.__trace__ = build_tracer("t", self.task, self.app.loader, "host", app=self.app)
        consumer = SimpleNamespace(app=self.app, hostname="host", event_dispatcher=None)
        self.runner = CeleryRunner({"t": self.task}, consumer, context_of(self.app), Reader(), TrackerStore())

    def run(self, task_id, payload=b"7", **headers):
        lease = Lease(ShardRef("t", 0), "me", 1)
        jobs = (job(payload, calls=[(0, task_id, headers)], job_id=f"job of {task_id}"),)
        return self.runner.run(Batch(self.task.queue_spec, lease, 1, jobs, threading.Event()))

    def flush(self):
        """Settlements by id of the call."""
        return {one.id.removeprefix("job of "): one for one in self.runner.flush()}

    def result(self, task_id):
        found = self.backend._get_task_meta_for(task_id)
        return found["status"], found["result"]


@pytest.fixture
def lane(empty_redis):
    return Lane(empty_redis.url)


def test_a_job_is_done_when_its_result_is_written(lane):
    for number, task_id in enumerate("abc"):
        assert lane.run(task_id, b"%d" % number) == ()
    assert [lane.result(task_id) for task_id in "abc"] == [("PENDING", None)] * 3
    done = lane.flush()
    assert [(task_id, one.disposition, one.ended) for task_id, one in done.items()] == [
        (task_id, Disposition.DONE, ((b"key 0", b"key 0"),)) for task_id in "abc"
    ]
    assert [lane.result(task_id) for task_id in "abc"] == [("SUCCESS", number) for number in range(3)]
    assert lane.flush() == {}


def test_a_result_has_nothing_of_another_backend(lane, empty_redis):
    """A result too large to be held leaves what it has in common with others of its own backend."""
    lane.act = lambda task: "x" * redis_results.MAX_SIZE
    lane.run("a")
    extended = Lane(empty_redis.url, result_extended=True)
    lane.act, lane.task.backend = lambda task: None, extended.backend
    lane.run("b")
    assert "b" in lane.flush()
    assert extended.backend.get_task_meta("b")["name"] == "t"


def test_the_result_of_a_child_process_is_written_by_its_lane(lane, empty_redis):
    """Together with others of the lane, unless these are for another backend."""
    child = Lane(empty_redis.url)
    assert child.run("a") == ()
    held = child.runner.take_result()
    assert child.runner.take_result() is None
    assert child.flush() == {}
    assert lane.runner.hold_result(held) == ()
    assert lane.result("a") == ("PENDING", None)
    assert list(lane.flush()) == ["a"]
    assert lane.result("a") == ("SUCCESS", 7)
    child.run("b")
    held = child.runner.take_result()
    lane.run("c")
    other = Lane(empty_redis.url)
    lane.task.backend = other.backend
    assert [one.ended for one in lane.runner.hold_result(held)] == [((b"key 0", b"key 0"),)]
    assert other.result("b") == ("SUCCESS", 7)
    assert list(lane.flush()) == ["c"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"result_expires": None},
        {"result_extended": True},
        {"result_compression": "gzip"},
        {"result_serializer": "pickle", "result_accept_content": ["pickle"]},
        {"result_backend_transport_options": {"global_keyprefix": "mine"}},
        {"timezone": "Asia/Kolkata"},
        {"enable_utc": False},
    ],
    ids=lambda settings: "".join(settings) or "defaults",
)
def test_results_are_stored_and_published_as_by_the_backend(empty_redis, monkeypatch, settings):
    monkeypatch.setattr(result_buffer, "writes_together", lambda backend: False)
    alone = stored_and_published(Lane(empty_redis.url, **settings))
    monkeypatch.undo()
    together = stored_and_published(Lane(empty_redis.url, **settings))
    assert together == alone


def test_results_are_stored_and_published_through_redis_py_where_that_is_observed(lane, monkeypatch):
    together = stored_and_published(lane)
    monkeypatch.setattr(redis_results, "transact", lambda client, commands: False)
    assert stored_and_published(lane) == together


#: The headers of calls whose results are written together.
CALLS = {"a": {}, "b": {}, "c": {"parent_id": "p", "group": "g"}, "d": {"group": "g"}, "e": {}}


def stored_and_published(lane):
    """Key and message, time to live, and meta of each result."""
    client = lane.backend.client
    lane.act = lambda task: task.request.id == "e" and task.request.children.append(AsyncResult("child"))
    keys = {lane.backend.get_key_for_task(task_id): task_id for task_id in CALLS}
    found = []
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(*keys)
        for _ in keys:
            pubsub.get_message(timeout=10)
        for task_id, headers in CALLS.items():
            lane.run(task_id, b'["%s"]' % task_id.encode(), **headers)
        lane.flush()
        for key in keys:
            message = pubsub.get_message(timeout=10)
            assert message["data"] == client.get(key)
            meta = lane.backend.decode(message["data"])
            done = datetime.fromisoformat(meta.pop("date_done"))
            assert abs(lane.app.now() - done) < timedelta(minutes=1)
            # To a hundred seconds: its time passes.
            found.append((message["channel"], round(client.ttl(key), -2), list(meta), meta, done.utcoffset()))
    client.delete(*keys)
    return found


def test_the_first_success_of_a_call_is_final(lane):
    lane.backend.mark_as_done("a", "first")
    lane.backend.store_result("b", {"pid": 1}, "STARTED")
    for task_id, payload in (("a", b"2"), ("b", b"3"), ("b", b"4")):
        lane.run(task_id, payload)
    assert set(lane.flush()) == {"a", "b"}
    assert [lane.result(task_id) for task_id in "ab"] == [("SUCCESS", "first"), ("SUCCESS", 3)]


def away(*args, **kwargs):
    raise Unreachable("away")


def test_a_job_whose_result_cannot_be_written_runs_again(lane, monkeypatch):
    monkeypatch.setattr(result_buffer, "MAX_REPEATING", 3600.0)
    with monkeypatch.context() as patched:
        patched.setattr(lane.backend.client, "mget", away)
        patched.setattr(lane.backend.client, "get", away)
        lane.run("a")
        lane.run("b")
        settlements = lane.flush()
        patched.setattr(result_buffer, "writes_together", lambda backend: False)
        other = Lane(lane.backend.url)
        patched.setattr(other.backend.client, "get", away)
        (alone,) = other.run("a")
    assert [(one.disposition, one.retry_count, one.ended) for one in settlements.values()] == [
        (Disposition.RETRY, 0, ())
    ] * 2
    assert settlements["a"]._replace(error=None, delay=0) == alone._replace(error=None, delay=0)
    assert lane.result("a") == ("PENDING", None)


def test_a_result_that_cannot_be_written_does_not_affect_the_others(lane, monkeypatch):
    monkeypatch.setattr(result_buffer, "MAX_REPEATING", 3600.0)
    lane.backend.client.set(lane.backend.get_key_for_task("b"), b"no result")
    for task_id in "abc":
        lane.run(task_id)
    dispositions = {task_id: one.disposition for task_id, one in lane.flush().items()}
    assert dispositions == {"a": Disposition.DONE, "b": Disposition.RETRY, "c": Disposition.DONE}
    assert [lane.result(task_id) for task_id in "ac"] == [("SUCCESS", 7)] * 2


def test_a_backend_that_does_not_answer_takes_little_of_a_lanes_time(lane, monkeypatch, caplog):
    monkeypatch.setattr(result_buffer, "MAX_REPEATING", -1.0)
    monkeypatch.setattr(lane.backend.client, "mget", away)
    for task_id in "ab":
        lane.run(task_id)
    with caplog.at_level("WARNING", "celery_lowkiq"):
        dispositions = [one.disposition for one in lane.flush().values()]
    assert dispositions == [Disposition.RETURN] * 2
    assert "2 jobs of t run again, because their results could not be written in time" in caplog.messages


def test_a_long_run_does_not_delay_the_results_before_it(lane):
    ended, seen = threading.Event(), []

    def runs_long(task):
        if task.request.id == "long":
            eventually(lambda: lane.result("a") == lane.result("b") == ("SUCCESS", 7))
            seen.append(lane.result("long"))

    def reap():
        while not ended.wait(0.01):
            lane.runner.write_late()

    lane.act = runs_long
    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        for task_id in ("a", "b", "long"):
            assert lane.run(task_id) == ()
    finally:
        ended.set()
        reaper.join(30)
    assert seen == [("PENDING", None)]
    assert list(lane.flush()) == ["a", "b", "long"]
    assert lane.result("long") == ("SUCCESS", 7)


def test_a_result_that_has_not_waited_is_left_to_its_lane(lane, monkeypatch):
    monkeypatch.setattr(result_writes, "MAX_DELAY", 3600.0)
    lane.run("a")
    lane.runner.write_late()
    assert lane.result("a") == ("PENDING", None)


def test_the_lane_writes_what_could_not_be_written_meanwhile(lane, monkeypatch):
    tried = []

    def fails(*args, **kwargs):
        tried.append(args)
        raise Unreachable("away")

    monkeypatch.setattr(result_writes, "MAX_DELAY", -1.0)
    with monkeypatch.context() as patched:
        patched.setattr(lane.backend.client, "mget", fails)
        lane.run("a")
        for _ in range(2):
            lane.runner.write_late()
    assert len(tried) == 1, "the lane meets the error, and handles it"
    assert lane.flush()["a"].disposition is Disposition.DONE
    assert lane.result("a") == ("SUCCESS", 7)


class Own(RedisBackend):
    """A backend of the user's."""


def test_a_patched_backend_stores_each_result_at_once(lane):
    store, stored = lane.backend.store_result, []
    lane.backend.store_result = lambda *args, **kwargs: (stored.append(args), store(*args, **kwargs))
    assert lane.run("a")[0].disposition is Disposition.DONE
    assert lane.result("a") == ("SUCCESS", 7)
    assert len(stored) == 1


def test_json_is_written_by_the_serializer_that_the_program_has_registered(lane, monkeypatch):
    encoders = serialization.registry._encoders
    own = encoders["json"]._replace(encoder=lambda value: json.dumps(value, indent=1))
    monkeypatch.setitem(encoders, "json", own)
    lane.run("a")
    lane.flush()
    assert lane.backend.client.get(lane.backend.get_key_for_task("a")).startswith(b"{\n")


def test_an_app_with_a_clock_of_its_own_stores_each_result_at_once(lane):
    now = lane.app.now()
    lane.app.now = lambda: now
    assert lane.run("a")[0].disposition is Disposition.DONE
    assert lane.backend._get_task_meta_for("a")["date_done"] == now.isoformat()


@pytest.mark.parametrize("options", [{"backend": Own}, {"result_backend_always_retry": True}], ids=str)
def test_another_backend_stores_each_result_at_once(empty_redis, options):
    lane = Lane(empty_redis.url, **options)
    assert lane.run("a")[0].disposition is Disposition.DONE
    assert lane.result("a") == ("SUCCESS", 7)


def test_a_large_result_is_stored_at_once(lane):
    text = "x" * redis_results.MAX_SIZE
    lane.act = lambda task: text
    assert lane.run("a")[0].disposition is Disposition.DONE
    assert lane.result("a") == ("SUCCESS", text)


def test_a_call_with_links_is_left_to_the_tracer(lane):
    called = []

    @lane.app.task(name="next", shared=False)
    def follow(value):
        called.append(value)

    lane.app.conf.task_always_eager = True
    lane.act = lambda task: setattr(task.request, "callbacks", [follow.s()])
    assert lane.run("a")[0].disposition is Disposition.DONE
    assert lane.result("a") == ("SUCCESS", 7)
    assert called == [7]


def test_a_function_may_ignore_its_result(lane):
    lane.act = lambda task: setattr(task.request, "ignore_result", True)
    assert lane.run("a")[0].disposition is Disposition.DONE
    assert lane.result("a") == ("PENDING", None)


def test_results_of_all_lanes_are_their_own(lane):
    done = {}

    def work(name):
        for number in range(20):
            lane.run(f"{name}{number}")
        done[name] = set(lane.flush())

    threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert done == {name: {f"{name}{number}" for number in range(20)} for name in "xyz"}
    assert {lane.result(task_id) for ids in done.values() for task_id in ids} == {("SUCCESS", 7)}
