"""What `celery inspect`, `celery status` and `celery events` say of ordered queues."""

from __future__ import annotations

import os
import sys

import celery
import pytest

from tests.processes import ROOT, Process
from tests.waiting import eventually

NODE = "features@test"
WAIT = 30


@pytest.fixture
def ask(features):
    """The worker's answer to an `inspect` command; sent again, because the reply may be late."""

    def answer(command, *arguments):
        inspect = features.app.control.inspect(destination=[NODE], timeout=10, limit=1)
        return eventually(lambda: getattr(inspect, command)(*arguments), 40)[NODE]

    return answer


def test_a_run_is_active_and_found_by_its_id(features, work, job_id, gate, ask):
    result = work.delay(job_id, {"gate": gate})
    features.wait_for("held", gate=gate)
    (active,) = [run for run in ask("active") if run["id"] == result.id]
    assert (active["name"], active["delivery_info"]["routing_key"]) == ("work", "work")
    assert active["args"] == [{job_id: [{"gate": gate}]}]
    assert ask("query_task", [result.id])[result.id][0] == "active"
    features.open(gate)
    result.get(WAIT)
    eventually(lambda: ask("query_task", [result.id]) == {})


def test_what_waits_is_shown_by_the_queue_and_not_by_the_worker(work, job_id, ask):
    result = work.apply_async((job_id, "later"), countdown=3600)
    assert ask("scheduled") == []
    assert result.id not in str(ask("reserved"))
    assert work.ordered_queue.job(job_id).waiting.payload_count == 1
    work.ordered_queue.delete([job_id])


def test_registered_and_stats(work, job_id, ask):
    before = ask("stats")["total"].get("work", 0)
    work.delay(job_id, "x").get(WAIT)
    stats = ask("stats")
    assert stats["total"]["work"] > before
    assert len(stats["lowkiq"]["lanes"]) == 4
    assert {"work", "batch", "add"} <= set(ask("registered"))


def test_conf_and_report(ask):
    assert ask("conf")["lowkiq_lease_seconds"] == 2.0
    assert f"celery:{celery.__version__}" in ask("report")["ok"]


@pytest.fixture
def cli(features, session_server, tmp_path):
    """A running `celery` command and the file of its output."""
    started = []

    def start(*words):
        output = tmp_path / "output"
        env = {**os.environ, "PROJ_URL": session_server.url, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "celery", "-A", "tests.features.proj", *words]
        with output.open("w") as out:
            started.append(Process(command, env=env, cwd=ROOT, stdout=out, stderr=out))
        return started[-1], output

    yield start
    for process in started:
        process.kill()
        process.wait(WAIT)


@pytest.mark.full
def test_celery_status(cli):
    process, output = cli("status", "--timeout", "10")
    assert process.wait(60) == 0, output.read_text()
    assert f"{NODE}: " in output.read_text()


def test_celery_events(work, new_id, cli):
    """Calls are made until the command listens."""
    _, output = cli("events", "--dump")

    def told():
        result = work.delay(new_id(), "x")
        result.get(WAIT)
        lines = [line for line in output.read_text().splitlines() if "task succeeded" in line]
        return any("work(" in line for line in lines)

    eventually(told, 60)
