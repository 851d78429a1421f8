"""Runs that skip Celery's tracer: nothing but their speed differs from runs that go through it."""

from __future__ import annotations

import logging
import re
import threading
import traceback
from types import SimpleNamespace
from typing import NamedTuple

import celery
import pytest
from celery import Celery, Task, signals
from celery._state import _task_stack, get_current_worker_task
from celery.app.trace import build_tracer
from celery.backends.cache import _DUMMY_CLIENT_CACHE, CacheBackend
from celery.worker import state
from hypothesis import assume, example, given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError

from celery_lowkiq import OrderedTask, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.request import RunObservers
from celery_lowkiq.integration.run import Observed, requeued
from celery_lowkiq.integration.run_logs import BatchFilter
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.models import Batch, Lease, Recorded, ShardRef
from tests.marks import examples
from tests.unit.functions import ENDS, MIDDLEWARES, OPTIONS, STEPS, adds_links, deletes, own, writes_first
from tests.unit.lanes import Reader, TrackerStore, job

# Celery warns of each error from outside a function.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TRACE = logging.getLogger("celery.app.trace")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
#: Times and addresses, which differ from run to run.
VARYING = re.compile(r"0x[0-9a-f]+|(?<=in )[\d.e-]+(?=s: )|(?<=runtime=)[\d.]+|(?<=at )[\d-]+ [\d:]+")
CALL_ID = "3f0d4f52-7f10-4c27-8ea8-1a6ac4f2c0de"


class Failing(CacheBackend):
    """A result backend that cannot store a success."""

    def store_result(self, task_id, result, state, *args, **options):
        if state == "SUCCESS":
            raise OperationalError("away")
        return super().store_result(task_id, result, state, *args, **options)


class Plan(NamedTuple):
    """A task and its run."""

    form: str
    steps: list
    end: str
    options: dict
    middlewares: list
    logs: bool
    #: Headers of the only call, if that has a record.
    headers: dict | None = None
    backend: type = CacheBackend


PLACE = {"parent_id": "of another call", "group": "g", "root_id": "of the first"}
HEADERS = [None, {}, {"ignore_result": True}, {"ignore_result": False}, PLACE, {"headers": {"mine": 1}}]
PLANS = st.builds(
    Plan,
    st.sampled_from(["bound", "unbound", "several", "by", "by, merging"]),
    st.lists(st.sampled_from(STEPS), max_size=4),
    st.sampled_from(sorted(ENDS)),
    st.sampled_from(OPTIONS),
    st.sampled_from(MIDDLEWARES),
    st.booleans(),
    st.sampled_from(HEADERS),
    st.sampled_from([CacheBackend, CacheBackend, Failing]),
)


class Handler(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, played):
        super().__init__(logging.INFO)
        self.played = played

    def emit(self, record):
        self.played.note(record.levelname, record.name, record.funcName, record.getMessage())
        self.played.note(sorted(getattr(record, "data", None) or ()))


class Hooked(OrderedTask):
    """A task with hooks that only a failure calls."""

    abstract = True

    def on_failure(self, error, task_id, args, kwargs, einfo):
        self.play.note("on_failure", task_id, args, kwargs, own(vars(self.request)))

    def on_retry(self, error, task_id, args, kwargs, einfo):
        self.play.note("on_retry", task_id, args, kwargs)


class Next(Task):
    """Is called by links."""

    name = "next"

    def __init__(self, play):
        self.play = play

    def apply_async(self, args, *_, **options):
        self.play.note("next", args, options["parent_id"], options["root_id"])


class Play:
    """Runs a plan as a lane does, and notes all that anybody can see of it."""

    def __init__(self, plan):
        self.plan = plan
        self.seen = []
        self.is_nested = False
        self.app = Celery(
            "plain", broker="redis://localhost:1/0", backend="cache+memory://", set_as_current=False
        )
        self.app.conf.lowkiq_server_middlewares = plan.middlewares
        function, options = self.forms()[plan.form]
        options = {"retry_in": lambda retry_count: 5.0, **options, **plan.options}
        ordered_task(app=self.app, shared=False, name="t", base=Hooked, **options)(function)
        self.app.register_task(Next(self))
        self.app.finalize()
        self.task = self.app.tasks["t"]
        _DUMMY_CLIENT_CACHE.clear()
        self.task.backend = plan.backend(app=self.app, url="memory://", backend="memory")
        self.task.play = self

    def forms(self):
        def bound(task, payloads_by_id):
            return self.act(task, payloads_by_id)

        def unbound(payloads_by_id):
            return self.act(self.task, payloads_by_id)

        def by(task, a, b=1):
            return self.act(task, a, b)

        def merging(a, b=1):
            return self.act(self.task, a, b)

        return {
            "bound": (bound, {"bind": True}),
            "unbound": (unbound, {}),
            "several": (bound, {"bind": True, "batch_size": 3}),
            "by": (by, {"bind": True, "by": "a"}),
            "by, merging": (merging, {"by": "a", "merge": "min"}),
        }

    def note(self, *about):
        self.seen.append(about)

    def act(self, task, *args):
        for step in self.plan.steps:
            step(self, task, args)
        return ENDS[self.plan.end](task, args)

    def jobs(self):
        if self.plan.form == "by":
            data = b'{"args":["1"],"kwargs":{"b":2},"task_id":"%s"}' % CALL_ID.encode()
            jobs = [job(data)]
        elif self.plan.form == "by, merging":
            jobs = [job(b'{"args":["1",2],"kwargs":{}}', retry_count=0)._replace(error=b"failed before")]
        else:
            ids = ["1", "2", "3"] if self.plan.form == "several" else ["1"]
            jobs = [job(b'{"n":1}', b'{"n":[2]}', job_id=i, retry_count=n - 1) for n, i in enumerate(ids)]
        if self.plan.headers is None:
            return tuple(one._replace(calls=None, payloads=unrecorded(one.payloads)) for one in jobs)
        data = jobs[0].payloads[0].data
        return (job(data, calls=[(0, CALL_ID, self.plan.headers)]),)

    def run(self):
        state.reset_state()
        handler = Handler(self)
        level, filters = TRACE.level, TRACE.filters
        TRACE.addHandler(handler)
        TRACE.setLevel(logging.INFO if self.plan.logs else logging.WARNING)
        TRACE.filters = [BatchFilter()]
        self.task.__trace__ = build_tracer("t", self.task, self.app.loader, "host", app=self.app)
        consumer = SimpleNamespace(app=self.app, hostname="host", event_dispatcher=None)
        reader = Reader()
        runner = CeleryRunner({"t": self.task}, consumer, context_of(self.app), reader, TrackerStore())
        lease = Lease(ShardRef("t", 0), "me", 1)
        batch = Batch(self.task.queue_spec, lease, 1, self.jobs(), threading.Event())
        signals.task_failure.connect(self.failed)
        signals.task_retry.connect(self.retried)
        try:
            self.note("settlements", runner.run(batch))
        except BaseException as error:  # noqa: BLE001 - whatever it is
            self.note("ended by", error)
        finally:
            signals.task_failure.disconnect(self.failed)
            signals.task_retry.disconnect(self.retried)
            TRACE.removeHandler(handler)
            TRACE.level, TRACE.filters = level, filters
            TRACE.manager._clear_cache()
        meta = self.task.backend.get_task_meta(CALL_ID)
        # Frames of Celery and of this package are not the user's.
        raised_in = re.findall(r"unit/(\w+)\.py\", line (\d+)", meta.pop("traceback", None) or "")
        self.note({**meta, "date_done": meta.get("date_done") is not None}, raised_in)
        self.note(reader.ended, reader.started)
        self.note(len(state.active_requests), dict(state.requests))
        self.note(dict(state.total_count), state.all_total_count)
        self.note(_task_stack.stack, self.task.request_stack.stack, get_current_worker_task())
        return self.comparable()

    def failed(self, sender, task_id, exception, args, kwargs, traceback, einfo, **_):
        self.note("failure", task_id, described(exception), args, kwargs, frames(exception))

    def retried(self, sender, request, reason, einfo, **_):
        self.note("retry", request.id, described(reason), own(vars(request)), frames(reason))

    def comparable(self):
        """What was seen, without what differs from run to run; each id by the order of their first uses."""
        text = VARYING.sub("_", "\n".join(map(repr, self.seen)))
        ids = list(dict.fromkeys(UUID.findall(text)))
        return UUID.sub(lambda found: f"id {ids.index(found[0])}", text)


def unrecorded(payloads):
    return tuple(payload._replace(recorded=Recorded.NONE) for payload in payloads)


def described(error):
    """An error and what it comes from, by class."""
    chain = []
    while error is not None and len(chain) < 9:
        chain.append((type(error).__name__, getattr(error, "exc", None).__class__.__name__))
        error = error.__cause__ or error.__context__
    return chain


def frames(error):
    """The functions of this file that the error passed through."""
    found = traceback.extract_tb(error.__traceback__)
    return [(frame.name, frame.lineno) for frame in found if frame.filename == __file__]


@pytest.fixture
def traced(monkeypatch):
    """Run a plan, through the tracer or not. Returns what was seen, and whether the run was plain."""

    def play(plan, is_observed):
        plain = []
        # A payload that was rejected to run again is another one, and slows no run but its own.
        requeued.clear()
        requeued.add(0)
        with monkeypatch.context() as patched:
            look = RunObservers.look

            def watched(self):
                found = look(self) or (Observed.RUN if is_observed else None)
                plain.append(found is None)
                return found

            patched.setattr(RunObservers, "look", watched)
            seen = Play(plan).run()
        return seen, plain == [True]

    return play


@pytest.mark.random
@examples(150)
@given(plan=PLANS)
@example(plan=Plan("bound", [adds_links], "returns a value", {}, [], logs=False, headers={}))
@example(plan=Plan("bound", [deletes], "returns a value", {}, [], logs=False))
@example(plan=Plan("bound", [writes_first], "returns a value", {}, [], logs=True))
def test_a_plain_run_is_like_a_traced_one(traced, plan):
    # The tracer of an older Celery stores no result of a task that ignores results, whatever its call says.
    assume(celery.VERSION >= (5, 7) or (plan.headers or {}).get("ignore_result") is not False)
    whole, was_plain = traced(plan, is_observed=True)
    assert not was_plain
    short, was_plain = traced(plan, is_observed=False)
    assert was_plain
    assert short.splitlines() == whole.splitlines()
