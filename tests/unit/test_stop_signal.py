"""A stop signal: its handler only asks, and a thread drains."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from celery import signals

from celery_lowkiq.integration.bootstep.shutdown import drain_on_signal


class Runtime:
    """What the handler calls."""

    def __init__(self):
        self.calls = []
        self.drained_by = None
        self.drained = threading.Event()

    def stop_claiming(self):
        self.calls.append("stop claiming")

    def drain(self):
        self.drained_by = threading.current_thread()
        self.drained.set()


@pytest.fixture
def runtime():
    yield Runtime()
    signals.worker_shutting_down.disconnect(dispatch_uid="lowkiq-drain-on-signal")


def test_the_signal_stops_claims_at_once_and_another_thread_drains(runtime):
    drain_on_signal(SimpleNamespace(wait_for_soft_shutdown=None), runtime)
    assert not runtime.drained.is_set()
    signals.worker_shutting_down.send(sender="worker", sig="SIGTERM", how="Warm", exitcode=0)
    assert runtime.calls == ["stop claiming"]
    assert runtime.drained.wait(10)
    assert runtime.drained_by is not threading.current_thread()


def test_a_soft_shutdown_drains_before_celery_waits(runtime):
    controller = SimpleNamespace(wait_for_soft_shutdown=lambda: runtime.drained.wait(10))
    drain_on_signal(controller, runtime)
    assert controller.wait_for_soft_shutdown()
    assert runtime.calls == ["stop claiming"]
