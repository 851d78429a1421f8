"""The thread of a node that moves queues."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.worker.migrations import Migrations


class FakeMover:
    def __init__(self, error=None):
        self.turned = threading.Event()
        self._error = error

    def turn(self):
        self.turned.set()
        if self._error is not None:
            raise self._error
        return False


def test_a_queue_that_cannot_move_does_not_keep_others_from_moving():
    movers = {"damaged": FakeMover(StoreError("boom")), "whole": FakeMover()}
    failed = threading.Event()
    ctx = SimpleNamespace(
        clock=time,
        store=SimpleNamespace(mover=lambda queue: movers[queue.name]),
        outage=SimpleNamespace(
            request_started=lambda: None, recovered=lambda: None, failed=lambda error: failed.set()
        ),
        thread=lambda name, main: threading.Thread(target=main, name=name, daemon=True),
    )
    migrations = Migrations(ctx)
    migrations.move([QueueSpec("damaged", shards=1), QueueSpec("whole", shards=1)])
    try:
        assert movers["whole"].turned.wait(5)
        assert failed.wait(5)
    finally:
        migrations.stop()
