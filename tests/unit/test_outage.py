"""What threads know of a Redis that is away, and how long they wait between attempts."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

from celery_lowkiq.rules.clock import SystemClock
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.worker import waker
from celery_lowkiq.worker.outage import Outage, pauses
from tests.waiting import eventually


def test_a_question_from_before_the_end_of_an_outage_tells_of_no_other(caplog):
    outage, error = Outage(SystemClock()), StoreUnavailable("gone")
    with ThreadPoolExecutor(1) as slow:
        slow.submit(outage.asks).result()
        outage.asks()
        outage.begins(error)
        outage.ends()
        slow.submit(outage.begins, error).result()
        assert len(caplog.messages) == 2
        slow.submit(outage.asks).result()
        slow.submit(outage.begins, error).result()
    assert len(caplog.messages) == 3


def test_pauses_double_up_to_a_second_and_are_spread():
    def first(count, jitter):
        return list(itertools.islice(pauses(lambda: jitter), count))

    assert first(7, 1.0) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert first(7, 0.0) == [0.025, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_waker_is_stopped_in_the_middle_of_a_pause(node, monkeypatch):
    monkeypatch.setattr(waker, "pauses", lambda: itertools.repeat(60.0))
    one = node()
    asked = []

    def unavailable(after):
        asked.append(after)
        raise StoreUnavailable("gone")

    one.store.fail["subscribe"] = unavailable
    one.start()
    eventually(lambda: asked)
    one.runtime.drain()
    assert one.runtime.join(10)
    assert not one.runtime._waker._thread.is_alive()
