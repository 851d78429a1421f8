"""The launch of a node process, and its main function."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

from celery import platforms, signals
from celery.apps.worker import install_cry_handler  # type: ignore[attr-defined]
from celery.platforms import EX_FAILURE

from celery_lowkiq.integration.bootstep.node.options import NodeOptions, NodeWorker, StopOrder
from celery_lowkiq.integration.processes.app_reference import import_app, import_modules
from celery_lowkiq.worker import forks

# Starts the node process: a new interpreter that imports the app, joined to the worker by a socket.

#: Name of the process in its log lines.
NAME = "lowkiq-node"
NO_MODULE = (
    "the app is not in a variable of an imported module, so the node process cannot import it: keep it in "
    "one, or start the worker with -P threads"
)
#: Code of the new interpreter: the main module as ``multiprocessing`` prepares it, then :func:`main`.
BOOT = (
    "import sys; from multiprocessing import connection, spawn; "
    "pipe = connection.Connection(int(sys.argv[1])); "
    "spawn.prepare(pipe.recv()); main, *arguments = pipe.recv(); main(pipe, *arguments)"
)
#: Celery sets it for processes that get a copy of the app. The node process imports the app itself.
COPIED_APP = "FORKED_BY_MULTIPROCESSING"


class NodeProcess(subprocess.Popen[bytes]):
    """The node process, as the worker sees it."""

    #: Writes to its :class:`StopOrder`.
    stop_end: Connection

    def order_stop(self) -> None:
        """Have it end after the running batches. Safe in a signal handler."""
        with contextlib.suppress(OSError):  # It has ended.
            os.write(self.stop_end.fileno(), b"!")
            self.send_signal(signal.SIGTERM)


def launch(options: NodeOptions) -> tuple[NodeProcess, Connection]:
    """Start the process. It ends when the connection does, or earlier when the worker sends it a stop."""

    ours, theirs = Pipe()
    its_stop_end, stop_end = Pipe(duplex=False)
    descriptors = theirs.fileno(), its_stop_end.fileno()
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    env = {name: value for name, value in os.environ.items() if name != COPIED_APP}
    try:
        with forks.blocked():
            process = NodeProcess(
                # The last word is for ps.
                [sys.executable, *flags, "-c", BOOT, str(descriptors[0]), f"{NAME}:{options.hostname}"],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                env=env,
            )
    finally:
        theirs.close()
        its_stop_end.close()
    process.stop_end = stop_end
    forks.close_in_forks(ours, stop_end)
    ours.send(_preparation())
    ours.send((main, options, descriptors[1]))
    return process, ours


def _preparation() -> dict[str, Any]:
    """Return ``multiprocessing``'s preparation of a spawned process; the start method stays free."""
    prepared = {"name": NAME, "sys_path": sys.path, "sys_argv": sys.argv, "dir": os.getcwd()}
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return {**prepared, "init_main_from_name": spec.name}
    return prepared if path is None else {**prepared, "init_main_from_path": os.path.abspath(path)}


# The main function of the node process.

logger: logging.Logger = logging.getLogger("celery_lowkiq")


def main(connection: Connection, options: NodeOptions, stop_end: int) -> NoReturn:
    """Serve the ordered queues until the worker says otherwise, or ends. ``stop_end``: of the stop order."""
    order = StopOrder(stop_end)
    forks.handle(order.on_signal)
    for name in ("SIGUSR1", "SIGTTIN"):
        install_cry_handler(name)
    platforms.set_mp_process_title("celeryd", info="-ordered queues-", hostname=options.hostname)
    try:
        worker = _set_up(options)
        # After the app, which may instrument Celery's worker.
        from celery_lowkiq.integration.bootstep.node.server import NodeServer

        server = NodeServer(worker, connection, options, order)
    except Exception:
        logger.critical("the node process cannot start", exc_info=True)
        sys.exit(EX_FAILURE)
    status = server.run()
    signals.worker_process_shutdown.send(sender=options.hostname, pid=os.getpid(), exitcode=status)
    sys.exit(status)


def _set_up(options: NodeOptions) -> NodeWorker:
    """Prepare the app and the process, as Celery does for a child that it does not fork."""
    app: Any = import_app(options.app)
    app.conf.update(options.changes)
    app.loader.init_worker()
    import_modules(app, options.modules, "the node process")
    # Read at the call: tools replace both.
    from celery.app import trace

    trace.setup_worker_optimizations(app, options.hostname)
    # Forked children have what its receivers did in the worker.
    worker = NodeWorker(app, options)
    signals.worker_init.send(sender=worker)
    _set_up_logging(app, options)
    app.loader.init_worker_process()
    for name, task in app.tasks.items():
        task.__trace__ = trace.build_tracer(name, task, app.loader, options.hostname, app=app)
    signals.worker_process_init.send(sender=options.hostname)
    return worker


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
