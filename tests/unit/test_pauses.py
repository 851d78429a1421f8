"""How long threads wait between attempts while Redis is away."""

from __future__ import annotations

import itertools

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.worker import waker
from celery_lowkiq.worker.outage import pauses
from tests.waiting import eventually


def test_they_double_up_to_a_second_and_are_spread():
    def first(count, jitter):
        return list(itertools.islice(pauses(lambda: jitter), count))

    assert first(7, 1.0) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert first(7, 0.0) == [0.025, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_waker_is_stopped_in_the_middle_of_one(node, monkeypatch):
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
