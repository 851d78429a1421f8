"""What signals to the worker's process mean for its lanes."""

from __future__ import annotations

import signal
from typing import Any

from celery import signals
from celery.apps.worker import install_cry_handler  # type: ignore[attr-defined]

from celery_lowkiq.worker.runtime import Runtime


def hold_at_once(controller: Any, runtime: Runtime) -> None:
    """Celery's signal handlers only leave word for the event loop, or sleep through a soft shutdown: lanes
    must begin nothing meanwhile.
    """
    wait = controller.wait_for_soft_shutdown

    def hold_and_wait() -> Any:
        runtime.stop_claiming()
        return wait()

    def hold(**_: Any) -> None:
        runtime.stop_claiming()

    controller.wait_for_soft_shutdown = hold_and_wait
    signals.worker_shutting_down.connect(hold, weak=False, dispatch_uid="lowkiq-hold")


def trace_on_ttin() -> None:
    """Write the trace of all threads on SIGTTIN, as Celery does on SIGUSR1. By default it stops the process:
    leases run out, and others take the shards. Does nothing where there is no such signal, outside of the
    main thread, and when the app has a handler of its own.
    """
    number = getattr(signal, "SIGTTIN", None)
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        install_cry_handler("SIGTTIN")
