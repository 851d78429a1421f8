"""A stop signal: its handler only asks, and a thread drains."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from celery import signals

from celery_lowkiq.integration.bootstep.shutdown import ConsumerShutdown


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
    return Runtime()


def arrive():
    """A stop signal arrives."""
    signals.worker_shutting_down.send(sender="worker", sig="SIGTERM", how="Warm", exitcode=0)


def test_the_signal_stops_claims_at_once_and_another_thread_drains(runtime):
    ConsumerShutdown(SimpleNamespace(controller=SimpleNamespace(wait_for_soft_shutdown=None))).watch(runtime)
    assert not runtime.drained.is_set()
    arrive()
    assert runtime.calls == ["stop claiming"]
    assert runtime.drained.wait(10)
    assert runtime.drained_by is not threading.current_thread()


def test_a_soft_shutdown_drains_before_celery_waits(runtime):
    controller = SimpleNamespace(wait_for_soft_shutdown=lambda: runtime.drained.wait(10))
    ConsumerShutdown(SimpleNamespace(controller=controller)).watch(runtime)
    assert controller.wait_for_soft_shutdown()
    assert runtime.calls == ["stop claiming"]


def test_each_worker_of_a_process_drains_once():
    runtimes = [Runtime(), Runtime()]
    receivers = len(signals.worker_shutting_down.receivers)
    for runtime in runtimes:
        ConsumerShutdown(SimpleNamespace(controller=SimpleNamespace(wait_for_soft_shutdown=None))).watch(
            runtime
        )
    arrive()
    assert all(runtime.drained.wait(10) for runtime in runtimes)
    assert [runtime.calls for runtime in runtimes] == [["stop claiming"]] * 2
    assert len(signals.worker_shutting_down.receivers) <= receivers
