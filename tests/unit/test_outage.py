"""What threads know of a Redis that is unreachable, and how long they wait between attempts."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

from celery_lowkiq.rules.errors import AccessDenied, LoginRefused, StoreUnavailable
from celery_lowkiq.worker import waker
from celery_lowkiq.worker.outage import OutageTracker, backoff
from tests.waiting import eventually


class Clock:
    """Stands still until it is told the time."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class Outages(list):
    """A meter that counts beginnings."""

    def refused(self): ...

    def outage(self):
        self.append(1)


def test_a_question_from_before_the_end_of_an_outage_tells_of_no_other():
    meter, clock = Outages(), Clock()
    outage, error = OutageTracker(clock, meter), StoreUnavailable("gone")
    with ThreadPoolExecutor(1) as slow:
        slow.submit(outage.request_started).result()
        clock.now += 1
        outage.request_started()
        outage.failed(error)
        outage.recovered()
        slow.submit(outage.failed, error).result()
        assert len(meter) == 1
        slow.submit(outage.request_started).result()
        slow.submit(outage.failed, error).result()
    assert len(meter) == 2


def test_a_storm_of_outages_is_logged_once(caplog):
    """P3: connections that are killed all the time gave a pair of lines each; all of them are counted."""
    meter, clock = Outages(), Clock()
    outage = OutageTracker(clock, meter)
    for _ in range(63):
        outage.request_started()
        outage.failed(StoreUnavailable("gone"))
        clock.now += 0.125
        outage.recovered()
        clock.now += 0.03125
    assert caplog.messages == [
        "gone. Ordered queues wait until it is back.",
        "Redis is back after 0.1 s. Ordered queues go on.",
    ]
    assert len(meter) == 63
    clock.now += 10
    outage.request_started()
    outage.failed(StoreUnavailable("gone again"))
    assert caplog.messages[2:] == [
        "gone again (62 shorter outages since the last line). Ordered queues wait until it is back."
    ]


def test_an_outage_that_outlasts_the_storm_it_began_in_is_logged(caplog):
    """P3: a long outage right after a short one is not kept from the log."""
    clock = Clock()
    outage = OutageTracker(clock)
    outage.failed(StoreUnavailable("gone"))
    outage.recovered()
    clock.now += 1
    for _ in range(12):
        outage.failed(StoreUnavailable("gone"))
        clock.now += 1
    assert caplog.messages[2:] == [
        "gone (unreachable for 9.0 s so far). Ordered queues wait until it is back."
    ]
    outage.recovered()
    assert caplog.messages[3:] == ["Redis is back after 12.0 s. Ordered queues go on."]


def test_an_outage_that_somebody_must_mend_says_so_whatever_it_began_as(caplog):
    """P3: a Redis that came back with a password was "not available" to the log."""
    clock = Clock()
    outage = OutageTracker(clock)
    gone, asks, denied = StoreUnavailable("gone"), LoginRefused("asks"), AccessDenied("denied")
    for error in (gone, asks, gone, asks, denied, asks, gone):
        outage.failed(error)
        clock.now += 1
    outage.recovered()
    assert caplog.messages == [
        "gone. Ordered queues wait until it is back.",
        "asks (unreachable for 1.0 s so far). Ordered queues wait until it accepts them.",
        "denied (unreachable for 4.0 s so far). Ordered queues wait until that is permitted.",
        "Redis is back after 7.0 s. Ordered queues go on.",
    ]


def test_what_somebody_must_mend_is_logged_in_each_outage_that_is_logged(caplog):
    clock = Clock()
    outage = OutageTracker(clock)
    for _ in range(2):
        outage.failed(StoreUnavailable("gone"))
        outage.failed(LoginRefused("asks"))
        outage.recovered()
        clock.now += 10
    assert sum("asks" in line for line in caplog.messages) == 2


def test_backoff_doubles_up_to_a_second_and_are_spread():
    def first(count, jitter):
        return list(itertools.islice(backoff(lambda: jitter), count))

    assert first(7, 1.0) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert first(7, 0.0) == [0.025, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_waker_is_stopped_in_the_middle_of_a_backoff(node, monkeypatch):
    monkeypatch.setattr(waker, "backoff", lambda: itertools.repeat(60.0))
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
    assert not one.runtime._waker.thread.is_alive()
