"""Messages are stamped with their time of sending, where the app says so. No broker."""

from __future__ import annotations

import threading

import pytest
from celery import Celery

from celery_lowkiq import ConfigurationError, ordered_task
from celery_lowkiq.integration.messages import SendingTimes


def test_times_of_a_process_grow_whatever_its_clock_does():
    """O3: equal times, and a clock that is set back."""
    clock = iter([5_000_000_000, 5_000_000_000, 5_000_000_999, 4_000_000_000, 6_000_000_000])
    times = SendingTimes(lambda: next(clock))
    assert [times.next() for _ in range(5)] == [5.0, 5.000001, 5.000002, 5.000003, 6.0]


def test_times_of_several_threads_differ():
    times, found = SendingTimes(lambda: 1_795_000_000_000_000_000), []
    threads = [
        threading.Thread(target=lambda: found.extend(times.next() for _ in range(500))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2000


@pytest.fixture
def headers():
    """Send a message by a setting and headers: those that reach the broker."""

    def send(setting=None, name="elsewhere", **options):
        app = Celery("sender", broker="memory://", set_as_current=False)
        if setting is not None:
            app.conf.lowkiq_message_score = setting

        @app.task(name="plain", shared=False)
        def plain():
            """Never run here."""

        @ordered_task(app=app, name="ordered", shared=False)
        def ordered(payloads_by_id):
            """Never run here."""

        app.finalize()
        app.send_task(name, ("1",), **options)
        with app.connection() as connection, connection.SimpleQueue("celery") as queue:
            message = queue.get(block=True, timeout=5)
            message.ack()
        return message.headers.get("lowkiq")

    return send


@pytest.mark.parametrize("name", ["elsewhere", "ordered"])
def test_a_message_says_when_it_was_sent_where_the_app_asks_for_it(headers, name):
    assert headers(name=name) is None
    assert headers("arrival", name=name) is None
    first, second = (headers("sent", name=name)["sent"] for _ in range(2))
    assert 1.7e9 < first < second


def test_what_needs_no_time_has_none(headers):
    assert headers("sent", name="plain") is None
    assert headers("sent", headers={"lowkiq": {"score": 3}}) == {"score": 3}
    assert headers("sent", headers={"lowkiq": {"sent": 5.5}}) == {"sent": 5.5}
    assert headers("sent", headers={"lowkiq": [1]}) == [1]


def test_the_senders_own_headers_stay_as_they_are(headers):
    given = {"lowkiq": {"priority": 3}, "tenant": "acme"}
    assert headers("sent", headers=given)["priority"] == 3
    assert given == {"lowkiq": {"priority": 3}, "tenant": "acme"}


def test_a_wrong_setting_is_refused(headers):
    with pytest.raises(ConfigurationError, match="lowkiq_message_score='now' is invalid"):
        headers("now")
