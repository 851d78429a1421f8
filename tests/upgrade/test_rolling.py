"""A rolling deploy from another release to this checkout and back, with workers that die on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.upgrade.other_release import unpack
from tests.waiting import eventually

IDS = 10
TASKS = ("plain", "recorded")
LEASE_SECONDS = 3.0


class Fleet:
    """Processes of both releases on one Redis."""

    def __init__(self, directory: Path, url: str, other: Path) -> None:
        self.directory = directory
        self.ledger = directory / "ledger"
        self._site = {"other": [str(other)], "head": []}
        lease = str(LEASE_SECONDS)
        self._env = {"UPGRADE_URL": url, "UPGRADE_LEDGER": str(self.ledger), "UPGRADE_LEASE": lease}
        self._processes: list[subprocess.Popen[str]] = []
        for release in self._site:
            (directory / release).mkdir()
            shutil.copy(Path(__file__).parent / "proj.py", directory / release)

    def start(self, release: str, *command: str) -> subprocess.Popen[str]:
        env = {**os.environ, **self._env, "PYTHONPATH": os.pathsep.join(self._site[release])}
        log = (self.directory / f"{len(self._processes)}-{release}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, *command],
            env=env,
            cwd=self.directory / release,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
        )
        self._processes.append(process)
        return process

    def worker(self, release: str) -> subprocess.Popen[str]:
        name = f"{release}-{len(self._processes)}"
        options = (
            "-P",
            "threads",
            "-c",
            "4",
            "-n",
            name,
            "--without-mingle",
            "--without-gossip",
            "-l",
            "INFO",
        )
        return self.start(release, "-m", "celery", "-A", "proj", "worker", *options)

    def caller(self, release: str) -> subprocess.Popen[str]:
        return self.start(release, "proj.py", release, str(IDS))

    def lines(self, event: str) -> list[dict]:
        text = self.ledger.read_text() if self.ledger.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in found if line["event"] == event]

    def wait_for_runs_of(self, process: subprocess.Popen[str]) -> None:
        """Wait for a run, also of a process that starts on a machine that callers and workers keep busy."""
        eventually(lambda: any(run["pid"] == process.pid for run in self.lines("run")), 180)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def fleet(tmp_path, settings):
    found = Fleet(tmp_path, settings["broker_url"], unpack(tmp_path / "release"))
    yield found
    found.end()


def kill_and_replace(fleet, nodes, release):
    """One by one; an old node is killed while the new one works."""
    for place, old in enumerate(nodes):
        new = fleet.worker(release)
        fleet.wait_for_runs_of(new)
        old.kill()
        nodes[place] = new


@pytest.mark.full
def test_up_and_back_under_kills(fleet):
    nodes = [fleet.worker("other") for _ in range(2)]
    callers = [fleet.caller(release) for release in ("other", "head")]
    for node in nodes:
        fleet.wait_for_runs_of(node)
    for release in ("head", "other", "head"):
        kill_and_replace(fleet, nodes, release)
    for caller in callers:
        caller.communicate("stop\n", timeout=30)
    counts = {line["prefix"]: line["count"] for line in fleet.lines("called")}
    assert counts.keys() == {"other", "head"}
    expected = {
        (f"{task}-{prefix}-{number % IDS}", number)
        for task in TASKS
        for prefix, count in counts.items()
        for number in range(1, count + 1)
    }

    def missing():
        return expected - {(run["id"], number) for run in fleet.lines("run") for number in run["numbers"]}

    eventually(lambda: not missing(), 120)
    nobody_was_overtaken(fleet.lines("run"))


def nobody_was_overtaken(runs):
    """No run began with only older calls than an earlier one had, and none beside another of its id.

    A process that stands still, as on a machine with too much to do, may lose its shard with a run on it. The
    run of a process that was killed begins again, after a second death of the id with its first call alone.
    """
    by_id = defaultdict(list)
    for run in sorted(runs, key=lambda run: run["began"]):
        by_id[run["id"]].append(run)
    for job_id, of_id in by_id.items():
        newest, before = 0, {"began": 0.0, "ended": 0.0, "pid": 0, "numbers": [0]}
        for run in of_id:
            if run["pid"] != before["pid"] and run["numbers"][0] == before["numbers"][0]:
                newest = 0
            assert max(run["numbers"]) >= newest, f"{job_id}: {run} came after {newest}"
            stood_still = before["ended"] - before["began"] > LEASE_SECONDS / 2
            assert stood_still or run["began"] >= before["ended"], f"{job_id}: {run} began within {before}"
            newest, before = max(newest, *run["numbers"]), run


def test_each_process_has_its_release(fleet):
    code = "import celery_lowkiq; print(celery_lowkiq.__file__, flush=True)"
    found = {}
    for release in ("other", "head"):
        assert fleet.start(release, "-c", code).wait(30) == 0
        found[release] = Path((fleet.directory / f"{len(found)}-{release}.log").read_text().strip())
    assert found["head"].parents[1] == Path(__file__).parents[2]
    assert found["other"].parts != found["head"].parts
