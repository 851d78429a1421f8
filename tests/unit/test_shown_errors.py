"""Classes of errors in results, events and signals: a caller can catch each, because it is public."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re

import pytest
from celery import signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, TimeLimitExceeded

import celery_lowkiq
from celery_lowkiq import Again, BusinessFailure, JobsFailed
from celery_lowkiq.integration.records import finish_orphaned_calls
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT
from tests.unit.lanes import Lane, job

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
PARTS = ("integration", "rules", "store", "worker")


class Halt(BaseException):
    """No ``Exception``."""


def raising(error):
    def function(self, payloads_by_id):
        raise error

    return function


def retries(self, payloads_by_id):
    raise self.retry(countdown=1)


def retries_for_an_error(self, payloads_by_id):
    raise self.retry(exc=KeyError("k"))


def names_a_job(self, payloads_by_id):
    raise JobsFailed({"1": Again([b"unknown"])})


FUNCTIONS = {
    "error": raising(ValueError("boom")),
    "business failure": raising(BusinessFailure("no")),
    "reject": raising(Reject("not mine", requeue=False)),
    "requeue": raising(Reject("not now", requeue=True)),
    "ignore": raising(Ignore()),
    "retry": retries,
    "retry for an error": retries_for_an_error,
    "again": raising(Again(after=1)),
    "again with an unknown payload": raising(Again(["unknown"])),
    "a job fails so": names_a_job,
    "unknown job": raising(JobsFailed({"other": ValueError("unknown")})),
    "no job": raising(JobsFailed({})),
    "base exception": raising(Halt("now")),
    "soft time limit": raising(SoftTimeLimitExceeded(1)),
    "time limit": raising(TimeLimitExceeded(1)),
}


@pytest.fixture(scope="module")
def private():
    """Names of the private classes of exceptions."""
    found = set()
    for part in PARTS:
        package = importlib.import_module(f"celery_lowkiq.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            names = vars(importlib.import_module(module.name)).items()
            found |= {name for name, kind in names if _is_error(kind) and kind.__name__ == name}
    assert "ReportingFailed" in found - set(celery_lowkiq.__all__)
    return found - set(celery_lowkiq.__all__)


def _is_error(kind):
    return (
        isinstance(kind, type)
        and issubclass(kind, BaseException)
        and kind.__module__.startswith("celery_lowkiq.")
    )


@pytest.fixture
def told():
    """The exceptions that signals bring."""
    found = []

    def failed(exception, **_):
        found.append(exception)

    def retried(reason, **_):
        found.append(reason)

    signals.task_failure.connect(failed)
    signals.task_retry.connect(retried)
    yield found
    signals.task_failure.disconnect(failed)
    signals.task_retry.disconnect(retried)


def shown(lane, told, ids):
    """What results, signals and events say of errors."""
    errors = [*told, *(lane.result(task_id) for task_id in ids)]
    errors += [error.exc for error in errors if getattr(error, "exc", None) is not None]
    stored = [str(lane.app.backend.client.get(lane.app.backend.get_key_for_task(each))) for each in ids]
    texts = [str(fields.get(name)) for _, fields in lane.events for name in ("exception", "traceback")]
    return [*stored, *texts, *(type(error).__name__ for error in errors)]


def is_free_of(private, found):
    words = set(re.findall(r"\w+", " ".join(found)))
    return not words & private


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_of_a_run_are_public(private, told, function):
    """With events and without, at the last run and before, of one call and of merged ones."""
    for max_retries, has_events, count in itertools.product([0, 1], [True, False], [1, 2]):
        told.clear()
        lane = Lane(function, max_retries=max_retries)
        lane.runner._consumer.event_dispatcher.enabled = has_events
        ids = ["a", "b"][:count]
        lane.run(job(*[b"7", b"8"][:count], calls=list(enumerate(ids))))
        assert is_free_of(private, shown(lane, told, ids)), (max_retries, has_events, count)


def test_of_calls_without_a_run_are_public(private, told):
    lane = Lane(retries)
    lane.run(job(b"7", calls=[(0, "a")], retry_count=POISON_PILL_RETRY_COUNT))
    lane.run(job(b"\xff", calls=[(0, "b")]))
    finish_orphaned_calls(lane.task, job(b"7", calls=[(0, "c")]).calls.records, dead=True)
    found = [type(lane.result(each)) for each in "abc"]
    assert found == [
        celery_lowkiq.PoisonPill,
        celery_lowkiq.UndecodablePayload,
        celery_lowkiq.BuriedByOperator,
    ]
    assert is_free_of(private, shown(lane, told, "abc"))


@pytest.mark.parametrize("has_events", [True, False], ids=["events", "quiet"])
@pytest.mark.parametrize("calls", [1, 2], ids=["alone", "merged"])
def test_a_rejected_call_ends_as_that_of_a_plain_task(told, calls, has_events):
    """As Celery does from 5.7 on: a stored Reject, one signal and one event for each call."""
    lane = Lane(FUNCTIONS["reject"])
    lane.runner._consumer.event_dispatcher.enabled = has_events
    ids = ["a", "b"][:calls]
    lane.run(job(*[b"7", b"8"][:calls], calls=list(enumerate(ids))))
    for task_id in ids:
        assert (lane.state(task_id), type(lane.result(task_id))) == ("FAILURE", Reject)
        assert lane.result(task_id).reason == "not mine"
    of_calls = [kind for kind, fields in lane.events if fields["uuid"] in ids]
    assert (of_calls.count("task-failed"), of_calls.count("task-rejected")) == (
        (calls, calls) if has_events else (0, 0)
    )
    # Beside its calls, the run of several is a run of its own.
    assert len(told) == (1 if calls == 1 else calls + 1)
