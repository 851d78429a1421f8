"""``dev``: Redis, worker and dashboard on a developer's machine."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import binding, command, write_text
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.errors import LowkiqError

#: Seconds for which the worker that ends waits for its running batches.
RUN_TIMEOUT = 15
#: Seconds that the worker has to end after that, with releases and exit functions.
EXIT_TIMEOUT = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
#: Packages that the dashboard needs.
DASHBOARD = ("uvicorn", "starlette", "jinja2")
#: Environment variables that Celery reads the URL of the broker from.
URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
#: End of the line about a process that has ended.
ANEW = "; it starts anew when code changes"
#: Ids that a line shows.
SHOWN_JOBS = 10
#: Seconds between two looks at the processes, and the longest wait: a signal that another thread has received
#: is handled after it.
SLICE = 0.1
#: Seconds after which a process that has not ended is reported.
LATE = 1.0


@dataclass(frozen=True)
class SourceTree:
    """The directories of an app's code: those of a package, with subdirectories, or that of a module."""

    directories: tuple[Path, ...]
    recursive: bool


@dataclass(frozen=True)
class Program:
    """A command line to run. After TERM, its process gets ``patience`` s to end."""

    name: str
    words: tuple[str, ...]
    patience: float = 10.0


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

    When a Python file of the app's directory changes, worker and dashboard restart, if watchfiles is
    installed. A run that does not end within 15 s is ended and runs again. The Redis starts empty, and its
    data is lost at the end. With --no-reload, the exit status is that of the worker.
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
            with binding("127.0.0.1", web_port):
                socket.create_server(("127.0.0.1", web_port)).close()
            programs.append(dashboard)
        tree = None if no_reload else _source_tree(app)
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
    return Program("worker", tuple(words), patience=RUN_TIMEOUT + EXIT_TIMEOUT)


def _dashboard(app: Any, name: str, port: int) -> Program | None:
    if app.conf.get("lowkiq_url"):
        _say("no dashboard: it would show the Redis of lowkiq_url")
        return None
    if not all(map(find_spec, DASHBOARD)):
        _say("no dashboard: pip install 'celery-lowkiq[web]'")
        return None
    return Program("dashboard", (*_celery(name), "lowkiq", "web", "--port", str(port), "--quiet"))


def _source_tree(app: str) -> SourceTree | None:
    """The source tree of an app as ``-A`` names it: ``proj``, ``proj.app:app``. None: not watched."""
    if not find_spec("watchfiles"):
        _say("no restart when code changes: pip install watchfiles")
        return None
    root = app.partition(":")[0].partition(".")[0]
    module = sys.modules.get(root) or importlib.import_module(root)
    if hasattr(module, "__path__"):
        return SourceTree(tuple(Path(path) for path in module.__path__), recursive=True)
    return SourceTree((Path(str(module.__file__)).parent,), recursive=False)


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


class ProcessGroup:
    """A child process of each program, each in its own session: Ctrl-C reaches only the parent."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {**os.environ, **environ}
        self._running: dict[Program, subprocess.Popen[bytes]] = {}

    def start(self, programs: Collection[Program]) -> None:
        for program in programs:
            self._running[program] = subprocess.Popen(  # noqa: S603 - a list of our own words
                program.words, env=self._environ, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def ended(self) -> dict[Program, int]:
        """Return the exit status of each process that has ended since the last call, but by ``stop``."""
        codes = {program: process.poll() for program, process in self._running.items()}
        found = {program: code for program, code in codes.items() if code is not None}
        for program in found:
            del self._running[program]
        return found

    def stop(self, programs: Collection[Program], late: Callable[[], None]) -> bool:
        """End the processes of some programs. Return whether each ended in time, without being killed.

        ``late`` is called once if one of them runs for more than ``LATE`` s after TERM.
        """
        running = {program: self._running[program] for program in programs if program in self._running}
        for process in running.values():
            process.terminate()
        begin = time.monotonic()
        if not all(_ended_by(process, begin + LATE) for process in running.values()):
            late()
        in_time = [_ended_by(process, begin + program.patience) for program, process in running.items()]
        for program, process in running.items():
            process.kill()
            process.wait()
            del self._running[program]
        return all(in_time)

    def kill(self) -> None:
        """Kill all running processes. A signal handler may call it while another call waits."""
        for process in list(self._running.values()):
            process.kill()


def _ended_by(process: subprocess.Popen[bytes], deadline: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return process.returncode is not None


class _Dev:
    """Handles a signal, a change of the code, the end of a process."""

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
        self._stopped = False
        self._signal_count = itertools.count()
        self._group = ProcessGroup(environ)

    def run(self) -> int:
        """Return the exit status: 0 if a signal ended it and all processes ended in time."""
        with self._signals():
            self._group.start(self._programs)
            try:
                status = self._watch()
            finally:
                in_time = self._group.stop(self._programs, self._tell_wait)
            return status if in_time else FAILED

    def is_set(self) -> bool:
        """Return whether a signal ends it: the watch calls this, as it would an event's method."""
        return self._stopped

    def _watch(self) -> int:
        for changed in self._changes():
            if changed:
                self._restart(changed)
            for program, code in self._group.ended().items():
                _say(f"the {program.name} has ended with status {code}" + ANEW * (self._tree is not None))
                if self._tree is None:
                    return code if code >= 0 else FAILED
        return 0

    def _changes(self) -> Iterator[set[Path]]:
        """Yield the changed files after each change, and none after each ``SLICE``, until a signal."""
        if self._tree is None:
            tick = threading.Event()
            while not self._stopped:
                tick.wait(SLICE)
                yield set()
            return
        import watchfiles

        for changes in watchfiles.watch(
            *self._tree.directories,
            watch_filter=watchfiles.PythonFilter(),
            stop_event=self,
            rust_timeout=int(SLICE * 1000),
            yield_on_timeout=True,
            recursive=self._tree.recursive,
        ):
            yield {Path(path) for _, path in changes}

    def _restart(self, changed: set[Path]) -> None:
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

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal stops all processes, the second one kills them."""

        def handle(*_: Any) -> None:
            # No lock is taken here: another signal may interrupt this handler.
            self._stopped = True
            if next(self._signal_count):
                self._group.kill()

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
