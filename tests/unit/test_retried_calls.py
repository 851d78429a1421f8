"""``self.retry`` in a run, beside the retry of a plain task."""

from __future__ import annotations

import logging
from datetime import datetime, timezone

import celery
import pytest
from celery import Celery, signals
from celery.exceptions import MaxRetriesExceededError, Reject
from celery.worker import state

from celery_lowkiq import BusinessFailure, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.store.keys import shard_keys

KEYS = {"one": "0123456789abcdef0123456789abcdef"}

runs = []
#: Settings and options with which payloads and records differ.
FORMS = {
    "plain": ({}, {}),
    "signed": ({"lowkiq_signing": "require", "lowkiq_signing_keys": KEYS}, {}),
    "scored": ({"lowkiq_signing": "require", "lowkiq_signing_keys": KEYS}, {"score": 7}),
    "no result": ({"task_ignore_result": True}, {}),
}

ACCEPTING = ({"lowkiq_signing": "accept", "lowkiq_signing_keys": KEYS}, {})


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture
def lowkiq_app(lowkiq_server, request):
    runs.clear()
    settings, _ = request.getfixturevalue("form") if "form" in request.fixturenames else ({}, {})
    app = Celery("retried", broker=lowkiq_server.url, backend="cache+memory://", set_as_current=False)
    app.conf.update(settings)
    return app


@pytest.fixture
def make(lowkiq_app):
    def make(function, **options):
        given = {"by": 0, "bind": True, "max_retries": 2, "retry_in": 0.0, **options}
        return ordered_task(app=lowkiq_app, shared=False, **given)(function)

    return make


@pytest.fixture
def as_plain(lowkiq_app):
    """What a plain task returns or raises, run eagerly with its retries."""

    def run(function, args, kwargs, **options):
        task = lowkiq_app.task(shared=False, bind=True, name=f"plain_{function.__name__}", **options)(
            function
        )
        lowkiq_app.finalize()
        return task.apply(args, kwargs).get(propagate=False)

    return run


def falls_back(self, key):
    try:
        raise self.retry(countdown=0)
    except MaxRetriesExceededError as error:
        return ["fallback", list(error.task_args)]


def falls_back_to_the_error(self, key):
    try:
        raise self.retry(exc=ValueError("gone"), countdown=0)
    except ValueError as error:
        return str(error)


def falls_back_while_it_handles(self, key):
    try:
        raise OSError("away")
    except OSError as away:
        try:
            raise self.retry(exc=away, countdown=0)
        except OSError as error:
            return str(error)


def never(self, key):
    try:
        raise self.retry(countdown=0, max_retries=0)
    except MaxRetriesExceededError:
        return "never"


def dies(self, key):
    raise self.retry(countdown=0)


def dies_of_its_error(self, key):
    raise self.retry(exc=KeyError("k"), countdown=0)


def dies_at_once(self, key):
    raise self.retry(exc=KeyError("k"), max_retries=0)


def dies_of_another(self, key):
    try:
        raise self.retry(max_retries=0)
    except MaxRetriesExceededError:
        raise OSError("other") from None


ENDS = (
    *(falls_back, falls_back_to_the_error, falls_back_while_it_handles, never),
    *(dies, dies_of_its_error, dies_at_once, dies_of_another),
)


class TestUsedUpRetries:
    @pytest.mark.parametrize("function", ENDS)
    def test_are_told_inside_the_function_as_by_a_plain_task(self, lowkiq, make, as_plain, function):
        result = make(function).delay(1)
        lowkiq.drain(propagate=False)
        found, expected = result.get(propagate=False), as_plain(function, (1,), {}, max_retries=2)
        assert (type(found), result.state) == (
            type(expected),
            "SUCCESS" if "fall" in function.__name__ or function is never else "FAILURE",
        )
        if result.state == "SUCCESS":
            assert list(found) == list(expected)

    def test_of_a_batch(self, lowkiq, make):
        def tries(self, payloads_by_id):
            runs.append(self.request.retries)
            try:
                raise self.retry()
            except MaxRetriesExceededError:
                return "fallback"

        result = make(tries, by=None).delay(1, "x")
        lowkiq.drain()
        assert (runs, result.get()) == ([0, 1, 2], "fallback")

    def test_of_several_ids_only_when_none_would_run_again(self, lowkiq, make):
        def tries(self, payloads_by_id):
            runs.append(sorted(payloads_by_id))
            try:
                raise self.retry()
            except MaxRetriesExceededError:
                return "fallback"

        task = make(tries, by=None, batch_size=2, shards=1, max_retries=0)
        results = [task.delay(n, "x") for n in (1, 2)]
        lowkiq.drain()
        # A failed batch of several does not die: its jobs run alone.
        assert runs == [["1", "2"], ["1"], ["2"]]
        assert [result.get() for result in results] == ["fallback"] * 2

    def test_without_a_limit_there_is_another_run(self, lowkiq, make):
        def tries(self, key):
            runs.append(self.request.retries)
            if len(runs) < 5:
                raise self.retry()
            return "fifth"

        result = make(tries, max_retries=None).delay(1)
        lowkiq.drain()
        assert result.get() == "fifth"

    def test_throw_false_runs_again_also_without_celerys_tracer(self, lowkiq, make):
        def tries(self, key):
            runs.append(self.request.retries)
            if not self.request.retries:
                self.retry(throw=False)
            return len(runs)

        result = make(tries).delay(1)
        lowkiq.drain()
        assert (runs, result.get()) == ([0, 1], 2)

    def test_of_autoretry_for_and_of_dont_retry(self, lowkiq, make):
        def tries(self, key):
            runs.append(self.request.retries)
            raise ValueError("v")

        result = make(tries, autoretry_for=(ValueError,), retry_kwargs={"max_retries": 1}).delay(1)
        lowkiq.drain(propagate=False)
        assert (runs, type(result.get(propagate=False))) == ([0, 1], ValueError)

        def hopeless(self, key):
            try:
                raise self.retry(exc=KeyError("k"))
            except KeyError:
                return "told"

        result = make(hopeless, dont_retry=(KeyError,), name="hopeless").delay(1)
        lowkiq.drain(propagate=False)
        assert result.get() == "told"


class TestChanges:
    def test_arguments_replace_those_of_the_call(self, lowkiq, make, as_plain, form):
        #: By id: arguments of the call, what its retry changes, and what the next run gets.
        cases = {
            1: ((1, 2), {}, {"args": (1, 5)}, (1, 5, None)),
            2: ((2, 2), {"label": "kept"}, {"args": (2, 5)}, (2, 5, "kept")),
            3: ((), {"key": 3, "n": 2, "label": "kept"}, {"args": (3, 5)}, (3, 5, "kept")),
            4: ((4, 2), {}, {"kwargs": {"n": 5}}, (4, 5, None)),
            5: ((5, 2), {}, {"args": (), "kwargs": {"key": 5, "n": 5, "label": "new"}}, (5, 5, "new")),
        }

        def step(self, key, n, label=None):
            runs.append((key, n, label, self.request.id))
            if not self.request.retries:
                raise self.retry(countdown=0, **cases[key][2])
            return [key, n, label]

        task = make(step)
        results = {key: task.apply_async(*case[:2], **form[1]) for key, case in cases.items()}
        behind = {key: task.apply_async((key, "behind"), **form[1]) for key in cases}
        lowkiq.drain()
        lowkiq.drain()
        for key, (args, kwargs, _, expected) in cases.items():
            own, result = [run for run in runs if run[0] == key], results[key]
            assert [run[:3] for run in own if run[3] == result.id][1:] == [expected]
            assert [run[3] for run in own[:2]] == [result.id] * 2
            assert own[-1][3] == behind[key].id
            if not task.ignore_result:
                assert result.get() == list(expected)
                # A retry of an older Celery mixes new arguments with those of the call, and may fail.
                if celery.VERSION >= (5, 7):
                    assert as_plain(step, args, kwargs) == list(expected)
        assert lowkiq.enqueued(task) == {}
        assert calls_left(task) == 0

    @pytest.mark.parametrize(
        "change", [{"args": (2, 5)}, {"args": ()}, {"args": (1, 2, 3, 4, 5)}, {"args": (1, object())}]
    )
    def test_arguments_of_no_call_of_the_id_are_a_death_at_once(self, lowkiq, make, change):
        def step(self, key, n, label=None):
            runs.append(n)
            raise self.retry(countdown=0, **change)

        task = make(step)
        result = task.delay(1, 2)
        lowkiq.drain()
        assert (runs, result.state, type(result.get(propagate=False))) == ([2], "FAILURE", Reject)
        assert task.ordered_queue.job("1").dead.payload_count == 1

    def test_expires_is_that_of_the_call_from_now_on(self, lowkiq, make, form):
        expires = {"later": 60, "past": datetime(2020, 1, 1, tzinfo=timezone.utc)}

        def late(self, key):
            runs.append((key, self.request.retries))
            if not self.request.retries:
                raise self.retry(countdown=0, expires=expires[key])

        task = make(late)
        results = [task.apply_async((key,), **form[1]) for key in expires]
        lowkiq.drain()
        assert sorted(runs) == [("later", 0), ("later", 1), ("past", 0)]
        assert task.ignore_result or [result.state for result in results] == ["SUCCESS", "REVOKED"]
        assert (lowkiq.enqueued(task), calls_left(task)) == ({}, 0)

    def test_headers_replace_the_users(self, lowkiq, make, form):
        def step(self, key):
            runs.append(dict(self.request.headers or {}))
            if not self.request.retries:
                raise self.retry(countdown=0, headers={"try": "second"})

        task = make(step)
        task.apply_async((1,), headers={"tenant": "a"}, **form[1])
        lowkiq.drain()
        assert [run.get("tenant") for run in runs] == ["a", None]
        assert runs[1]["try"] == "second"
        assert calls_left(task) == 0

    @pytest.mark.parametrize("by", [0, None])
    def test_priority(self, lowkiq, make, by):
        def first(self, *args):
            runs.append(self.request.id)
            if not self.request.retries:
                raise self.retry(countdown=100, priority=12)

        task = make(first, by=by, shards=1)
        task.delay(1, "x") if by is None else task.delay(1)
        lowkiq.drain()
        assert task.ordered_queue.job("1").waiting.priority == 9

    def test_what_only_routes_is_ignored_with_one_warning(self, lowkiq, make, caplog):
        def step(self, key):
            runs.append(self.request.retries)
            raise self.retry(queue="other", routing_key="r", serializer="pickle", link=[])

        task = make(step)
        with caplog.at_level(logging.WARNING):
            results = [task.delay(n) for n in (1, 2)]
            lowkiq.drain(propagate=False)
        assert sorted(runs) == [0, 0, 1, 1, 2, 2]
        assert {type(result.get(propagate=False)) for result in results} == {MaxRetriesExceededError}
        said = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
        assert len(said) == 4
        assert "retry(queue=) is ignored, because the job goes back to its own queue" in said[0]

    def test_a_batch_has_no_arguments_to_replace(self, lowkiq, make, caplog):
        def step(self, payloads_by_id):
            runs.append(payloads_by_id)
            raise self.retry(args=({"1": ["other"]},))

        result = make(step, by=None, max_retries=1).delay(1, "x")
        with caplog.at_level(logging.WARNING):
            lowkiq.drain(propagate=False)
        assert runs == [{"1": ["x"]}] * 2
        assert type(result.get(propagate=False)) is MaxRetriesExceededError
        assert "retry(args=) is ignored" in caplog.text


@pytest.mark.parametrize("observed", [True, False], ids=["traced", "light"])
@pytest.mark.parametrize("by, ignored", [(0, True), (0, False), (None, False)])
def test_successful_runs_are_among_celerys_successful_requests(lowkiq, make, by, ignored, observed):
    def succeeds(self, *args):
        if args == (2,):
            raise BusinessFailure("no")

    task = make(succeeds, by=by, ignore_result=ignored)
    results = [task.delay(1) if by == 0 else task.delay(1, "x")]
    failed = [task.delay(2)] if by == 0 else []
    signals.task_success.connect(note := lambda **_: None) if observed else None
    lowkiq.drain(propagate=False)
    signals.task_success.disconnect(note) if observed else None
    assert {result.id for result in results} <= set(state.successful_requests)
    assert not [result for result in failed if result.id in state.successful_requests]


class TestRedelivered:
    @pytest.mark.parametrize("by", [0, None])
    @pytest.mark.parametrize("ignored", [True, False])
    def test_a_rejected_call_sees_that_it_ran_before(self, lowkiq, make, by, ignored):
        """Celery's own example of ``Reject(requeue=True)`` ends."""

        def sample(self, *args):
            runs.append(self.request.delivery_info["redelivered"])
            if not runs[-1]:
                raise Reject("not yet", requeue=True)

        task = make(sample, by=by, ignore_result=ignored)
        for _ in range(2):
            task.delay(1) if by == 0 else task.delay(1, "x")
            lowkiq.drain()
            lowkiq.clock.move(2)
            lowkiq.drain()
        assert runs == [False, True] * 2

    def test_a_call_whose_worker_died_sees_that_it_ran_before(self, lowkiq, make):
        def notes(self, key):
            runs.append(self.request.delivery_info["redelivered"])

        task = make(notes, shards=1)
        task.delay(1)
        store, spec = context_of(task.app).store, task.queue_spec
        (shard,) = spec.shard_refs()
        lease = store.acquire(spec, shard, "drain@test-died", store.observe([shard])[0], 0)
        assert store.claim(spec, lease, 1).jobs
        lowkiq.drain()
        task.delay(1)
        lowkiq.drain()
        assert runs == [True, False]


@pytest.mark.parametrize("options", [{}, {"job_ttl": 60}], ids=["changed", "begun"])
@pytest.mark.parametrize("mode", ["off", "accept"])
@pytest.mark.parametrize("form", [ACCEPTING], ids=[""])
def test_a_call_that_nobody_signed_stays_unsigned(
    lowkiq, lowkiq_server, lowkiq_app, make, form, mode, options
):
    """A worker that accepts it must not make it one that ``require`` lets pass."""

    def tries(self, key):
        raise self.retry(headers={"tenant": "acme"}, args=(key, "again"), countdown=60)

    def also(self, key, again=None):
        return tries(self, key)

    task = make(also, name="tries", **options)
    caller = Celery("caller", broker=lowkiq_server.url, backend="cache+memory://", set_as_current=False)
    caller.conf.update(lowkiq_signing=mode, lowkiq_signing_keys=KEYS)
    ordered_task(app=caller, shared=False, name="tries", by=0, bind=True, **options)(also).delay(1)
    lowkiq.drain(propagate=False)
    client = context_of(lowkiq_app).store.client
    keys = [shard_keys(shard)["calls"] for shard in task.queue_spec.shard_refs()]
    (member,) = [one for key in keys for one in client.servers.redis.zrange(key, 0, -1)]
    record = member[len(b"1\0") + 10 + 12 :]
    assert b"acme" in record
    assert record[:1] == (b"[" if mode == "off" else b"c")
    context_of(caller).store.close()


def calls_left(task):
    """The number of records of calls in the store."""
    client = context_of(task.app).store.client
    return sum(
        client.commands([("ZCARD", shard_keys(shard)["calls"]) for shard in task.queue_spec.shard_refs()])
    )
