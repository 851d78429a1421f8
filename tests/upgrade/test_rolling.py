"""A rolling deploy from the baseline to this checkout and back, with workers that die on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import redis

from tests.upgrade.baseline import NoHistory, unpack_baseline
from tests.waiting import eventually

IDS = 10
TASKS = ("plain", "recorded")
SHARDS = 6
LEASE_SECONDS = 3.0


class Fleet:
    """Processes of both releases on one Redis."""

    def __init__(self, directory: Path, url: str, baseline: Path) -> None:
        self.directory = directory
        self.ledger = directory / "ledger"
        self._site = {"baseline": [str(baseline)], "head": []}
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

    def wait_for_shards(self) -> None:
        """Wait until all shards are open: each keeps the format of the release that opens it."""
        with redis.Redis.from_url(self._env["UPGRADE_URL"].replace("redis+socket", "unix")) as client:
            eventually(lambda: len(list(client.scan_iter("lowkiq:*:meta", 1000))) == len(TASKS) * SHARDS)

    def wait_for_runs_of(self, process: subprocess.Popen[str]) -> None:
        eventually(lambda: any(run["pid"] == process.pid for run in self.lines("run")))

    def log(self, release: str) -> str:
        return "".join(path.read_text() for path in self.directory.glob(f"*-{release}.log"))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return unpack_baseline(tmp_path_factory.mktemp("baseline"))
    except NoHistory as reason:
        pytest.skip(f"the checkout has no baseline commit: {reason}")


@pytest.fixture
def fleet(tmp_path, settings, baseline):
    found = Fleet(tmp_path, settings["broker_url"], baseline)
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
    nodes = [fleet.worker("baseline") for _ in range(2)]
    fleet.wait_for_shards()
    callers = [fleet.caller(release) for release in ("baseline", "head")]
    for node in nodes:
        fleet.wait_for_runs_of(node)
    for release in ("head", "baseline", "head"):
        kill_and_replace(fleet, nodes, release)
    for caller in callers:
        caller.communicate("stop\n", timeout=30)
    counts = {line["prefix"]: line["count"] for line in fleet.lines("called")}
    assert counts.keys() == {"baseline", "head"}
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


@pytest.mark.full
def test_the_baseline_leaves_a_queue_alone_that_this_checkout_begins(fleet):
    head = fleet.worker("head")
    fleet.wait_for_shards()
    caller = fleet.caller("head")
    fleet.wait_for_runs_of(head)
    baseline = fleet.worker("baseline")
    refusal = "stored in format 2, this version reads 1"
    eventually(lambda: refusal in fleet.log("baseline"))
    caller.communicate("stop\n", timeout=30)
    (count,) = (line["count"] for line in fleet.lines("called"))
    eventually(lambda: sum(len(run["numbers"]) for run in fleet.lines("run")) >= len(TASKS) * count, 60)
    assert {run["pid"] for run in fleet.lines("run")} == {head.pid}
    assert baseline.poll() is None


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
    for release in ("baseline", "head"):
        assert fleet.start(release, "-c", code).wait(30) == 0
        found[release] = Path((fleet.directory / f"{len(found)}-{release}.log").read_text().strip())
    assert found["head"].parents[1] == Path(__file__).parents[2]
    assert found["baseline"].parts != found["head"].parts
