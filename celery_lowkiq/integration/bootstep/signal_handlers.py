"""Signals to the worker process: stop claiming at shutdown, dump stacks on SIGTTIN."""

from __future__ import annotations

import signal
from typing import Any

from celery import signals
from celery.apps.worker import install_cry_handler  # type: ignore[attr-defined]

from celery_lowkiq.worker.runtime import Runtime


def stop_claiming_on_signal(controller: Any, runtime: Runtime) -> None:
    """Stop claiming as soon as a shutdown signal arrives.

    Celery's handlers only notify the event loop, or sleep through a soft shutdown.
    """
    wait = controller.wait_for_soft_shutdown

    def hold_and_wait() -> Any:
        runtime.stop_claiming()
        return wait()

    def hold(**_: Any) -> None:
        runtime.stop_claiming()

    controller.wait_for_soft_shutdown = hold_and_wait
    signals.worker_shutting_down.connect(hold, weak=False, dispatch_uid="lowkiq-hold")


def dump_stacks_on_ttin() -> None:
    """Write the stacks of all threads on SIGTTIN, as Celery does on SIGUSR1.

    By default the signal stops the process: leases expire, and other nodes take the shards. Does nothing
    without such a signal, outside the main thread, and when the app has its own handler.
    """
    number = getattr(signal, "SIGTTIN", None)
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        install_cry_handler("SIGTTIN")
