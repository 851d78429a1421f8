"""Starts the node process: a new interpreter that imports the app, joined to the worker by a socket."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any

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
    "spawn.prepare(pipe.recv()); main, options = pipe.recv(); main(pipe, options)"
)
#: Celery sets it for processes that get a copy of the app. The node process imports the app itself.
COPIED_APP = "FORKED_BY_MULTIPROCESSING"


def launch(options: NodeOptions) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start the process. It ends when the connection does, unless it is told to before."""
    from .process import main

    ours, theirs = Pipe()
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    env = {name: value for name, value in os.environ.items() if name != COPIED_APP}
    try:
        process = subprocess.Popen(  # noqa: S603 - a list of our own words
            # The last word is for ps.
            [sys.executable, *flags, "-c", BOOT, str(theirs.fileno()), f"{NAME}:{options.hostname}"],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=env,
        )
    finally:
        theirs.close()
    close_in_forks(ours)
    ours.send(_preparation())
    ours.send((main, options))
    return process, ours


def _preparation() -> dict[str, Any]:
    """As ``multiprocessing`` prepares a spawned process; without the start method, which would get fixed."""
    prepared = {"name": NAME, "sys_path": sys.path, "sys_argv": sys.argv, "dir": os.getcwd()}
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return {**prepared, "init_main_from_name": spec.name}
    return prepared if path is None else {**prepared, "init_main_from_path": os.path.abspath(path)}
