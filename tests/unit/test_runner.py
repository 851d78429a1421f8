"""What becomes of a job when something around its function fails. Celery's own tracer, no Redis."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import weakref
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery import Celery, Task, signals
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject

from celery_lowkiq import Again, ConfigurationError, JobsFailed, OrderedTask, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.request import RunObservers
from celery_lowkiq.integration.run import Observed
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import Batch, Disposition, Job, Lease, Payload, ShardRef
from celery_lowkiq.rules.text import last_error_line

# Celery warns of each error from outside a function.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def run():
    """Run a bound function on one job as a lane does: its settlement, and the states that Celery told."""
    states = []

    def note_state(state=None, retval=None, **_):
        states.append((state, type(retval).__name__))

    signals.task_postrun.connect(note_state)

    def run_once(function, init=None, settings=None, **options):
        states.clear()
        app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
        app.conf.update(settings or {})
        options = {"retry_in": lambda retry_count: 1, **options}
        task = ordered_task(app=app, shared=False, bind=True, name="t", **options)(function)
        app.finalize()
        if init is not None:
            app.loader.on_task_init = init
        task.__trace__ = build_tracer(task.name, task, app.loader, "host", app=app)
        consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=None)
        runner = CeleryRunner({"t": task}, consumer, context_of(app), reader=None, tracker_store=None)
        job = Job("1", (Payload(b'"x"', 1.0),), perform_in=0.0, claim=1)
        lease = Lease(ShardRef("t", 0), "me", 1)
        (settlement,) = runner.run(Batch(task.queue_spec, lease, 1, (job,), lost=threading.Event()))
        return settlement, list(states)

    yield run_once
    signals.task_postrun.disconnect(note_state)


def said(settlement):
    return last_error_line(read_mark(settlement.error)[1].decode())


def returns(self, payloads_by_id):
    return None


def raises(self, payloads_by_id):
    raise ValueError("boom")


def fails(*_):
    raise RuntimeError("around")


@pytest.mark.parametrize("hook", ["on_success", "after_return"])
def test_what_fails_after_the_function_returned_does_not_repeat_it(run, hook):
    settlement, _ = run(returns, base=type("Hooked", (OrderedTask,), {"abstract": True, hook: fails}))
    assert settlement.disposition is Disposition.DONE


class Odd(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(f"no {name}")


def test_an_exception_whose_attributes_cannot_be_read_is_a_failure(run):
    """The lane ended with it, and so did the worker."""

    def raises_odd(*_):
        raise Odd

    settlement, _ = run(raises_odd)
    assert settlement.disposition is Disposition.RETRY


def test_a_job_whose_function_never_ran_is_not_done(run):
    settlement, _ = run(returns, init=fails)
    assert (settlement.disposition, said(settlement)) == (Disposition.RETRY, "RuntimeError: around")
    settlement, states = run(
        returns, base=type("Hooked", (OrderedTask,), {"abstract": True, "before_start": fails})
    )
    assert (settlement.disposition, said(settlement)) == (Disposition.RETRY, "RuntimeError: around")
    assert states == [("RETRY", "Retry")]


class Order:
    """A local object of a function."""


def causes(*_):
    try:
        raise KeyError("no stock")
    except KeyError as error:
        raise ValueError("boom") from error


def names_what_it_caught(*_):
    errors = {}
    try:
        raise KeyError("no stock")
    except KeyError as error:
        errors["1"] = error
    raise JobsFailed(errors)


def ignores(*_):
    raise Ignore


def rejects(*_):
    raise Reject("no")


def continues(*_):
    raise Again(after=1)


@pytest.mark.parametrize(
    "ends",
    [raises, causes, names_what_it_caught, ignores, rejects, continues],
    ids=["error", "error with a cause", "JobsFailed", "Ignore", "Reject", "Again"],
)
def test_what_a_run_that_raises_had_is_freed_at_its_end_without_the_garbage_collector(run, ends):
    kept = []

    def works(self, payloads_by_id):
        order = Order()
        kept.append(weakref.ref(order))
        ends(order)

    gc.disable()
    try:
        run(works)
        assert [order() for order in kept] == [None]
    finally:
        gc.enable()


@dataclass(frozen=True)
class Frozen(Exception):
    """Has attributes that cannot be set."""

    code: int


def raises_frozen(*_):
    raise Frozen(4)


def test_an_error_whose_attributes_cannot_be_set_is_an_error_as_any_other(run):
    settlement, states = run(raises_frozen)
    assert (settlement.disposition, said(settlement)) == (Disposition.RETRY, f"{__name__}.Frozen: 4")
    assert states == [("RETRY", "Retry")]


class Halt(BaseException):
    """No ``Exception``, as ``asyncio.CancelledError`` or ``trio.Cancelled``."""


HALT = f"{__name__}.Halt: now"


def halts(*_):
    raise Halt("now")


def handles(self, payloads_by_id):
    try:
        halts()
    except Halt:
        raise self.retry(countdown=9) from None


def names_it(self, payloads_by_id):
    raise JobsFailed({"1": Halt("now")})


class TestBaseException:
    """O5: what is no ``Exception`` fails the run, wherever a task's own code raises it."""

    @pytest.mark.parametrize(
        "max_retries, disposition, state", [(1, Disposition.RETRY, "RETRY"), (0, Disposition.DIE, "FAILURE")]
    )
    @pytest.mark.parametrize("function", [halts, names_it, handles])
    def test_of_the_function(self, run, function, max_retries, disposition, state):
        settlement, states = run(function, max_retries=max_retries)
        assert settlement.disposition is disposition
        if function is handles and max_retries == 0:
            # As of a plain task whose retry() has no exc=; its cause is the Halt.
            assert states == [("FAILURE", "MaxRetriesExceededError")]
            return
        assert said(settlement) == HALT
        assert states == [(state, "Retry" if max_retries else "RunAborted")]

    @pytest.mark.parametrize("hook", ["before_start", "__call__"])
    def test_before_the_function(self, run, hook):
        settlement, _ = run(returns, base=type("Hooked", (OrderedTask,), {"abstract": True, hook: halts}))
        assert (settlement.disposition, said(settlement)) == (Disposition.RETRY, HALT)

    @pytest.mark.parametrize(
        "hook, function, disposition",
        [
            ("on_success", returns, Disposition.DONE),
            ("after_return", returns, Disposition.DONE),
            ("on_retry", raises, Disposition.RETRY),
        ],
    )
    def test_of_a_hook_after_the_function(self, run, caplog, hook, function, disposition):
        settlement, _ = run(function, base=type("Hooked", (OrderedTask,), {"abstract": True, hook: halts}))
        assert settlement.disposition is disposition
        assert "a run of t failed outside its function" in caplog.messages

    def test_of_a_middleware_and_one_that_watches(self, run):
        seen = []

        def watches(task, batch, call):
            try:
                return call()
            except BaseException as error:
                seen.append(error)
                raise

        settings = {"lowkiq_server_middlewares": [watches]}
        settlement, _ = run(halts, settings=settings)
        assert (settlement.disposition, [type(error) for error in seen]) == (Disposition.RETRY, [Halt])
        settlement, _ = run(returns, settings={"lowkiq_server_middlewares": [halts]})
        assert (settlement.disposition, said(settlement)) == (Disposition.RETRY, HALT)

    def test_of_autoretry_dont_retry_and_retry_in(self, run):
        settlement, _ = run(halts, autoretry_for=(Halt,))
        assert (settlement.disposition, said(settlement)) == (Disposition.RETRY, HALT)
        assert run(halts, dont_retry=(Halt,))[0].disposition is Disposition.DIE
        asked = []
        assert run(halts, retry_in=lambda exc, n: asked.append(exc) or 7)[0].delay == 7
        assert [type(error) for error in asked] == [Halt]
        assert run(halts, retry_in=lambda n: halts())[0].disposition is Disposition.RETRY

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_what_ends_a_worker_passes(self, run, kind):
        def ends(self, payloads_by_id):
            raise kind

        with pytest.raises(kind):
            run(ends)
        with pytest.raises(ConfigurationError, match="dont_retry"):
            run(ends, dont_retry=(kind,))
        with pytest.raises(TypeError, match="an exception for each id"):
            JobsFailed({"1": kind()})


class Secretive(Exception):
    """Like an error that finds its attributes in the answer of a service."""

    def __getattr__(self, name):
        raise KeyError(name)


def test_an_error_that_cannot_be_shown_does_not_end_the_lane(run, monkeypatch, caplog):
    def shown(*_):
        raise KeyError("__notes__")

    def around_it(*_):
        raise Secretive("x")

    with monkeypatch.context() as patched:
        patched.setattr(logging.Formatter, "formatException", shown)
        patched.setattr(logging.Handler, "handleError", shown)
        settlement, _ = run(returns, init=around_it)
    assert settlement.disposition is Disposition.RETRY
    # Celery has looked at it, and met the error of its attributes.
    assert "a run of t failed outside its function, by a KeyError that cannot be formatted" in caplog.messages


def around(call):
    """A base that does something around each run."""
    return type("Around", (OrderedTask,), {"abstract": True, "__call__": call})


def plain_base(call):
    """The same base, of Celery's own task class."""
    return type("Around", (Task,), {"abstract": True, "__call__": call})


@pytest.mark.parametrize(
    "max_retries, disposition, state", [(1, Disposition.RETRY, "RETRY"), (0, Disposition.DIE, "FAILURE")]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_fails_by_what_is_raised_around_it(run, when, max_retries, disposition, state):
    def call(self, *args):
        if when == "after":
            OrderedTask.__call__(self, *args)
        raise RuntimeError("around")

    settlement, states = run(returns, base=around(call), max_retries=max_retries)
    assert (settlement.disposition, said(settlement)) == (disposition, "RuntimeError: around")
    assert [told for told, _ in states] == [state]


def test_what_only_passes_by_is_decided_once(run):
    def call(self, *args):
        try:
            return OrderedTask.__call__(self, *args)
        finally:
            args[0].clear()

    def again(self, payloads_by_id):
        raise self.retry(countdown=77)

    settlement, states = run(again, base=around(call))
    assert (settlement.disposition, settlement.delay, states) == (
        Disposition.RETRY,
        77.0,
        [("RETRY", "Retry")],
    )


def tries_again(self, *args):
    try:
        return self.run(*args)
    except ValueError:
        return self.run(*args)


def handles_it(self, *args):
    with contextlib.suppress(ValueError):
        return self.run(*args)


def fails_again(self, *args):
    try:
        return self.run(*args)
    except ValueError:
        raise KeyError("second") from None


class TestACallThatHandlesTheErrorOfItsFunction:
    """A task class with such a ``__call__``, beside a plain task of Celery with the same."""

    @pytest.mark.parametrize("max_retries", [0, 1])
    @pytest.mark.parametrize("call", [tries_again, handles_it])
    def test_its_run_succeeds(self, run, call, max_retries):
        errors = [ValueError("first")]

        def flaky(*_):
            if errors:
                raise errors.pop()

        plain = Celery("plain", set_as_current=False).task(base=plain_base(call), bind=True)(flaky)
        assert plain.apply(args=({"1": ["x"]},)).state == "SUCCESS"
        errors.append(ValueError("first"))
        settlement, states = run(flaky, base=around(call), max_retries=max_retries)
        assert (settlement.disposition, states) == (Disposition.DONE, [("SUCCESS", "NoneType")])

    @pytest.mark.parametrize(
        "call, text", [(fails_again, "KeyError: 'second'"), (tries_again, "ValueError: boom")]
    )
    def test_its_run_fails_by_what_it_raises(self, run, call, text):
        plain = Celery("plain", set_as_current=False).task(base=plain_base(call), bind=True)(raises)
        assert plain.apply(args=({"1": ["x"]},)).traceback.endswith(f"{text}\n")
        settlement, _ = run(raises, base=around(call), max_retries=1)
        assert (settlement.disposition, said(settlement)) == (Disposition.RETRY, text)


#: A failing on_retry makes Celery call on_failure.
BROKEN = {"abstract": True, "on_failure": fails, "on_retry": fails}


@pytest.mark.parametrize("max_retries, disposition", [(0, Disposition.DIE), (1, Disposition.RETRY)])
def test_failing_hooks_do_not_hide_the_error(run, max_retries, disposition):
    settlement, _ = run(raises, base=type("Hooked", (OrderedTask,), BROKEN), max_retries=max_retries)
    assert (settlement.disposition, said(settlement)) == (disposition, "ValueError: boom")


def test_failing_hooks_keep_the_pause_that_was_asked_for(run):
    def again(self, payloads_by_id):
        raise self.retry(countdown=77)

    settlement, _ = run(again, base=type("Hooked", (OrderedTask,), BROKEN))
    assert (settlement.disposition, settlement.delay) == (Disposition.RETRY, 77.0)


class TestRetry:
    def test_its_error_is_the_one_being_handled(self, run):
        def handles(self, payloads_by_id):
            try:
                raise KeyError("original")
            except KeyError:
                raise self.retry(countdown=3)  # noqa: B904 - as Celery's users write it

        settlement, states = run(handles)
        assert (settlement.disposition, settlement.delay, said(settlement)) == (
            Disposition.RETRY,
            3.0,
            "KeyError: 'original'",
        )
        assert states == [("RETRY", "Retry")]
        settlement, states = run(handles, max_retries=0)
        assert settlement.disposition is Disposition.DIE
        assert states == [("FAILURE", "MaxRetriesExceededError")]

    def test_eta_and_max_retries(self, run):
        def at(self, payloads_by_id):
            raise self.retry(eta=datetime.now(timezone.utc) + timedelta(seconds=100), exc=KeyError("x"))

        def once(self, payloads_by_id):
            raise self.retry(max_retries=0)

        settlement, _ = run(at)
        assert said(settlement) == "KeyError: 'x'"
        assert 60 < settlement.delay <= 100
        assert run(once)[0].disposition is Disposition.DIE

    def test_without_a_time_the_pause_is_retry_in(self, run):
        def again(self, payloads_by_id):
            raise self.retry()

        assert run(again, retry_in=lambda retry_count: 42)[0].delay == 42

    def test_without_any_error_a_death_is_still_a_failure(self, run):
        def again(self, payloads_by_id):
            raise self.retry()

        settlement, states = run(again)
        assert said(settlement) == "celery.exceptions.Retry: asked for by self.retry()"
        assert states == [("RETRY", "Retry")]
        settlement, states = run(again, max_retries=0)
        assert settlement.disposition is Disposition.DIE
        assert states == [("FAILURE", "MaxRetriesExceededError")]

    def test_with_throw_false_the_run_goes_on_and_runs_again(self, run):
        def goes_on(self, payloads_by_id):
            assert self.retry(throw=False, countdown=5).when == 5
            return "not the result"

        settlement, states = run(goes_on)
        assert (settlement.disposition, settlement.delay) == (Disposition.RETRY, 5)
        assert states == [("RETRY", "Retry")]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_retries": "3"},
            {"max_retries": 1.5},
            {"max_retries": -1},
            {"max_retries": True},
        ],
    )
    def test_what_it_cannot_mean_is_refused(self, run, wrong):
        def again(self, payloads_by_id):
            raise self.retry(**wrong)

        settlement, _ = run(again)
        assert settlement.disposition is Disposition.RETRY
        assert f"InvalidCall: {next(iter(wrong))}=" in said(settlement)

    def test_autoretry_for(self, run):
        options = {"autoretry_for": (ValueError,), "retry_kwargs": {"countdown": 7, "max_retries": 3}}
        settlement, _ = run(raises, **options)
        assert (settlement.disposition, settlement.delay, said(settlement)) == (
            Disposition.RETRY,
            7.0,
            "ValueError: boom",
        )
        options["retry_kwargs"]["max_retries"] = 0
        settlement, states = run(raises, **options)
        assert settlement.disposition is Disposition.DIE
        assert states == [("FAILURE", "ValueError")]


@pytest.mark.parametrize("groups, told", [(["worker"], False), ([], True), (["worker", "task"], True)])
def test_without_task_events_a_run_makes_no_request_object(groups, told):
    """A worker without -E has events about itself only."""
    events = SimpleNamespace(enabled=True, groups=set(groups), send=lambda *_, **__: None)
    task = SimpleNamespace(send_events=True, __trace__=None)
    observers = RunObservers(task, SimpleNamespace(event_dispatcher=events))
    assert (observers.look() is Observed.REQUEST) == told
