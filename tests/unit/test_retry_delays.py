"""How long a failed job waits: each way to say it, against the tables of Lowkiq and Gator."""

from __future__ import annotations

import functools
import logging
from dataclasses import fields
from datetime import timedelta

import pytest
from celery import Celery

from celery_lowkiq import ConfigurationError, OrderedTask, ordered_task
from celery_lowkiq.integration.decisions import guarded, policy_of
from celery_lowkiq.integration.options import RetryOptions
from celery_lowkiq.rules import retry
from celery_lowkiq.rules.models import Disposition, Job, Payload
from celery_lowkiq.rules.retry import RetryPolicy, after_failure, read_delay_function


def work(payloads_by_id):
    return None


ERROR = ValueError("boom")
MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.fixture
def default_is_7(monkeypatch):
    monkeypatch.setattr(retry, "default_delay", lambda retry_count: 7.0)


def test_gators_table_of_exponential_pauses():
    """The first fifteen, as its author printed them."""
    pause = read_delay_function("exponential")
    found = [pause(ERROR, n) for n in range(15)]
    assert found[:3] == [30, 31, pytest.approx(1.0333333333333334 * MINUTE)]
    minutes = [4.55, 17.566666666666666, 52.583333333333336]
    assert found[3:6] == pytest.approx([m * MINUTE for m in minutes])
    hours = [(2, 10.1), (4, 40.61666666666667), (9, 6.633333333333334), (16, 24.65)]
    assert found[6:10] == pytest.approx([h * HOUR + m * MINUTE for h, m in hours])
    days = [(1, 3, 47.166666666666664), (1, 20, 44.68333333333333), (2, 21, 7.7), (4, 7, 8.716666666666667)]
    days.append((6, 5, 24.233333333333334))
    assert found[10:] == pytest.approx([d * DAY + h * HOUR + m * MINUTE for d, h, m in days])


def by_kind(exc, retry_count):
    """Gator's example of a custom policy."""
    if isinstance(exc, KeyError):
        return False
    if isinstance(exc, ConnectionError):
        return "exponential"
    return [300, 600, 1500][retry_count]


@pytest.mark.parametrize(
    "retry_in, expected",
    [
        (300, [300, 300, 300, 300]),
        (0, [0, 0, 0, 0]),
        (timedelta(minutes=2), [120, 120, 120, 120]),
        ([10, 20, 30], [10, 20, 30, False]),
        ((timedelta(seconds=1.5), 2), [1.5, 2, False, False]),
        (lambda retry_count: 10 * (retry_count + 1), [10, 20, 30, 40]),
        (lambda n: [10, 20, 30][n] if n < 3 else False, [10, 20, 30, False]),
        (lambda n: timedelta(hours=n), [0, HOUR, 2 * HOUR, 3 * HOUR]),
        (lambda n: "exponential", [30, 31, 62, 273]),
        (lambda n: None, [7, 7, 7, 7]),
        (None, [7, 7, 7, 7]),
        (lambda exc, n: n if exc is ERROR else 1 / 0, [0, 1, 2, 3]),
        (functools.partial(lambda factor, n: factor * n, 5), [0, 5, 10, 15]),
        (lambda n, factor=2: n * factor, [0, 2, 4, 6]),
        (lambda n=0: n, [0, 1, 2, 3]),
        (lambda n, *others, **more: n, [0, 1, 2, 3]),
        (lambda n: 1e300, [1e9] * 4),
    ],
)
def test_each_policy(retry_in, expected, default_is_7):
    pause = read_delay_function(retry_in)
    found = [pause(ERROR, n) for n in range(4)]
    assert found == expected
    assert [seconds is False for seconds in found] == [seconds is False for seconds in expected]


def test_a_function_may_decide_by_the_exception():
    pause = read_delay_function(by_kind)
    assert pause(KeyError("deleted"), 0) is False
    assert pause(ConnectionError("down"), 2) == 62
    assert [pause(ERROR, n) for n in range(3)] == [300, 600, 1500]


@pytest.mark.parametrize(
    "retry_in, words",
    [
        (-1, "retry_in=-1 is invalid: expected seconds from 0, a timedelta, 'exponential', a list"),
        (True, "retry_in=True"),
        (float("nan"), "retry_in=nan"),
        (float("inf"), "retry_in=inf"),
        (timedelta(seconds=-1), "retry_in=datetime.timedelta"),
        ("linear", "retry_in='linear'"),
        ([], "retry_in=.. is invalid: expected at least one delay. Use max_retries=0"),
        ([10, -20], r"retry_in\[1\]=-20"),
        ([10, None], r"retry_in\[1\]=None"),
        (lambda: 5, r"lambda.*expected def delay\(retry_count\) or def delay\(exc, retry_count\)"),
        (lambda *both: 5, "is invalid: expected def"),
        (lambda a=1, b=2: 5, "is invalid: expected def"),
        (lambda a, b, c: 5, "is invalid: expected def"),
        (lambda n, *, base: 5, "is invalid: expected def"),
        (max, "retry_in=max is invalid: expected def"),
    ],
)
def test_what_is_no_policy_is_refused_when_the_task_is_made(retry_in, words):
    with pytest.raises(ConfigurationError, match=words):
        ordered_task(retry_in=retry_in)(work)


def fails(retry_count):
    raise RuntimeError("a bug in the policy")


@pytest.mark.parametrize("answer", [-1, True, float("nan"), float("inf"), "soon", [5], object()])
def test_a_bad_answer_is_logged_and_the_default_is_used(answer, caplog):
    pause = guarded(read_delay_function(lambda retry_count: answer))
    assert 15 <= pause(ERROR, 0) <= 44
    assert f"retry_in returned {answer!r}: expected seconds from 0" in caplog.text


def test_a_policy_that_fails_is_logged_and_the_default_is_used(caplog):
    assert 16 <= guarded(read_delay_function(fails))(ERROR, 1) <= 74
    assert "retry_in failed" in caplog.text
    assert "a bug in the policy" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def job(retry_count=-1):
    return Job("1", (Payload(b"a", 1.0),), 5.0, retry_count, None, claim=7)


def dispositions(policy, cause=ERROR):
    """Of one failure after the other, with the pauses."""
    found, retry_count = [], -1
    while not found or found[-1] is not Disposition.DIE:
        settlement = after_failure(job(retry_count), policy, b"e", cause=cause)
        found.append(
            settlement.delay if settlement.disposition is Disposition.RETRY else settlement.disposition
        )
        retry_count = settlement.retry_count
    return found


@pytest.fixture
def policy():
    def of(**options):
        app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
        return policy_of(ordered_task(app=app, shared=False, **options)(work))

    return of


def test_the_fields_of_a_policy_are_retry_options(policy):
    assert {field.name for field in fields(RetryPolicy)} <= RetryOptions.__annotations__.keys()
    assert policy(max_retries=3, isolate_failures=False, batch_size=2).max_retries == 3


def test_a_list_says_how_often(policy):
    assert dispositions(policy(retry_in=[10, 20, 30])) == [10, 20, 30, Disposition.DIE]
    assert dispositions(policy(retry_in=[1] * 40)) == [1] * 40 + [Disposition.DIE]
    assert dispositions(policy(retry_in=[10], max_retries=1)) == [10, Disposition.DIE]


def test_the_first_limit_counts(policy):
    assert dispositions(policy(retry_in="exponential", max_retries=4)) == [30, 31, 62, 273, Disposition.DIE]
    assert dispositions(policy(retry_in=lambda n: False if n == 2 else 5, max_retries=None)) == [
        5,
        5,
        Disposition.DIE,
    ]


def test_errors_that_no_retry_mends(policy):
    for name in ("dont_retry", "dont_autoretry_for"):
        one = policy(**{name: (LookupError,), "retry_in": [5, 6]})
        assert dispositions(one) == [5, 6, Disposition.DIE]
        assert dispositions(one, KeyError("of that kind")) == [Disposition.DIE]


@pytest.mark.parametrize(
    "options, words",
    [
        (
            {"retry_in": [1, 2], "max_retries": 3},
            "max_retries=3 is invalid: expected 2, the number of delays in retry_in=",
        ),
        ({"retry_in": [1, 2], "max_retries": None}, "max_retries=None is invalid"),
        ({"dont_retry": ValueError}, "dont_retry=.*: expected a tuple of exception classes"),
        ({"dont_retry": (SystemExit,)}, "dont_retry=.*: expected a tuple of exception classes"),
        ({"dont_retry": (OSError,), "dont_autoretry_for": (KeyError,)}, "Name all exceptions in dont_retry="),
        ({"dont_retry": (OSError,), "autoretry_for": (OSError,)}, "not in autoretry_for=, as OSError is"),
    ],
)
def test_what_has_no_meaning_together_is_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        ordered_task(**options)(work)


class TestOfAClass:
    def test_a_method_may_take_either(self):
        class One(OrderedTask):
            name = "one"

            def retry_in(self, retry_count):
                return retry_count + 100

        class Two(OrderedTask):
            name = "two"

            def retry_in(self, exc, retry_count):
                return retry_count + 200

        class Three(OrderedTask):
            name = "three"

            @classmethod
            def retry_in(cls, exc, retry_count):
                return retry_count + 300

        class Four(OrderedTask):
            name = "four"
            retry_in = timedelta(seconds=400)

        found = [read_delay_function(task().retry_in)(ERROR, 5) for task in (One, Two, Three, Four)]
        assert found == [105, 205, 305, 400]

    def test_of_a_mixin(self):
        class Mixin:
            def retry_in(self, retry_count):
                return retry_count + 100

        class Mixed(Mixin, OrderedTask):
            name = "mixed"

        assert read_delay_function(Mixed().retry_in)(ERROR, 5) == 105

    def test_a_bad_one_is_refused(self):
        with pytest.raises(ConfigurationError, match=r"Wrong.retry_in.*expected def delay\(retry_count\)"):

            class Wrong(OrderedTask):
                def retry_in(self):
                    return 5
