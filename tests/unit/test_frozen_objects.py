"""What Python's garbage collector looks through in a worker."""

from __future__ import annotations

import gc
from types import SimpleNamespace

from celery.apps.worker import Worker

from celery_lowkiq.integration.bootstep.engine import freeze_objects


def test_what_a_worker_has_loaded_is_left_out_by_the_collector():
    try:
        freeze_objects(Worker.__new__(Worker))
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_a_users_process_with_a_worker_in_it_is_left_alone():
    before = gc.get_freeze_count()
    freeze_objects(SimpleNamespace())
    assert gc.get_freeze_count() == before
