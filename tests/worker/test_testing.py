"""``celery_lowkiq.testing`` as its user sees it: a project with tests, run by pytest."""

from __future__ import annotations

import configparser

import pytest
import redis

from celery_lowkiq.store.client import FakeClockClient
from celery_lowkiq.store.keys import CLOCK_KEY
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import load
from tests.worker.users import ROOT, users_pytest

pytest_plugins = ["pytester"]

PROJECT = """
from celery import Celery
from celery.exceptions import Reject
from celery_lowkiq import ordered_task

app = Celery("proj", broker="redis://localhost:1/0", backend="cache+memory://")
saved = []

@ordered_task(app=app, max_retries=1, retry_in=lambda n: 60)
def sync(payloads_by_id):
    for order_id, payloads in payloads_by_id.items():
        if "bad" in payloads:
            raise ValueError("a bad one")
        saved.append((order_id, payloads))
    return "saved"

@ordered_task(app=app, bind=True)
def first(self, payloads_by_id):
    sync.delay("from first", self.request.hostname)

@ordered_task(app=app)
def exits_once(payloads_by_id):
    saved.append("exits")
    if len(saved) == 1:
        raise SystemExit(3)

@ordered_task(app=app, keep=1, debounce=50, debounce_max=80, drop_stale=True)
def latest(payloads_by_id):
    saved.append(payloads_by_id)

@ordered_task(app=app, shards=1, rate_limit_per_id="1/m", priority=5)
def polite(payloads_by_id):
    saved.extend(payloads_by_id)

@ordered_task(app=app, shards=1, max_length=1, when_full="drop_newest")
def few(payloads_by_id):
    saved.append(payloads_by_id)

@ordered_task(app=app, bind=True, max_retries=1, retry_in=lambda n: 60)
def asks_again(self, payloads_by_id):
    raise self.retry()

@ordered_task(app=app)
def rejects(payloads_by_id):
    raise Reject("not for us", requeue=False)

@ordered_task(app=app, by="order_id")
def save(order_id, status="new"):
    saved.append((order_id, status))

@ordered_task(app=app)
def endless(payloads_by_id):
    endless.delay("1", len(saved))

@app.task
def plain():
    pass
"""
HEAD = """
import threading
import pytest
from celery.exceptions import MaxRetriesExceededError
from proj import asks_again, rejects, save
from proj import app, endless, exits_once, few, first, latest, plain, polite, saved, sync

@pytest.fixture(autouse=True)
def nothing_saved():
    saved.clear()
"""
OWN_APP = """
@pytest.fixture
def lowkiq_app():
    return app
"""

WITH_BROKER = """
@pytest.fixture
def lowkiq_app(lowkiq_server):
    app.conf.broker_url = lowkiq_server.url
    return app
"""


@pytest.fixture
def passes(pytester, monkeypatch):
    """Run a user's tests."""
    run = users_pytest(pytester, monkeypatch, proj=PROJECT)
    return lambda tests, count, head=HEAD + OWN_APP: run(head + tests, count)


def test_what_is_paused_is_not_drained(passes):
    passes(
        """
def test_it(lowkiq):
    queue = sync.ordered_queue
    queue.pause(job_id="1")
    sync.delay("1", "x")
    sync.delay("2", "y")
    assert lowkiq.drain() == 1
    lowkiq.assert_enqueued(sync, "1", "x")
    queue.pause()
    queue.resume(job_id="1")
    assert lowkiq.drain() == 0
    queue.resume()
    assert lowkiq.drain() == 1
    assert saved == [("2", ["y"]), ("1", ["x"])]
""",
        1,
    )


def test_a_run_takes_its_own_time_on_a_machine_that_has_slept(passes):
    """Its beginning was read of a clock that stands still in suspend, and its end of one that does not."""
    passes(
        """
import time

def test_it(lowkiq, caplog, monkeypatch):
    awake = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: awake() - 3600.0)
    sync.delay("1", "bad")
    with pytest.raises(ValueError):
        lowkiq.drain()
    (runtime,) = (one.data["runtime"] for one in caplog.records if "runtime" in getattr(one, "data", ()))
    assert 0 <= runtime < 600
""",
        1,
    )


def test_policies_hold_by_the_clock_of_the_test(passes):
    passes(
        """
def test_calls_that_come_close_together(lowkiq):
    calls = [latest.apply_async(("1", n), score=n) for n in (1, 3, 2)]
    assert 40 < lowkiq.due_in(latest, "1") <= 50
    assert lowkiq.drain() == 0
    lowkiq.clock.move(40)
    latest.apply_async(("1", 4), score=4)
    assert 30 < lowkiq.due_in(latest, "1") <= 40
    lowkiq.clock.move(40)
    assert lowkiq.drain() == 1
    assert saved == [{"1": [4]}]
    assert [call.state for call in calls] == ["REVOKED"] * 3
    latest.apply_async(("1", 3), score=3)
    lowkiq.clock.move(80)
    lowkiq.drain()
    assert saved == [{"1": [4]}]

def test_a_full_queue_drops_and_tells(lowkiq):
    first, second = few.delay("1", "x"), few.delay("2", "x")
    assert second.state == "REVOKED"
    assert lowkiq.drain() == 1
    assert saved == [{"1": ["x"]}]
    assert first.state == "SUCCESS"

def test_an_id_waits_for_its_token(lowkiq):
    for n in (1, 2):
        polite.delay("1", n)
        assert lowkiq.drain() == 2 - n
    assert 40 < lowkiq.due_in(polite, "1") <= 60
    lowkiq.clock.move(60)
    assert lowkiq.drain() == 1
    assert saved == ["1", "1"]

def test_the_more_urgent_call_runs_first(lowkiq):
    polite.delay("usual")
    polite.apply_async(("urgent",), priority=0)
    assert lowkiq.drain() == 2
    assert saved == ["urgent", "usual"]

def test_ids_without_a_token_hide_no_other(lowkiq):
    many = [{"id": n} for n in range(150)]
    polite.perform_async(many)
    assert lowkiq.drain() == 150
    polite.perform_async(many)
    polite.delay("other")
    assert lowkiq.drain() == 1
    assert saved[150:] == ["other"]
""",
        5,
    )


def test_draining(passes):
    passes(
        """
def test_due_jobs_run_in_this_thread(lowkiq):
    result = sync.delay("42", "a")
    sync.delay("42", "b")
    sync.delay("43", "c")
    assert saved == []
    assert lowkiq.drain(sync) == 2
    assert sorted(saved) == [("42", ["a", "b"]), ("43", ["c"])]
    assert result.get() == "saved"
    assert lowkiq.drain(sync) == 0

def test_the_next_test_begins_with_nothing(lowkiq):
    lowkiq.assert_nothing_enqueued()
    assert lowkiq.drain() == 0

def test_what_tasks_call_is_drained_too(lowkiq):
    first.delay("1")
    assert lowkiq.drain(first) == 1
    lowkiq.assert_enqueued(sync, "from first", "drain@test")
    assert lowkiq.drain() == 1

def test_a_task_that_calls_itself_is_found(lowkiq):
    endless.delay("1", 0)
    with pytest.raises(AssertionError, match="still due after 5 runs"):
        lowkiq.drain(endless, most=5)

def test_what_ends_a_worker_ends_the_drain_and_the_next_one_goes_on(lowkiq):
    exits_once.delay("1", "x")
    with pytest.raises(SystemExit):
        lowkiq.drain()
    assert exits_once.ordered_queue.job("1").processing is not None
    assert lowkiq.drain() == 1
    assert saved == ["exits", "exits"]

def test_an_error_is_raised_when_its_job_is_settled(lowkiq):
    result = sync.delay("42", "bad")
    sync.delay("43", "good")
    for state in ("RETRY", "FAILURE"):
        with pytest.raises(ValueError, match="a bad one") as raised:
            while lowkiq.drain(): ...
        assert raised.traceback[-1].path.name == "proj.py"
        assert result.state == state
        lowkiq.clock.move(60)
    assert lowkiq.drain() <= 1
    assert saved == [("43", ["good"])]

def test_an_error_is_a_failed_job(lowkiq):
    result = sync.delay("42", "bad")
    assert lowkiq.drain(propagate=False) == 1
    assert result.state == "RETRY"
    assert "a bad one" in sync.ordered_queue.job("42").waiting.error
    assert 55 < lowkiq.due_in(sync, "42") <= 60
    lowkiq.clock.move(60)
    assert lowkiq.drain(propagate=False) == 1
    assert result.state == "FAILURE"
    assert sync.ordered_queue.job("42").dead is not None

def test_what_is_no_error_is_not_raised(lowkiq):
    asks_again.delay("1")
    rejects.delay("1")
    assert lowkiq.drain() == 2
    lowkiq.clock.move(60)
    with pytest.raises(MaxRetriesExceededError):
        lowkiq.drain()

def test_a_batch_that_goes_back_is_no_run(lowkiq, monkeypatch):
    # By the clock of its caller it is to run in 2040, by that of the store in a second.
    with monkeypatch.context() as frozen:
        frozen.setattr("time.time", lambda: 2_209_000_000.0)
        save.apply_async((1,), countdown=1, score=5)
    lowkiq.clock.move(2)
    assert lowkiq.drain() == 0
    assert lowkiq.due_in(save, 1) > 86400
    assert saved == []
""",
        9,
    )


def test_the_clock(passes):
    passes(
        """
from datetime import datetime, timedelta, timezone

@pytest.mark.parametrize("wait", [3600, timedelta(hours=1)])
def test_a_countdown(lowkiq, wait):
    sync.apply_async(("1", "x"), countdown=3600)
    assert lowkiq.drain() == 0
    lowkiq.clock.move(wait)
    assert lowkiq.drain() == 1

def test_an_eta(lowkiq):
    when = datetime(2100, 1, 1, tzinfo=timezone.utc)
    sync.apply_async(("1", "x"), eta=when)
    lowkiq.clock.move_to(when - timedelta(minutes=1))
    assert lowkiq.drain() == 0
    lowkiq.clock.move_to(when.timestamp())
    assert lowkiq.drain() == 1
    assert lowkiq.clock.now() >= when.timestamp()

def test_actions_of_operators_go_by_it(lowkiq):
    lowkiq.clock.move(7200)
    sync.apply_async(("1", "x"), countdown=60)
    assert sync.ordered_queue.run_now_all() == 1
    assert lowkiq.drain() == 1
""",
        4,
    )


def test_tracked_calls(passes):
    passes(
        """
def test_a_group_is_drained_by_the_tests_clock(lowkiq):
    tracker = sync.track([{"id": 1}, {"id": 2, "payload": "bad"}])
    lowkiq.drain(propagate=False)
    assert (tracker.counts().finished, tracker.counts().enqueued) == (1, 1)
    lowkiq.clock.move(60)
    lowkiq.drain(propagate=False)
    assert tracker.wait(0)
    (failed,) = tracker.jobs("error").items
    assert failed.messages[-1].text == "ValueError: a bad one"
    assert failed.updated_at > tracker.view().opened_at + 59
""",
        1,
    )


def test_calls_of_a_plain_signature_are_compared_without_their_task_ids(passes):
    passes(
        """
from celery_lowkiq import ordered_task

@ordered_task(app=app, by="order_id")
def save(order_id, status="new"): ...


def test_it(lowkiq):
    called = save.delay(42, status="paid")
    call = {"args": [42], "kwargs": {"status": "paid"}}
    lowkiq.assert_enqueued(save, 42, call)
    lowkiq.assert_enqueued(save, 42, {**call, "task_id": called.id})
    with pytest.raises(AssertionError, match="has the payloads"):
        lowkiq.assert_enqueued(save, 42, {**call, "task_id": "another"})
    for same in ([42, "paid"], {}), ([], {"order_id": 42, "status": "paid"}), ((42,), {"status": "paid"}):
        lowkiq.assert_enqueued(save, 42, dict(zip(("args", "kwargs"), same)))
    with pytest.raises(AssertionError, match="has the payloads"):
        lowkiq.assert_enqueued(save, 42, {"args": [42], "kwargs": {}})
    with pytest.raises(AssertionError, match="has the payloads"):
        lowkiq.assert_enqueued(save, 42, call, call)

def test_a_default_is_an_argument(lowkiq):
    save.apply_async((7,), countdown=60)
    lowkiq.assert_enqueued(save, 7, {"args": [7, "new"], "kwargs": {}})
    lowkiq.assert_enqueued(save, 7, {"args": [], "kwargs": {"order_id": 7, "status": "new"}})
""",
        2,
    )


def test_what_was_enqueued(passes):
    passes(
        """
def test_it_is_read_and_asserted(lowkiq):
    sync.delay(42, {"n": 1})
    sync.delay(42, {"n": 2})
    assert lowkiq.enqueued(sync) == {"42": [{"n": 1}, {"n": 2}]}
    lowkiq.assert_enqueued(sync, 42)
    lowkiq.assert_enqueued(sync, 42, {"n": 1}, {"n": 2})
    lowkiq.assert_nothing_enqueued(first)
    with pytest.raises(AssertionError, match="has the payloads"):
        lowkiq.assert_enqueued(sync, 42, {"n": 1})
    with pytest.raises(AssertionError, match="no job '7'"):
        lowkiq.assert_enqueued(sync, 7)
    with pytest.raises(AssertionError, match="no job '7'"):
        lowkiq.due_in(sync, "7")
    with pytest.raises(AssertionError, match="jobs wait: .*sync"):
        lowkiq.assert_nothing_enqueued()

def test_more_jobs_than_a_page_holds(lowkiq):
    sync.perform_async({"id": n} for n in range(2500))
    assert len(lowkiq.enqueued(sync)) == 2500

def test_a_task_of_another_kind(lowkiq):
    from celery_lowkiq import ConfigurationError
    with pytest.raises(ConfigurationError, match="is not an ordered task"):
        lowkiq.drain(plain)
""",
        3,
    )


def test_a_worker_in_the_test(passes):
    passes(
        WITH_BROKER
        + """
def test_it_serves_what_is_called_and_takes_the_tests_time(lowkiq):
    later = sync.apply_async(("2", "y"), countdown=3600)
    with lowkiq.worker(concurrency=2):
        assert sync.delay("1", "x").get(timeout=30) == "saved"
        with pytest.raises(AssertionError, match="a worker serves"):
            lowkiq.drain(sync)
        lowkiq.clock.move(3600)
        assert later.get(timeout=30) == "saved"
    assert saved == [("1", ["x"]), ("2", ["y"])]
    sync.delay("3", "z")
    assert lowkiq.drain() == 1
""",
        1,
        HEAD,
    )


def test_the_current_app_is_the_default(passes):
    passes(
        """
def test_it(lowkiq):
    assert lowkiq.app is app

def test_eager_calls_would_store_nothing(request):
    from celery_lowkiq import ConfigurationError
    app.conf.task_always_eager = True
    with pytest.raises(ConfigurationError, match="task_always_eager"):
        request.getfixturevalue("lowkiq")
""",
        2,
        HEAD,
    )


def test_pytest_finds_the_plugin_where_the_package_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    # The name is the module's: pytest takes the plugin once, also when `-p` names it.
    entry = "celery_lowkiq.testing = celery_lowkiq.testing"
    assert config["options.entry_points"]["pytest11"].strip() == entry


@pytest.fixture
def client(redis_server):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
        yield client
        client.delete(CLOCK_KEY)


def test_no_other_store_looks_at_the_tests_clock(client):
    moved, usual = RedisStore(client, sending=FakeClockClient).client, RedisStore(client).client
    moved.move(86400)
    ((seconds, _),) = usual.commands([("TIME",)])
    assert moved.now() - seconds > 86000
    script = load("stats")
    keys = dict.fromkeys(script.keys, "nothing")
    (now, *_) = usual.call(script.call(keys))
    (later, *_) = moved.call(script.call(keys))
    assert 86000 < float(later) - float(now) < 87000
    assert "clock_key" not in script.text(True)


def test_a_worker_leaves_the_logs_to_the_test(passes):
    passes(
        WITH_BROKER
        + """
import logging

def test_it(lowkiq, caplog):
    before = logging.getLogger().handlers[:], logging.getLogger().level
    with lowkiq.worker(), caplog.at_level(logging.INFO):
        assert caplog.handler in logging.getLogger().handlers
        logging.getLogger("shop").info("told")
    assert caplog.messages.count("told") == 1
    assert (logging.getLogger().handlers, logging.getLogger().level) == before

def test_logs_of_celery_on_demand(lowkiq, caplog):
    with lowkiq.worker(loglevel="WARNING"):
        assert logging.getLogger().level == logging.WARNING
""",
        2,
    )


def test_only_a_test_that_asks_for_it_reaches_the_redis_of_the_settings(passes):
    passes(
        """
import asyncio

refused = pytest.raises(pytest.fail.Exception, match="use the fixture lowkiq_redis, or set lowkiq_redis")

def test_none_is_asked_for():
    app.set_current()
    calls = (
        lambda: sync.delay("1", "x"),
        lambda: sync.perform_async([{"id": 1}]),
        lambda: asyncio.run(sync.adelay("1", "x")),
        sync.ordered_queue.stats,
    )
    for call in calls:
        with refused:
            call()
    assert sync.apply(("1", "x")).get() == "saved"

def test_a_worker_is_started(request, lowkiq_app):
    from celery.contrib.testing.worker import start_worker
    app.conf.broker_url = request.getfixturevalue("lowkiq_server").url
    with start_worker(app, pool="threads", perform_ping_check=False):
        assert sync.delay("1", "x").get(timeout=30) == "saved"

@pytest.fixture
def redis_of_the_user(lowkiq_redis): ...

def test_it_is_asked_for(redis_of_the_user):
    assert sync.ordered_queue.stats().length == 0
""",
        3,
    )
