"""``dev``: all that a developer's machine needs, in one command."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import click

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.operations.inspector import Inspector

from ..changes import Code, changes, code_of
from ..crew import SLICE, Child, Command, Crew
from ..main import FAILED
from ..params import command

STOP, CHANGED = "stop", "changed"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: What the dashboard needs beside the package itself.
DASHBOARD = ("uvicorn", "starlette", "jinja2")
#: Settings by which Celery's and our connections are found, as the environment sets them.
URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")

Event: TypeAlias = "str | Child"


@command("Redis, worker and dashboard on your machine.", ["dev", "dev --lanes 8 --redis-port 6399"])
@click.option("--lanes", "-c", default=4, show_default=True, type=click.IntRange(1), help="Of the worker.")
@click.option("--redis-port", default=0, type=click.IntRange(0, 65535), help="By default any free one.")
@click.option("--web-port", default=5556, show_default=True, type=click.IntRange(1, 65535), help="Dashboard.")
@click.option("--no-web", is_flag=True, help="No dashboard.")
@click.option("--no-reload", is_flag=True, help="Do not start anew when code changes.")
def dev(
    inspector: Inspector, lanes: int, redis_port: int, web_port: int, no_web: bool, no_reload: bool
) -> None:
    """Start a Redis of its own, a worker, and the dashboard when it is installed; Ctrl-C ends all.

    When a Python file of the app changes, worker and dashboard start anew. The Redis is empty at the
    beginning, and gone at the end. The worker's status is dev's with --no-reload.
    """
    context = click.get_current_context()
    app = context.find_root().params.get("app")
    if not isinstance(app, str):
        raise click.UsageError("dev starts the app in other processes: name it, celery -A proj lowkiq dev")
    with EmbeddedServer(port=redis_port) as server:
        _say(f"Redis: {server.url}; from another shell: CELERY_BROKER_URL={server.url} celery -A {app} ...")
        commands = [_worker(inspector.app, app, server.url, lanes)]
        if not no_web and (dashboard := _dashboard(inspector.app, app, web_port)):
            commands.append(dashboard)
        crew = partial(Crew, commands, _environ(inspector.app, server.url))
        context.exit(_Dev(crew, None if no_reload else code_of(app)).run())


def _worker(app: Any, name: str, url: str, lanes: int) -> Command:
    """A setting of the app comes before the broker's URL: only the worker's command line comes before it."""
    words = [*_celery(name), "worker", "-P", "threads", "-c", str(lanes), "-l", "INFO", "-E"]
    if app.conf.get("lowkiq_url"):
        _say("the app sets lowkiq_url: the worker uses this Redis all the same, other programs do not")
        words += ["--", f"lowkiq.url=(string){url}"]
    return Command("worker", words)


def _dashboard(app: Any, name: str, port: int) -> Command | None:
    if app.conf.get("lowkiq_url"):
        _say("no dashboard: it would show the Redis of lowkiq_url")
        return None
    if not all(map(find_spec, DASHBOARD)):
        _say("no dashboard: pip install 'celery-lowkiq[web]'")
        return None
    _say(f"dashboard: http://127.0.0.1:{port}")
    return Command("dashboard", [*_celery(name), "lowkiq", "web", "--port", str(port)])


def _environ(app: Any, url: str) -> dict[str, str]:
    """Results go there too, where the app has any."""
    names = (*URLS, "CELERY_RESULT_BACKEND") if app.conf.result_backend else URLS
    return dict.fromkeys(names, url)


def _celery(name: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", name]


class _Dev:
    """Waits for what happens: a signal, changed code, the end of a process."""

    def __init__(self, crew: Callable[[Callable[[Child], None]], Crew], code: Code | None) -> None:
        """``code``: what is watched, if anything."""
        self._code = code
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._stopping = threading.Event()
        self._told = False
        self._signals_heard = itertools.count()
        self._crew = crew(self._events.put)

    def run(self) -> int:
        """The exit status: 0 when it was ended by a signal and everything has ended in time."""
        with self._signals():
            if self._code is not None:
                threading.Thread(target=self._watch, args=(self._code,), daemon=True).start()
            self._crew.start()
            status = None
            try:
                while status is None:
                    status = self._after(self._next())
            finally:
                self._stopping.set()
                in_time = self._crew.stop()
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
        _say("code has changed")
        self._crew.stop()
        if not self._told:
            self._crew.start()
        return None

    def _ended(self, child: Child) -> int | None:
        if child not in self._crew:
            return None  # we ended it
        code = child.process.returncode
        if self._code is None:
            _say(f"the {child.name} has ended with status {code}")
            return code if code >= 0 else FAILED
        _say(f"the {child.name} has ended with status {code}; it starts anew when code changes")
        return None

    def _watch(self, code: Code) -> None:
        for _ in changes(code, self._stopping):
            self._events.put(CHANGED)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first one ends everything, a second one at once."""

        def heard(*_: Any) -> None:
            # Nothing here waits for a lock, as Event.set does: another signal may come in the middle of it.
            self._told = True
            if next(self._signals_heard):
                self._crew.kill()
            self._events.put(STOP)

        before = {number: signal.signal(number, heard) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _say(text: str) -> None:
    click.echo(f"dev: {text}", err=True)
