"""Secrets of payloads in what a run leaves: stored errors, tries, groups of failures, trackers, logs."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
from celery import Celery

from celery_lowkiq import Tracker, ordered_task, track
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.settings import read_settings
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.testing import Lowkiq

SECRETS = ("4111-1111", "hunter2", "s3cr3t-by-place")
PAYLOAD = {"id": 7, "card": {"number": "4111-1111"}, "db_password": "hunter2"}


@pytest.fixture
def app(empty_redis):
    made = Celery("redacted", broker=empty_redis.url, backend="cache+memory://", set_as_current=False)
    made.conf.worker_hijack_root_logger = False
    yield made
    context_of(made).store.close()
    made.close()


def pay_task(app, **options):
    @ordered_task(app=app, name="pay", shards=1, retry_in=lambda n: 1000, **options)
    def pay(payloads_by_id):
        for payloads in payloads_by_id.values():
            for payload in payloads:
                try:
                    raise KeyError(payload["card"]["number"])
                except KeyError as error:
                    # The number stands where no key tells what it is.
                    raise ValueError(f"{payload['card']['number']} was refused: {payload}") from error

    return pay


def found_in(app, pay, caplog):
    queue = pay.ordered_queue
    places = queue.job("1")
    yield from (place.error for place in (places.waiting, places.dead) if place)
    yield from (one.error for one in queue.tries("1"))
    yield repr(queue.failures())
    yield queue.why("1").text
    # Celery's own lines of the same run are filtered in a worker.
    yield from (one.getMessage() for one in caplog.records if one.module == "failure_log")


def assert_masked(app, texts):
    texts = [*texts]
    assert not [text for text in texts for secret in SECRETS if secret in text]
    assert any("was refused" in text for text in texts)
    assert any("[redacted]" in text for text in texts)


@pytest.mark.parametrize("max_retries", [0, 5], ids=["dead", "failed"])
def test_no_secret_is_in_what_a_failure_leaves(app, caplog, max_retries):
    caplog.set_level(logging.DEBUG)
    pay = pay_task(app, max_retries=max_retries)
    pay.delay("1", PAYLOAD)
    Lowkiq(app, context_of(app)).drain(pay, propagate=False)
    assert_masked(app, found_in(app, pay, caplog))


@pytest.mark.parametrize(
    "form", ["message", lambda error: f"{error!r} {vars(error)}"], ids=["message", "own"]
)
def test_whatever_formats_the_error(app, caplog, form):
    app.conf.lowkiq_format_error = form
    pay = pay_task(app, max_retries=0)
    pay.delay("1", PAYLOAD)
    Lowkiq(app, context_of(app)).drain(pay, propagate=False)
    assert_masked(app, found_in(app, pay, caplog))


def test_arguments_by_position_have_names(app):
    """With by=, a payload has the arguments, some without a name."""

    @ordered_task(app=app, name="login", shards=1, by="user", max_retries=0)
    def login(user, password, *, token):
        raise ValueError(f"{user} may not log in with {password} and {token}")

    login.delay("1", "s3cr3t-by-place", token="hunter2")
    (job,) = Inspector(app, raw=True, masked=True).queue("login").jobs().items
    assert job.payloads[0].masked.hides
    assert not [secret for secret in SECRETS if secret.encode() in job.payloads[0].value]
    Lowkiq(app, context_of(app)).drain(login, propagate=False)
    texts = [login.ordered_queue.job("1").dead.error, *(one.error for one in login.ordered_queue.tries("1"))]
    assert not [text for text in texts for secret in SECRETS if secret in text]
    assert "1 may not log in with [redacted] and [redacted]" in texts[0]


def test_no_secret_is_in_a_tracker(app, caplog):
    pay = pay_task(app, max_retries=0)
    with track("group", app=app) as tracker:
        pay.apply_async(("1", PAYLOAD), tracker=tracker)
    Lowkiq(app, context_of(app)).drain(pay, propagate=False)
    (call,) = Tracker.get(app, tracker.id).jobs().items
    assert_masked(app, [message.text for message in call.messages if message.text])


def test_no_secret_is_in_the_progress_of_a_call(app):
    """Its texts were kept as they are."""

    @ordered_task(app=app, name="pay", shards=1, bind=True)
    def pay(self, payloads_by_id):
        self.progress("4111-1111 was refused, password: other", 1, 2)
        self.progress(current=2, total=2)

    with track("group", app=app) as tracker:
        pay.apply_async(("1", PAYLOAD), tracker=tracker)
    Lowkiq(app, context_of(app)).drain(pay, propagate=False)
    (call,) = Tracker.get(app, tracker.id).jobs().items
    assert [one.text for one in call.messages if one.text] == ["[redacted] was refused, password: [redacted]"]


def test_no_secret_is_in_the_end_of_a_worker(app):
    """What ended it was masked by keys only."""

    @ordered_task(app=app, name="pay", shards=1)
    def pay(payloads_by_id):
        raise SystemExit("4111-1111 was refused")

    with track("group", app=app) as tracker:
        pay.apply_async(("1", PAYLOAD), tracker=tracker)
    with suppress(BaseException):
        Lowkiq(app, context_of(app)).drain(pay, propagate=False)
    (call,) = Tracker.get(app, tracker.id).jobs().items
    assert [one.text for one in call.messages if one.text] == [
        "interrupted: SystemExit: [redacted] was refused"
    ]


def test_without_names_nothing_is_masked(app, caplog):
    app.conf.lowkiq_redact = []
    pay = pay_task(app, max_retries=0)
    pay.delay("1", PAYLOAD)
    Lowkiq(app, context_of(app)).drain(pay, propagate=False)
    assert "4111-1111 was refused" in pay.ordered_queue.job("1").dead.error


@pytest.mark.parametrize("value", ["password", [""], [1], None])
def test_names_that_make_no_sense(app, value):
    app.conf.lowkiq_redact = value
    with pytest.raises(ConfigurationError, match="lowkiq_redact"):
        read_settings(app)
    app.conf.lowkiq_redact = ()
