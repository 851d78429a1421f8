"""Tests of ``worker/mover_thread.py``."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from celery_lowkiq.rules.errors import FormatMismatch, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.worker import mover_thread as module
from celery_lowkiq.worker.mover_thread import MoverThread
from celery_lowkiq.worker.outage import OutageTracker
from tests.waiting import eventually


class FakeMover:
    def __init__(self, *errors):
        """``errors``: of the first turns."""
        self.turns = 0
        self._errors = list(errors)

    def turn(self):
        self.turns += 1
        if self._errors:
            raise self._errors.pop(0)
        return True

    def pause(self, movers):
        return 0.001


@pytest.fixture
def moved():
    """Starts to move the movers' queues, and ends it after the test."""
    started = []

    def start(**movers):
        outage = OutageTracker(time)
        ctx = SimpleNamespace(
            clock=time,
            store=SimpleNamespace(mover=lambda queue: movers[queue.name]),
            outage=outage,
            thread=lambda name, main: threading.Thread(target=main, name=name, daemon=True),
        )
        thread = MoverThread(ctx)
        started.append(thread)
        thread.move([QueueSpec(name, shards=1) for name in movers], 1)
        return thread, outage

    yield start
    for thread in started:
        thread.stop()


def test_a_queue_whose_master_is_away_stops_no_other(moved):
    away, other = FakeMover(*[StoreUnavailable("its master is unreachable")] * 5), FakeMover()
    turns = []
    turn, other.turn = other.turn, lambda: (turns.append(away.turns), turn())[1]
    moved(away=away, other=other)
    eventually(lambda: away.turns > 6)
    assert turns[:5] == [1, 2, 3, 4, 5]


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "error",
    [FormatMismatch("stored in format 9"), ShardDamaged("refused", 0, "boom"), StoreError("boom")],
    ids=lambda error: type(error).__name__,
)
def test_a_queue_that_cannot_move_is_named_once_and_waits_while_others_move(
    moved, caplog, monkeypatch, error
):
    # Longer than a turn of both on a busy machine: else both have as many.
    monkeypatch.setattr(module, "REFUSED_RETRY", 0.4)
    refused, whole = FakeMover(error, error, error), FakeMover()
    _, outage = moved(refused=refused, whole=whole)
    eventually(lambda: refused.turns > 4, 10)
    assert whole.turns > refused.turns
    assert messages(caplog) == [f"queue refused does not move: {error}"]
    outage.request_started()
    outage.failed(StoreUnavailable("away"))
    assert messages(caplog)[1].startswith("away"), "an outage of Redis is logged as ever"


def test_a_queue_that_cannot_move_is_not_tried_all_the_time(moved):
    refused, whole = FakeMover(*[StoreError("boom")] * 100), FakeMover()
    moved(refused=refused, whole=whole)
    eventually(lambda: whole.turns > 50, 10)
    assert refused.turns == 1


def test_a_mover_starts_later_when_no_thread_can_start(moved, monkeypatch, caplog):
    """Ownership ended with the error, and the worker with it."""

    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    mover = FakeMover()
    with monkeypatch.context() as at_limit:
        at_limit.setattr(threading.Thread, "start", no_thread)
        movers, _ = moved(queue=mover)
    assert "can't start new thread" in caplog.text
    movers.move([QueueSpec("queue", shards=1)], 1)
    eventually(lambda: mover.turns)


def test_redis_is_back_for_a_mover_that_has_no_more_queues(moved, caplog):
    away = FakeMover(*[StoreUnavailable("away")] * 1000)
    movers, _ = moved(away=away)
    eventually(lambda: messages(caplog), 10)
    movers.move([], 1)
    eventually(lambda: len(messages(caplog)) > 1, 10)
    assert "Redis is back" in messages(caplog)[1]
