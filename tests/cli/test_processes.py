"""Real processes: each command once, and what only a process shows: pipes, terminals, an absent Redis."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.models import Disposition
from tests.cli import proj
from tests.cli.conftest import APP, done, end_all, start
from tests.ports import free_port
from tests.processes import ROOT
from tests.waiting import eventually
from tests.worker.nodes import worker

COMMANDS = {
    "stats": "sync_order",
    "stats --json": '"length": 2',
    "jobs sync_order": "w1",
    "job sync_order w1 --json": '"retry_count": -1',
    "morgue sync_order": "d1",
    "requeue sync_order --all --yes": "requeued 1 dead job",
    "bury sync_order --failed --yes": "buried 0 failed jobs",
    "delete sync_order w1 --yes": "deleted 1 waiting job",
    "run-now sync_order --all --yes": "made due 2 waiting jobs",
    "push sync_order 7 7": "-",
    "why sync_order w1": "It waits for its time",
    "pause sync_order": "paused queue sync_order",
    "pause sync_order w1": "paused 1 id of queue sync_order",
    "paused send_mail --json": "[]",
    "nodes --json": "",
}

#: Those that the test command runs as processes, too.
OFTEN = {"stats --json", "push sync_order 7 7"}


@pytest.fixture
def filled(queue):
    proj.sync_order.delay("d1", 1)
    end_all(proj.sync_order, Disposition.BURY)
    proj.sync_order.perform_async([{"id": f"w{n}", "perform_in": 9e9} for n in (1, 2)])
    return queue


@pytest.mark.parametrize(
    "words", [words if words in OFTEN else pytest.param(words, marks=pytest.mark.full) for words in COMMANDS]
)
def test_each_command(filled, words):
    found = done(*words.split())
    assert (found.returncode, found.stderr) == (0, "")
    assert COMMANDS[words] in found.stdout


@pytest.mark.full
def test_a_redis_that_is_down_is_one_line_without_its_password(server, monkeypatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://me:secret@127.0.0.1:1/0")
    for words in ("stats", "job sync_order 1", "push sync_order 1 1"):
        found = done(*words.split())
        assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
        assert found.stderr.startswith("Error: Redis is not available: ")
        assert "secret" not in found.stderr
    found = done("doctor")
    assert (found.returncode, found.stderr, "secret" in found.stdout) == (1, "", False)
    assert found.stdout.startswith("error    connection: Redis is not available: ")


@pytest.mark.full
def test_a_login_that_redis_refuses_names_the_setting_without_its_password(server, monkeypatch):
    """The advice asked whether the server is up."""
    with EmbeddedServer(port=free_port()) as guarded:
        monkeypatch.setenv("CELERY_BROKER_URL", f"redis://me:secret@127.0.0.1:{guarded.port}/0")
        found = done("doctor")
    assert (found.returncode, found.stderr, "secret" in found.stdout) == (1, "", False)
    assert "(WRONGPASS)" in found.stdout
    assert "This app logs in with what broker_url says" in found.stdout
    assert "Is the server up" not in found.stdout


@pytest.mark.full
def test_a_result_backend_that_is_down_is_one_line(server, monkeypatch):
    """Deleted jobs stay, as long as their calls cannot be told."""
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://me:secret@127.0.0.1:1/0")
    assert done("push", "answering", "1", "1").returncode == 0
    found = done("delete", "answering", "1", "--yes")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert found.stderr.startswith("Error: the result backend is not available: ")
    assert "secret" not in found.stderr


@pytest.mark.full
@pytest.mark.parametrize("kind", ["included", "discovering"])
@pytest.mark.parametrize("backend", ["", "redis"])
def test_a_push_where_only_the_app_names_the_module_of_the_task(server, monkeypatch, kind, backend):
    """F2: with a Redis result backend the KeyError read as "the result backend is not available"."""
    if backend:
        monkeypatch.setenv("CELERY_RESULT_BACKEND", server.url)
    app, name = f"tests.cli.elsewhere.{kind}", "tests.cli.elsewhere.tasks.sync_order"
    found = done("push", name, "42", '"paid"', app=app)
    assert (found.returncode, found.stderr) == (0, "")
    assert '"length": 1' in done("stats", name, "--json", app=app).stdout


@pytest.mark.full
def test_an_error_of_a_command_is_not_blamed_on_the_result_backend(server, monkeypatch):
    """F2: among the errors that Celery's Redis backend names is KeyError."""
    monkeypatch.setenv("CELERY_RESULT_BACKEND", server.url)
    found = done("push", "failing", "1", "1", app="tests.cli.elsewhere.failing")
    assert "the result backend" not in found.stderr
    assert found.stderr.splitlines()[-1] == "KeyError: 'tenant'"


@pytest.mark.full
def test_a_queue_by_the_last_part_of_its_name(server):
    """F6: the README's queue is proj.sync_order, and its commands say sync_order."""
    app, name = "tests.cli.elsewhere.included", "tests.cli.elsewhere.tasks.sync_order"
    assert done("push", "sync_order", "42", "1", app=app).returncode == 0
    found = done("delete", "tasks.sync_order", "42", "--yes", app=app)
    assert found.stdout == f"deleted 1 waiting job of queue {name}\n"


@pytest.mark.full
@pytest.mark.parametrize("words", ["nodes", "repair sync_order", "stats sync_order", "doctor"])
def test_without_an_app_it_is_asked_for(monkeypatch, words):
    """F9: the message was that broker_url is a '(no scheme)' URL, or, of a command with a queue, that the
    queue is unknown.
    """
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)
    command = [sys.executable, "-m", "celery", "lowkiq", *words.split()]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (2, "")
    assert "no app is given: write celery -A proj lowkiq ..." in found.stderr


def test_without_an_app_but_with_a_broker_it_is_asked_for(server):
    """The quickstart exports CELERY_BROKER_URL; the answer was a table without queues."""
    words = [sys.executable, "-m", "celery", "lowkiq", "stats"]
    environ = {**os.environ, "CELERY_BROKER_URL": server.url}
    found = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (2, "")
    assert "no app is given: write celery -A proj lowkiq ..." in found.stderr


@pytest.mark.full
@pytest.mark.parametrize("words", ["stats", "web --port 0"])
def test_an_option_that_is_wrong_is_told_with_its_task(server, words):
    """F9: the message named no task, and the dashboard was said to be there."""
    found = done(*words.split(), app="tests.cli.elsewhere.wrong")
    assert found.returncode != 0
    assert "the dashboard is at" not in found.stdout
    assert "sync_order: shards=0 is invalid" in found.stderr


@pytest.mark.full
def test_a_pause_and_its_end(filled):
    assert done("pause", "sync_order", "--shard", "1").stdout == "paused shard 1 of queue sync_order\n"
    assert done("resume", "sync_order", "--shard", "1").stdout == "resumed shard 1 of queue sync_order\n"
    assert filled.stats().paused == 0


@pytest.mark.full
def test_a_reader_that_has_enough_is_no_error(queue):
    proj.sync_order.perform_async([{"id": n, "payload": "x" * 100} for n in range(5000)])
    process = start(
        "jobs", "sync_order", "--limit", "0", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) == 1


def redirected(words, how):
    """Such a command as a shell starts it; its status and what it says on stderr."""
    command = f'exec "$0" -m celery -A {APP} lowkiq {words} {how}'
    found = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable], cwd=ROOT, capture_output=True, timeout=60, text=True
    )
    return found.returncode, found.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("load sync_order", 2, "stdin is closed"),
        ("requeue sync_order -", 2, "stdin is closed"),
        ("push sync_order 1 -", 2, "stdin is closed"),
        ("delete sync_order w1", 2, "Not a terminal: pass --yes to confirm"),
        ("delete sync_order w1 --yes", 0, ""),
    ],
)
def test_a_stdin_that_is_closed(filled, words, status, said):
    code, err = redirected(words, "<&-")
    assert (code, said in err, "Traceback" in err) == (status, True, False)


@pytest.mark.full
@pytest.mark.parametrize(
    "words", ["dump sync_order", "stats", "jobs sync_order --json", "requeue sync_order --all --yes"]
)
def test_a_disk_that_is_full_is_one_line(filled, words):
    code, err = redirected(words, "> /dev/full")
    assert (code, err.splitlines()[-1]) == (1, "Error: [Errno 28] No space left on device")
    assert len(err.splitlines()) == 1


@pytest.mark.full
def test_a_dump_with_nowhere_to_write_to_is_an_error(filled):
    assert redirected("dump sync_order", ">&-") == (
        1,
        "Error: stdout is closed: redirect it to a file\n",
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "words", ["dump sync_order", "requeue sync_order --all --yes", "delete sync_order w1 --yes"]
)
def test_a_stderr_that_is_closed(filled, words):
    assert redirected(words, "2>&-") == (0, "")


@pytest.mark.full
def test_an_id_that_the_terminal_cannot_show_does_not_end_the_listing(queue):
    proj.sync_order.delay("\u0437\u0430\u043a\u0430\u0437")
    found = done("jobs", "sync_order", env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (found.returncode, "\\u0437\\u0430" in found.stdout) == (0, True)


@contextlib.contextmanager
def terminal(*words):
    """A process with a terminal in front, and its other end."""
    ours, theirs = pty.openpty()
    process = start(*words, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
        os.close(ours)


def said(terminal_end, text):
    """All that the terminal shows until it shows the text."""
    shown = b""
    while text not in shown:
        shown += os.read(terminal_end, 1000)
    return shown


@pytest.mark.full
@pytest.mark.parametrize("answer, status, left", [("y", 0, 0), ("n", 1, 2), ("", 1, 2)])
def test_a_question_with_a_count(filled, answer, status, left):
    with terminal("delete", "sync_order", "w1", "w2") as (process, ours):
        assert b"Delete: 2 waiting jobs of queue sync_order? [y/N]" in said(ours, b"[y/N]: ")
        os.write(ours, answer.encode() + b"\n")
        assert process.wait(30) == status
    assert filled.stats().length == left


@pytest.mark.full
def test_a_bar_moves_on_a_terminal_only(filled):
    with terminal("requeue", "sync_order", "--all", "--yes") as (process, ours):
        assert b"100%" in said(ours, b"100%")
        assert process.stdout.read() == b"requeued 1 dead job of queue sync_order\n"


def test_watch_repeats_until_it_is_interrupted(filled):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start("stats", "--watch", "0.05", "--json", **pipes)
    first = [json.loads(process.stdout.readline())["total"]["length"] for _ in range(3)]
    filled.delete(["w1"])
    eventually(lambda: json.loads(process.stdout.readline())["total"]["length"] == 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (first, process.returncode, err) == ([2, 2, 2], 0, b"")


@pytest.fixture
def a_worker(filled, tmp_path):
    node = worker(proj.app, tmp_path / "worker.log", "-n", "w0@test", module=APP, lanes=2)
    eventually(lambda: node.ready() or node.container.status == "exited")
    yield node
    node.teardown()


@pytest.mark.full
def test_nodes_and_lanes(a_worker, run):
    node = eventually(lambda: run("nodes", "--json").stdout and json.loads(run("nodes", "--json").stdout))
    assert (node["name"], node["alive"], len(node["lanes"])) == ("w0@test", True, 2)
    assert eventually(lambda: re.search(r"^w0@test +working .* nothing$", run("nodes").stdout, re.MULTILINE))
    assert run("stats").stdout.endswith("\n1 node, 2 lanes, 0 of them busy\n")
    assert (
        eventually(lambda: json.loads(run("job", "sync_order", "w1", "--json").stdout)["owner"]) == "w0@test"
    )


@pytest.mark.full
def test_a_node_is_quieted(a_worker, run):
    eventually(lambda: "w0@test  working" in run("nodes").stdout)
    assert done("quiet", "w0@test").stdout.startswith("w0@test: quiet: ")
    eventually(lambda: "w0@test  quiet" in run("nodes").stdout)
    assert done("unquiet", "w0@test").returncode == 0
    eventually(lambda: "w0@test  working" in run("nodes").stdout)
