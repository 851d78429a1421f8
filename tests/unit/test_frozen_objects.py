"""What Python's garbage collector looks through in a worker."""

from __future__ import annotations

import gc
from types import SimpleNamespace

from celery.apps.worker import Worker

from celery_lowkiq.integration.bootstep.engine import freeze_objects
from celery_lowkiq.integration.bootstep.shutdown import ConsumerShutdown


def test_what_a_worker_has_loaded_is_left_out_by_the_collector():
    try:
        freeze_objects()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_only_a_program_is_frozen():
    """A worker in a user's test shares its process with the test."""
    program, other = Worker.__new__(Worker), SimpleNamespace()
    assert ConsumerShutdown(SimpleNamespace(controller=program)).is_program
    assert not ConsumerShutdown(SimpleNamespace(controller=other)).is_program
