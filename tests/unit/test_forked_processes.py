"""A process that is forked from the template of ``tests/processes.py`` is as one that is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.processes import Process, run

#: As a module and as a script it says the same of itself.
PROBE = """
import json, os, signal, sys

main = sys.modules["__main__"]
said = {
    "argv": sys.argv,
    "path": sys.path,
    "env": dict(os.environ),
    "cwd": os.getcwd(),
    "parent": os.getppid(),
    "spec": getattr(main.__spec__, "name", None),
    "main": (__name__, main is sys.modules["__main__"]),
    "input": sys.stdin.read(),
    "flags": list(sys.flags),
    "signals": {int(each): str(signal.getsignal(each)) for each in signal.valid_signals()},
    "streams": [
        (str(each), each.line_buffering, each.write_through, each.errors, each.newlines, each.seekable())
        for each in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "descriptors": [each for each in range(3, 64) if os.path.exists(f"/dev/fd/{each}")],
}
print(json.dumps(said))
print("seen", file=sys.stderr)
sys.exit(3)
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is a started one")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "more"))
    return tmp_path


def said(kind, words, folder):
    pipe = subprocess.PIPE
    # Not what C alone has put into the environment, as readline does.
    environ = dict(os.environ)
    process = kind([sys.executable, *words], cwd=folder, env=environ, stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = process.communicate(b"read", timeout=60)
    assert (process.returncode, err) == (3, b"seen\n")
    return json.loads(out)


@pytest.mark.parametrize("words", [["-m", "probe", "a", "-b"], ["-c", PROBE, "a"]], ids=["module", "code"])
def test_it_finds_what_a_started_one_finds(folder, words):
    forked = said(Process, words, folder)
    assert forked == said(subprocess.Popen, words, folder)
    assert (forked["parent"], forked["input"]) == (os.getpid(), "read")


def test_it_is_forked_only_where_nothing_differs():
    """Variables of the start count, which a fork could not have."""
    code = "import celery; print('kombu.transport.redis' in sys.modules)"
    loaded = [sys.executable, "-c", f"import sys; {code}"]
    assert run(loaded, 60).stdout == "True\n"
    for name, value in (("PYTHONHASHSEED", "7"), ("TZ", "Asia/Tokyo"), ("COVERAGE_PROCESS_START", "x")):
        assert run(loaded, 60, env={**os.environ, name: value}).stdout == "False\n"


def test_the_template_has_made_nothing():
    code = """
        from celery import _state
        import gc, threading
        from celery import Celery
        assert _state.default_app is None
        assert not [each for each in gc.get_objects() if isinstance(each, Celery)]
        assert threading.active_count() == 1
    """
    done = run([sys.executable, "-c", textwrap.dedent(code)], 60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_ends_it():
    process = Process(
        [sys.executable, "-c", "import signal; print(1, flush=True); signal.pause()"], stdout=-1
    )
    assert process.stdout.readline() == b"1\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
