"""Starts the node process: a new interpreter that imports the app, joined to the worker by a socket."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any

from celery_lowkiq.worker import stop_signals

from .connections import close_in_forks
from .options import NodeOptions

#: Name of the process in its log lines.
NAME = "lowkiq-node"
NO_MODULE = (
    "the app is not in a variable of an imported module, so the node process cannot import it: keep it in "
    "one, or start the worker with -P threads"
)
#: What the new interpreter executes: the main module as ``multiprocessing`` prepares it, then :func:`main`.
BOOT = (
    "import sys; from multiprocessing import connection, spawn; "
    "pipe = connection.Connection(int(sys.argv[1])); "
    "spawn.prepare(pipe.recv()); main, *arguments = pipe.recv(); main(pipe, *arguments)"
)
#: Celery sets it for processes that get a copy of the app. The node process imports the app itself.
COPIED_APP = "FORKED_BY_MULTIPROCESSING"


class NodeProcess(subprocess.Popen[bytes]):
    """The node process, as the worker sees it."""

    #: Writes to its :class:`.stop_order.StopOrder`.
    stop_end: Connection

    def order_stop(self) -> None:
        """Have it end after the running batches. Safe in a signal handler."""
        with contextlib.suppress(OSError):  # It has ended.
            os.write(self.stop_end.fileno(), b"!")
            self.send_signal(signal.SIGTERM)


def launch(options: NodeOptions) -> tuple[NodeProcess, Connection]:
    """Start the process. It ends when the connection does, unless it is told to before."""
    from .process import main

    ours, theirs = Pipe()
    its_stop_end, stop_end = Pipe(duplex=False)
    descriptors = theirs.fileno(), its_stop_end.fileno()
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    env = {name: value for name, value in os.environ.items() if name != COPIED_APP}
    try:
        with stop_signals.blocked():
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
    close_in_forks(ours)
    close_in_forks(stop_end)
    ours.send(_preparation())
    ours.send((main, options, descriptors[1]))
    return process, ours


def _preparation() -> dict[str, Any]:
    """As ``multiprocessing`` prepares a spawned process; without the start method, which would get fixed."""
    prepared = {"name": NAME, "sys_path": sys.path, "sys_argv": sys.argv, "dir": os.getcwd()}
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return {**prepared, "init_main_from_name": spec.name}
    return prepared if path is None else {**prepared, "init_main_from_path": os.path.abspath(path)}
