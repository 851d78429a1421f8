"""Starts the node process: a new interpreter that imports the app, joined to the worker by a socket."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection, Pipe
from typing import Any

from celery import Celery
from celery.worker import state

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


@dataclass
class NodeLimits:
    """``engine.RunLimits`` of the worker."""

    time_limit: float | None
    soft_time_limit: float | None
    max_tasks_per_child: int | None
    max_memory_per_child: int | None

    @classmethod
    def of(cls, worker: Any) -> NodeLimits:
        """Those of Celery's worker."""
        return cls(**{one.name: getattr(worker, one.name, None) for one in fields(cls)})


@dataclass(frozen=True)
class NodeOptions:
    """What the node process takes from the worker at its start."""

    #: ``module:variable``.
    app: str
    hostname: str
    #: -c.
    concurrency: int
    served: frozenset[str]
    disable_rate_limits: bool
    limits: NodeLimits
    colorize: bool | None
    is_quiet: bool = False
    #: :func:`.app_reference.modules_of`, and of tasks that were registered after the start.
    modules: tuple[str, ...] = ()
    #: Settings that the command line or signals have changed.
    changes: Mapping[str, Any] = field(default_factory=dict)
    #: :func:`task_limits` by queue.
    task_limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Whether events are sent, and which groups.
    events: tuple[bool, frozenset[str]] = (False, frozenset())
    revoked: tuple[str, ...] = ()
    revoked_stamps: Mapping[str, Any] = field(default_factory=dict)


def changed_settings(app: Celery) -> dict[str, Any]:
    """Return the settings that were changed after the app was made, as far as they are plain values."""
    return {name: value for name, value in dict(app.conf.changes or {}).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return value is None or type(value) in (str, bytes, bool, int, float)


def task_limits(task: Any) -> dict[str, Any]:
    """Return the attributes of a task that remote control may have changed."""
    return {name: getattr(task, name) for name in ("rate_limit", "time_limit", "soft_time_limit")}


def revoked_calls() -> dict[str, Any]:
    """Return the fields of NodeOptions about revoked calls."""
    stamps = {name: list(values) for name, values in state.revoked_stamps.items()}
    return {"revoked": tuple(state.revoked), "revoked_stamps": stamps}


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


def close_in_forks(connection: Connection) -> None:
    """Close it in processes that this one forks: else it would not end with this process."""
    _connections.add(connection)


def _close_copies() -> None:
    for connection in list(_connections):
        connection.close()
    _connections.clear()


#: Connections to close in a forked process.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_copies)
