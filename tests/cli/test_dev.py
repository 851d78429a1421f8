"""``dev``: a real Redis, a real worker, code that changes, and nothing left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from celery import Celery

from celery_lowkiq.cli.dev import SourceTree, _Dev, _environ, _in_shell, _source_tree
from tests.ports import free_port
from tests.processes import ROOT
from tests.waiting import eventually

APP = """
import time

from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("devapp", broker="redis://192.0.2.1:1/0")
app.conf.update({settings})

@ordered_task(app=app, name="hello")
def hello(payloads_by_id):
    print("{greeting}", payloads_by_id, flush=True)
    while "long" in payloads_by_id and "{greeting}" == "hello one":
        time.sleep(0.1)
"""


class Dev:
    """A ``dev`` at work on an app in a directory."""

    def __init__(self, directory: Path, *options: str, **settings: object) -> None:
        self._directory = directory
        self.settings = settings
        self.write("hello one")
        self._log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [*self._celery(), "dev", "--lanes", "1", *options],
            cwd=directory,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def write(self, greeting: str) -> None:
        text = APP.format(settings=repr(self.settings), greeting=greeting)
        (self._directory / "devapp.py").write_text(text)

    def spoil(self) -> None:
        (self._directory / "devapp.py").write_text("this is no Python")

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def says(self, text: str, times: int = 1) -> None:
        def said() -> bool:
            assert self.process.poll() is None, self.log()
            return self.log().count(text) >= times

        eventually(said, 60)

    def push(self, id_: str = "1") -> None:
        url = re.search(r"CELERY_BROKER_URL=(\S+)", self.log()).group(1)
        environ = self._environ(CELERY_BROKER_URL=url)
        words = [*self._celery(), "push", "hello", id_, "1"]
        subprocess.run(words, cwd=self._directory, env=environ, check=True, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.process.kill()
        self.process.wait(30)
        self._log.close()

    def _celery(self) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", "devapp", "lowkiq"]

    def _environ(self, **more: str) -> dict[str, str]:
        path = f"{self._directory}:{ROOT}"
        return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


@pytest.fixture
def start_dev(tmp_path, monkeypatch):
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)
    started = []

    def start(*options, **settings):
        started.append(Dev(tmp_path, *options, **settings))
        return started[-1]

    yield start
    for dev in started:
        dev.end()


def test_another_shell_gets_broker_and_result_backend():
    url, app = "redis://x", Celery("other", set_as_current=False)
    assert _in_shell(_environ(app, url)) == "CELERY_BROKER_URL=redis://x"
    app.conf.result_backend = "rpc://"
    assert _in_shell(_environ(app, url)) == "CELERY_BROKER_URL=redis://x CELERY_RESULT_BACKEND=redis://x"


@pytest.mark.full
def test_changed_code_runs_and_nothing_is_left_behind(start_dev):
    dev = start_dev("--no-web")
    dev.says(" ready.")
    dev.push()
    dev.says("hello one")
    dev.spoil()
    dev.says("the worker has ended with status 2; it starts anew when code changes")
    dev.write("hello two")
    dev.says(" ready.", 2)
    dev.push()
    dev.says("hello two")
    children = psutil.Process(dev.process.pid).children(recursive=True)
    assert len(children) >= 3  # the worker, Redis, and who watches it
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(30) == 0
    assert psutil.wait_procs(children, timeout=30)[1] == []


@pytest.mark.full
def test_a_run_that_outlives_a_reload_is_named_and_starts_again_at_once(start_dev):
    port = free_port()
    dev = start_dev("--web-port", str(port))
    dev.says(" ready.")
    dev.says("the dashboard is at")
    dev.push("long")
    dev.says("hello one")
    dev.write("hello two")
    dev.says("dev: devapp.py has changed\n")
    dev.says("dev: waiting up to 15 s for 1 running job (id long)\n")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
        assert page.status == 200  # the dashboard does not wait for the run
    dev.says("dev: 1 running job (id long) did not end within 15 s: starting again\n")
    dev.says(" ready.", 2)
    ready = time.monotonic()
    dev.says("hello two")
    assert time.monotonic() - ready < 5  # the lease is 10 s
    dev.says("the dashboard is at", 2)
    assert "was killed" not in dev.log()


@pytest.mark.full
def test_a_setting_of_the_app_does_not_lead_the_worker_elsewhere(start_dev):
    dev = start_dev("--no-web", "--no-reload", lowkiq_url="redis://192.0.2.1:1/0")
    dev.says("the app sets lowkiq_url")
    dev.says(" ready.")


@pytest.mark.full
def test_the_dashboard_comes_with_it(start_dev):
    port = free_port()
    dev = start_dev("--no-reload", "--web-port", str(port))
    dev.says("the dashboard is at")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
        assert b"hello" in page.read()
    assert "in another shell, first: export CELERY_BROKER_URL=redis://127.0.0.1:" in dev.log()
    assert "GET /" not in dev.log()  # lines of runs are not lost among requests


def test_without_reload_its_status_is_the_workers(start_dev):
    dev = start_dev("--no-web", "--no-reload", lowkiq_nonsense=1)
    assert dev.process.wait(60) == 1
    assert "the worker has ended with status 1" in dev.log()
    assert "lowkiq_nonsense" in dev.log()


def test_a_port_that_is_taken(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("dev", "--redis-port", str(port))
    assert done.exit_code == 1
    assert f"--redis-port {port} on 127.0.0.1 cannot be had: Address already in use" in done.output


def test_a_port_of_the_dashboard_that_is_taken(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("dev", "--port", str(port), "--no-reload")
    assert done.exit_code == 1
    assert f"--port {port} on 127.0.0.1 cannot be had: Address already in use" in done.output


@pytest.mark.full
def test_a_second_interrupt_does_not_wait(start_dev):
    dev = start_dev("--no-web", "--no-reload")
    dev.says(" ready.")
    (worker,) = [p for p in psutil.Process(dev.process.pid).children() if "worker" in p.cmdline()]
    worker.suspend()
    dev.process.send_signal(signal.SIGTERM)
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(30) in (0, 1)
    assert not worker.is_running()


@pytest.mark.full
@pytest.mark.parametrize("name, to_all", [("SIGTERM", True), ("SIGQUIT", False)])
def test_a_stop_signal_ends_all_its_processes_in_order(start_dev, name, to_all):
    dev = start_dev("--no-web", "--no-reload")
    dev.says(" ready.")
    others = psutil.Process(dev.process.pid).children(recursive=True)
    for process in (*others, dev.process) if to_all else (dev.process,):
        process.send_signal(signal.Signals[name])
    status = dev.process.wait(60)
    assert to_all or status == 0
    assert psutil.wait_procs(others, 30)[1] == []
    assert "Redis is not available" not in dev.log()


def test_signals_that_another_thread_receives_are_obeyed():
    """Of two at once the kernel may give both to one that does nothing."""
    late, main = [], threading.get_ident()

    def main_waits():
        frames = traceback.walk_stack(sys._current_frames()[main])
        return any(frame.f_code is _Dev._changes.__code__ for frame, _ in frames)

    def receive():
        for _ in range(10):
            eventually(main_waits)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not ended.wait(20):
            late.append("still waits")
            dev._stopped = True

    ended, other = threading.Event(), threading.Thread(target=receive)
    dev = _Dev([], {}, None, list)
    dev._group = SimpleNamespace(start=lambda _: other.start(), ended=dict, stop=lambda *_: True)
    assert dev.run() == 0
    ended.set()
    other.join(30)
    assert not late


@pytest.mark.parametrize("line", range(8))
def test_a_second_signal_may_come_in_the_middle_of_the_first(line):
    kills, lines = [], itertools.count()
    dev = _Dev([], {}, None, list)
    dev._group = SimpleNamespace(kill=lambda: kills.append("all"))

    def trace(_, event, __):
        if event == "line" and next(lines) == line:
            signal.raise_signal(signal.SIGTERM)
        return trace

    # Of coverage, which would measure nothing any more.
    before = sys.gettrace()
    with dev._signals():
        sys.settrace(trace)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            sys.settrace(before)
        if next(lines) <= line:
            signal.raise_signal(signal.SIGTERM)
    assert kills == ["all"]


def test_the_app_must_be_named(monkeypatch):
    monkeypatch.delenv("CELERY_APP", raising=False)
    words = [sys.executable, "-m", "celery", "lowkiq", "dev"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (found.returncode, "name it, celery -A proj lowkiq dev" in found.stderr) == (2, True)


# -- what is watched


@pytest.fixture
def package(tmp_path):
    (tmp_path / "below" / "__pycache__").mkdir(parents=True)
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "below" / "b.py").write_text("1")
    return tmp_path


def more(path):
    path.write_text(path.read_text() + "1" if path.exists() else "1")


EDITS = {
    "changed": lambda path, _: more(path / "a.py"),
    "changed below": lambda path, _: more(path / "below" / "b.py"),
    "new": lambda path, number: more(path / "below" / f"new{number}.py"),
    "moved": lambda path, number: next(path.glob("a*.py")).rename(path / f"a{number}.py"),
}


def changed(package, edit):
    """The names of the files that count in the first change. The first edits may come before the watch."""
    numbers = itertools.count()
    watch = _Dev([], {}, SourceTree((package,), recursive=True), list)._changes()
    with contextlib.closing(watch) as changes:
        return eventually(lambda: (edit(package, next(numbers)), {path.name for path in next(changes)})[1])


@pytest.mark.parametrize("edit", EDITS)
def test_what_changes_is_seen(package, edit):
    assert all(re.fullmatch(r"(a|b|new)\d*\.py", name) for name in changed(package, EDITS[edit]))


def test_only_code_counts(package):
    def edit(path, number):
        for name in ("below/__pycache__/c.py", "text.txt", f"new{number}.py"):
            more(path / name)

    assert all(re.fullmatch(r"new\d+\.py", name) for name in changed(package, edit))


def test_without_watchfiles_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert _source_tree("timeit") is None
    assert "no restart when code changes: pip install watchfiles" in capsys.readouterr().err


def test_the_code_of_an_app():
    package = _source_tree("tests.cli.proj:app")
    assert (package.directories[0], package.recursive) == (ROOT / "tests", True)
    module = _source_tree("timeit:app")
    assert (module.directories, module.recursive) == ((Path(os.__file__).parent,), False)
