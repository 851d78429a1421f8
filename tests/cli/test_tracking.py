"""Trackers on the command line."""

from __future__ import annotations

import json
import re

import pytest

from celery_lowkiq import track
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.tracking import State, began, ended
from tests.cli import proj
from tests.cli.test_processes import said, terminal

NOBODY = "0" * 32


@pytest.fixture
def tracker(server):
    """Of three calls one has ended by an error, one runs, and one waits."""
    with track("import\x1b[31m", proj.app) as made:
        proj.sync_order.perform_async([{"id": n, "payload": {"row": n}} for n in range(3)], tracker=made)
    first, second, _ = (call.task_id for call in made.jobs().items)
    runs = [began(made.id, call, 5, 1) for call in (first, second)]
    tracker_store = context_of(proj.app).tracker_store
    tracker_store.update([ended(runs[0], over=True, success=False, text="no\nway"), runs[1]])
    tracker_store.progress(runs[1:], "half", 1, 2)
    return made


def cells(line):
    return re.split("  +", line)


def test_a_group_is_one_line(tracker, run):
    (header, line) = run("progress", tracker.id).stdout.splitlines()
    assert cells(header) == ["id", "name", "opened", "total", *(state.value for state in State)]
    name, _opened, *counts = cells(line)[1:]
    assert (name, counts) == ("import\\x1b[31m", ["3", "1", "1", "0", "0", "1"])


def test_groups_are_listed_latest_first(tracker, run):
    other = track("other", proj.app)
    other.cancel()
    lines = run("progress").stdout.splitlines()
    assert [cells(line)[0] for line in lines] == ["id", other.id, tracker.id]
    assert lines[1].endswith("cancelled")


def test_calls_by_state(tracker, run):
    lines = run("progress", tracker.id, "--state", "error", "--state", "working").stdout.splitlines()
    failed, runs = (cells(line) for line in lines[1:])
    assert failed[1:3] == ["0", "error"]
    assert failed[-2:] == ['{"row": 0}', "no\\nway"]
    assert runs[1:3] == ["1", "working"]
    assert runs[-3:] == ["1/2", '{"row": 1}', "half"]


def test_for_programs(tracker, run):
    view = json.loads(run("progress", tracker.id, "--json").stdout)
    assert view["counts"] == {"enqueued": 1, "working": 1, "finished": 0, "failed": 0, "error": 1, "total": 3}
    assert (view["closed"], view["done"], view["id"]) == (True, False, tracker.id)
    (call,) = map(json.loads, run("progress", tracker.id, "--state", "error", "--json").stdout.splitlines())
    assert (call["id"], call["payload"], call["state"]) == ("0", {"row": 0}, "error")
    assert (call["messages"][0]["state"], call["messages"][0]["text"]) == ("error", "no\nway")


def test_a_group_is_cancelled(tracker, run):
    found = run("cancel", tracker.id, "--yes")
    assert (found.exit_code, found.stdout) == (0, "cancelled 1 call of import\\x1b[31m\n")
    assert tracker.counts().failed == 1
    assert run("cancel", tracker.id).exit_code == 2, "nobody can be asked"


@pytest.mark.parametrize("command", ["progress", "cancel"])
@pytest.mark.parametrize(("given", "status"), [(NOBODY, 1), ("import", 2)])
def test_there_is_no_such_group(server, run, command, given, status):
    found = run(command, given)
    assert (found.exit_code, found.stdout) == (status, "")
    assert given in found.stderr


def test_on_a_terminal_a_bar_moves_to_the_end(tracker):
    tracker_store = context_of(proj.app).tracker_store
    calls = [call.task_id for call in tracker.jobs([State.WORKING, State.ENQUEUED]).items]
    with terminal("progress", tracker.id) as (process, ours):
        said(ours, b"1/3")
        tracker_store.update(ended(began(tracker.id, call, 5, 2), over=True, success=True) for call in calls)
        said(ours, b"3/3")
        out = process.stdout.read()
        assert process.wait(30) == 0
    assert out.splitlines()[1].endswith(b"done")
