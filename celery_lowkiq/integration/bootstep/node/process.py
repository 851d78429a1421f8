"""The main function of the node process."""

from __future__ import annotations

import logging
import os
import sys
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from celery import Celery, platforms, signals
from celery.apps.worker import install_cry_handler  # type: ignore[attr-defined]
from celery.concurrency.thread import TaskPool
from celery.platforms import EX_FAILURE

from celery_lowkiq.integration.processes.app_reference import import_app, import_modules
from celery_lowkiq.worker import stop_signals

from .options import NodeOptions
from .stop_order import StopOrder

logger: logging.Logger = logging.getLogger("celery_lowkiq")


def main(connection: Connection, options: NodeOptions, stop_end: int) -> NoReturn:
    """Serve the ordered queues until the worker says otherwise, or ends. ``stop_end``: of the stop order."""
    order = StopOrder(stop_end)
    stop_signals.handle(order.on_signal)
    for name in ("SIGUSR1", "SIGTTIN"):
        install_cry_handler(name)
    platforms.set_mp_process_title("celeryd", info="-ordered queues-", hostname=options.hostname)
    try:
        app = _set_up(options)
        # After the app, which may instrument Celery's worker.
        from .server import NodeServer

        server = NodeServer(app, connection, options, order)
    except Exception:
        logger.critical("the node process cannot start", exc_info=True)
        sys.exit(EX_FAILURE)
    status = server.run()
    signals.worker_process_shutdown.send(sender=options.hostname, pid=os.getpid(), exitcode=status)
    sys.exit(status)


def _set_up(options: NodeOptions) -> Celery:
    """Prepare the app and the process, as Celery does for a child that it does not fork."""
    app: Any = import_app(options.app)
    app.conf.update(options.changes)
    app.loader.init_worker()
    import_modules(app, options.modules, "the node process")
    # Read at the call: tools replace both.
    from celery.app import trace

    trace.setup_worker_optimizations(app, options.hostname)
    # Forked children have what its receivers did in the worker.
    signals.worker_init.send(sender=NodeWorker(app, options.hostname, options.concurrency))
    _set_up_logging(app, options)
    app.loader.init_worker_process()
    for name, task in app.tasks.items():
        task.__trace__ = trace.build_tracer(name, task, app.loader, options.hostname, app=app)
    signals.worker_process_init.send(sender=options.hostname)
    found: Celery = app
    return found


class NodeWorker:
    """Sender of ``worker_init`` in the node process."""

    pool_cls: type = TaskPool

    def __init__(self, app: Celery, hostname: str, concurrency: int) -> None:
        self.app = app
        self.hostname = hostname
        self.concurrency = concurrency


def _set_up_logging(app: Any, options: NodeOptions) -> None:
    """Log as the worker does: it keeps its options in the environment, for its children."""
    env = os.environ
    app.log.setup(
        int(env.get("CELERY_LOG_LEVEL") or 0),
        env.get("CELERY_LOG_FILE") or None,
        bool(env.get("CELERY_LOG_REDIRECT")),
        env.get("CELERY_LOG_REDIRECT_LEVEL") or "WARNING",
        colorize=options.colorize,
        hostname=options.hostname,
    )
