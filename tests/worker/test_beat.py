"""Periodic calls: ``celery beat`` with the code of an ordered task, and without it."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.processes import ROOT, Process

#: A second that is divided does not depend on the wall clock's minute.
ENTRIES = {"often": {"task": "record", "schedule": 0.2, "kwargs": {"id": 7, "payload": {"by": "beat"}}}}


@pytest.fixture
def beat(tmp_path):
    """A running ``celery beat`` process, which ends with the test."""
    started = []

    def start(*words, **env):
        command = [sys.executable, "-m", "celery", *words, "beat", "-l", "INFO", "--pidfile="]
        command += ["--schedule", str(tmp_path / "schedule")]
        with (tmp_path / "beat.log").open("w") as log:
            started.append(Process(command, env={**os.environ, **env}, cwd=ROOT, stdout=log, stderr=log))

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


def test_entries_with_kwargs(app, settings, start_worker, ledger, beat):
    """They go to the store; what comes while the id waits is merged."""
    settings["beat_schedule"] = ENTRIES
    beat("-A", "tests.worker.proj", PROJ_SETTINGS=json.dumps(settings))
    start_worker()
    ends = ledger.wait_for("end", 3)
    assert {(line["id"], json.dumps(line["payloads"])) for line in ends} == {("7", '[{"by": "beat"}]')}
    assert app.control.purge() == 0


@pytest.mark.full
def test_a_process_without_the_code(settings, start_worker, ledger, beat, tmp_path):
    """Its calls come by the broker, and a worker moves them to the store."""
    (tmp_path / "stranger.py").write_text(
        f"broker_url = {settings['broker_url']!r}\nbeat_schedule = {ENTRIES!r}\n"
    )
    beat("--config", "stranger", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    start_worker()
    ends = ledger.wait_for("end", 3)
    assert {line["id"] for line in ends} == {"7"}
