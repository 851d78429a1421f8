"""``dev``: Redis, worker and dashboard on a developer's machine."""

from __future__ import annotations

import itertools
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import click

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.rules.errors import LowkiqError

from ..file_watcher import SourceTree, source_tree_of, watch_files
from ..main import FAILED
from ..output import write_text
from ..params import binding, command
from ..process_group import SLICE, Child, ProcessGroup, Program

STOP = "stop"
#: Seconds for which the worker that ends waits for its running batches.
RUN_TIMEOUT = 15
#: Seconds that the worker has to end after that, with releases and exit functions.
EXIT_TIMEOUT = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
#: Packages that the dashboard needs.
DASHBOARD = ("uvicorn", "starlette", "jinja2")
#: Environment variables that Celery reads the URL of the broker from.
URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
#: Ids that a line shows.
SHOWN_JOBS = 10

Event: TypeAlias = "str | Child | frozenset[Path]"


@command("Redis, worker and dashboard on your machine.", ["dev", "dev --lanes 8 --redis-port 6399"])
@click.option(
    "--lanes", "-c", default=4, show_default=True, type=click.IntRange(1), help="Lanes of the worker."
)
@click.option("--redis-port", default=0, type=click.IntRange(0, 65535), help="By default a free one.")
@click.option(
    "--port",
    "--web-port",
    "web_port",
    default=5556,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Port of the dashboard.",
)
@click.option("--no-web", is_flag=True, help="Start no dashboard.")
@click.option("--no-reload", is_flag=True, help="Do not restart when code changes.")
def dev(
    inspector: Inspector, lanes: int, redis_port: int, web_port: int, no_web: bool, no_reload: bool
) -> None:
    """Start a private Redis, a worker, and the dashboard if it is installed. Ctrl-C stops them.

    When a Python file of the app's directory changes, worker and dashboard restart. A run that does not end
    within 15 s is ended and runs again. The Redis starts empty, and its data is lost at the end. With
    --no-reload, the exit status is that of the worker.
    """
    context = click.get_current_context()
    app = context.find_root().params.get("app")
    if not isinstance(app, str):
        raise click.UsageError("dev starts the app in other processes: name it, celery -A proj lowkiq dev")
    with binding("127.0.0.1", redis_port, "--redis-port"):
        socket.create_server(("127.0.0.1", redis_port)).close()
    with EmbeddedServer(port=redis_port) as server:
        environ = _environ(inspector.app, server.url)
        _say(f"Redis: {server.url}; in another shell, first: export {_in_shell(environ)}")
        programs = [_worker(inspector.app, app, server.url, lanes)]
        if not no_web and (dashboard := _dashboard(inspector.app, app, web_port)):
            programs.append(dashboard)
        tree = None if no_reload else source_tree_of(app)
        inspector.app.conf.update(lowkiq_url=server.url)  # this process reads the jobs there
        context.exit(_Dev(programs, environ, tree, partial(_processing, inspector)).run())


def _worker(app: Any, name: str, url: str, lanes: int) -> Program:
    """The app's lowkiq_url has precedence over the broker's URL; only the command line overrides it."""
    words = [*_celery(name), "worker", "-P", "threads", "-c", str(lanes), "-l", "INFO", "-E", "--"]
    timeout = app.conf.get("lowkiq_shutdown_timeout")
    if timeout is None or (isinstance(timeout, (int, float)) and timeout > RUN_TIMEOUT):
        words += [f"lowkiq.shutdown_timeout=(int){RUN_TIMEOUT}"]
    if app.conf.get("lowkiq_url"):
        _say("the app sets lowkiq_url: the worker uses this Redis anyway, other programs do not")
        words += [f"lowkiq.url=(string){url}"]
    return Program("worker", words, patience=RUN_TIMEOUT + EXIT_TIMEOUT)


def _dashboard(app: Any, name: str, port: int) -> Program | None:
    if app.conf.get("lowkiq_url"):
        _say("no dashboard: it would show the Redis of lowkiq_url")
        return None
    if not all(map(find_spec, DASHBOARD)):
        _say("no dashboard: pip install 'celery-lowkiq[web]'")
        return None
    return Program("dashboard", [*_celery(name), "lowkiq", "web", "--port", str(port), "--quiet"])


def _environ(app: Any, url: str) -> dict[str, str]:
    """The result backend is set only if the app has one."""
    names = (*URLS, "CELERY_RESULT_BACKEND") if app.conf.result_backend else URLS
    return dict.fromkeys(names, url)


def _in_shell(environ: dict[str, str]) -> str:
    """The variables that a command in another shell needs; URLs to read and write are the first one's."""
    return " ".join(f"{name}={url}" for name, url in environ.items() if name not in URLS[1:])


def _processing(inspector: Inspector) -> list[str]:
    """The ids of jobs in processing: those that run, and after the worker's end those that it left."""
    with suppress(LowkiqError):
        queues = inspector.queues().values()
        return [job.id for queue in queues for job in queue.processing(limit=100).items]
    return []


def _celery(name: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", name]


class _Dev:
    """Handles events: a signal, a change of the code, the end of a process."""

    def __init__(
        self,
        programs: list[Program],
        environ: dict[str, str],
        tree: SourceTree | None,
        processing: Callable[[], list[str]],
    ) -> None:
        """``programs``: the worker first. ``tree``: the source tree to watch; None: none.
        ``processing`` returns the ids of jobs in processing.
        """
        self._programs = programs
        self._tree = tree
        self._processing = processing
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._stopping = threading.Event()
        self._stopped = False
        self._signal_count = itertools.count()
        self._group = ProcessGroup(environ, self._events.put)

    def run(self) -> int:
        """Return the exit status: 0 if a signal ended it and all processes ended in time."""
        with self._signals():
            if self._tree is not None:
                threading.Thread(target=self._watch, args=(self._tree,), daemon=True).start()
            self._group.start(self._programs)
            status = None
            try:
                while status is None:
                    status = self._after(self._next())
            finally:
                self._stopping.set()
                in_time = self._group.stop(self._programs, self._tell_wait)
            return status if in_time else FAILED

    def _next(self) -> Event:
        while True:
            with suppress(Empty):
                return self._events.get(timeout=SLICE)

    def _after(self, event: Event) -> int | None:
        if event == STOP:
            return 0
        if isinstance(event, Child):
            return self._ended(event)
        if isinstance(event, frozenset):
            self._restart(event)
        return None

    def _restart(self, changed: frozenset[Path]) -> None:
        """Restart one program after the other, so that the dashboard shows how the worker ends."""
        names = sorted({path.name for path in changed})
        _say(f"{', '.join(names)} {'have' if names[1:] else 'has'} changed")
        worker, *others = self._programs
        in_time = self._group.stop([worker], self._tell_wait)
        if not self._stopped:
            self._tell_left(in_time)
            self._group.start([worker])
            self._group.stop(others, lambda: None)
        if not self._stopped:
            self._group.start(others)

    def _tell_wait(self) -> None:
        if ids := self._processing():
            hint = "; Ctrl-C again does not wait" if self._stopped else ""
            _say(f"waiting up to {RUN_TIMEOUT} s for {_jobs(ids)}{hint}")

    def _tell_left(self, in_time: bool) -> None:
        """Say what the worker left to the next one. A killed one keeps its lease for a while."""
        if not in_time:
            _say("the worker did not end in time and was killed; its jobs start again when its lease is over")
        elif ids := self._processing():
            _say(f"{_jobs(ids)} did not end within {RUN_TIMEOUT} s: starting again")

    def _ended(self, child: Child) -> int | None:
        if child not in self._group:
            return None  # stopped by the group
        code = child.process.returncode
        if self._tree is None:
            _say(f"the {child.program.name} has ended with status {code}")
            return code if code >= 0 else FAILED
        _say(f"the {child.program.name} has ended with status {code}; it starts anew when code changes")
        return None

    def _watch(self, tree: SourceTree) -> None:
        for changed in watch_files(tree, self._stopping):
            self._events.put(changed)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal stops all processes, the second one kills them."""

        def handle(*_: Any) -> None:
            # No lock is taken here, as Event.set would: another signal may interrupt this handler.
            self._stopped = True
            if next(self._signal_count):
                self._group.kill()
            self._events.put(STOP)

        before = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _jobs(ids: list[str]) -> str:
    shown = ", ".join(ids[:SHOWN_JOBS]) + ", ..." * (len(ids) > SHOWN_JOBS)
    return f"{len(ids)} running job{'s' * (len(ids) != 1)} (id {shown})"


def _say(text: str) -> None:
    write_text(f"dev: {text}", err=True)
