"""The examples, as a newcomer runs them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from examples.replica.generate import generate
from tests.clusters import running_cluster
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
DEADLINE = 120  # seconds
OUR_BROKER = ("BROKER_URL", "CELERY_BROKER_URL", "QUICKSTART_BROKER")


class Run:
    """An example that runs, with all that it started in one process group."""

    def __init__(self, arguments: Sequence[str], folder: Path, log: Path) -> None:
        environ = {name: value for name, value in os.environ.items() if name not in OUR_BROKER}
        environ["PYTHONPATH"] = str(ROOT)  # where the package is not installed
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=environ,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def end(self) -> int:
        """Its exit status."""
        return self.process.wait(DEADLINE)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def worker(self) -> psutil.Process | None:
        """The Celery worker that it started."""
        children = psutil.Process(self.process.pid).children()
        return next((child for child in children if "celery" in child.cmdline()), None)

    def has_left_something(self) -> bool:
        """Whether something of its process group is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 0)
            return True
        return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


Starts = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starts]:
    runs: list[Run] = []

    def begin(*arguments: str, folder: Path = ROOT) -> Run:
        runs.append(Run(arguments, folder, tmp_path / f"run{len(runs)}"))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


def stream(folder: Path, events: int) -> str:
    """A file with the first events of a made-up project."""
    file = folder / "events.ndjson"
    file.write_text("".join(json.dumps(asdict(event)) + "\n" for event in generate(seed=1, events=events)))
    return str(file)


def test_the_quickstart_saves_the_changes_of_each_order_in_order(start: Starts, tmp_path: Path) -> None:
    run = start(str(ROOT / "examples" / "quickstart.py"), folder=tmp_path)
    assert run.end() == 0, run.err
    assert run.out.splitlines()[-4:] == [
        "saved at the end:",
        "  order 7: packed",
        "  order 42: shipped",
        "  order 99: cancelled",
    ]
    saved = re.findall(r"order (\d+): (\w+)", run.err)
    assert [status for order_id, status in saved if order_id == "42"] == [
        "new",
        "reserved",
        "paid",
        "shipped",
    ]


@pytest.mark.full
def test_an_import_is_watched_and_its_refused_rows_are_written_down(start: Starts, tmp_path: Path) -> None:
    run = start(str(ROOT / "examples" / "csv_import.py"), "--rows", "400", folder=tmp_path)
    found = eventually(lambda: re.search(r"watch it: (\S+)/tracker\?id=(\w+)", run.out), DEADLINE)
    with urllib.request.urlopen(f"{found[1]}/api/v1/trackers/{found[2]}") as answer:
        assert json.load(answer)["counts"]["total"] == 400
    assert run.end() == 0, run.err
    last = "392 products saved; 6 rows refused, 2 in error: see refused.csv"
    assert last in run.out.splitlines()
    refused = (tmp_path / "refused.csv").read_text().splitlines()
    assert len(refused) == 1 + 8
    assert "sku-50,failed,a price of -1 is not allowed" in refused
    assert "sku-200,error,ValueError: could not convert string to float: 'call us'" in refused


@pytest.mark.full
def test_the_replica_is_right_at_the_end(start: Starts, tmp_path: Path) -> None:
    run = start("-m", "examples.replica", "--events", stream(tmp_path, 400))
    assert run.end() == 0, run.err
    result = json.loads(run.out.splitlines()[-1])
    assert list(result) == ["events", "paths", "ordered", "celery"]
    assert list(result["ordered"]) == list(result["celery"]) == ["calls", "stale", "wrong", "seconds"]
    assert result["events"] == 400
    assert result["ordered"]["stale"] == result["ordered"]["wrong"] == 0
    assert result["paths"] <= result["ordered"]["calls"] < result["celery"]["calls"]
    assert result["celery"]["calls"] > 400, "some are delivered twice"
    assert result["celery"]["stale"] > 0, "without ordering it goes wrong"


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["redis+cluster", "valkey+cluster"])
def test_the_replica_runs_on_a_cluster(start: Starts, tmp_path: Path, scheme: str) -> None:
    with running_cluster() as cluster:
        url = cluster.url.replace("redis+cluster", scheme)
        run = start("-m", "examples.replica", "--events", stream(tmp_path, 200), "--redis", url)
        sizes: list[int] = [0, 0, 0]

        def on_all_masters() -> bool:
            """Whether each has had keys; the demo leaves none."""
            now = (int(cluster.ask(number, "DBSIZE")) for number in range(3))
            sizes[:] = map(max, zip(sizes, now, strict=True))
            return all(sizes)

        eventually(on_all_masters, DEADLINE)
        assert run.end() == 0, run.err
    result = json.loads(run.out.splitlines()[-1])
    assert result["events"] == 200
    assert result["ordered"]["stale"] == result["ordered"]["wrong"] == 0


@pytest.mark.full
def test_the_replica_of_a_repository_is_its_tree(start: Starts, tmp_path: Path) -> None:
    git = [
        "git",
        "-C",
        str(tmp_path),
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "-c",
        "commit.gpgsign=false",
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    (tmp_path / "odd\nname").write_text("1")
    for commands in (["init", "-q"], ["add", "."], ["commit", "-qm", "1"]):
        subprocess.run([*git, *commands], check=True, env=environ)
    for number in range(2, 20):
        (tmp_path / "file").write_text(str(number))
        subprocess.run([*git, "add", "file"], check=True, env=environ)
        subprocess.run([*git, "commit", "-qm", str(number)], check=True, env=environ)
    run = start("-m", "examples.replica", "--repo", str(tmp_path))
    assert run.end() == 0, run.err
    result = json.loads(run.out.splitlines()[-1])
    assert (result["events"], result["paths"], result["ordered"]["wrong"]) == (19, 2, 0)


@pytest.mark.full
def test_an_interrupted_replica_leaves_no_worker(start: Starts, tmp_path: Path) -> None:
    run = start("-m", "examples.replica", "--events", stream(tmp_path, 2000))
    eventually(lambda: "plain Celery: 0 of" in run.err, DEADLINE)
    run.process.send_signal(signal.SIGINT)
    # Python may end by the signal itself, as it does for a Ctrl-C that hits an exec; shells say 130 for both.
    assert run.end() in (130, -signal.SIGINT)
    assert run.err.splitlines()[-1] == "interrupted"
    assert not run.has_left_something()


#: Python drops an exception of a ``__del__``: that of a Ctrl-C there, too.
INTERRUPTED_IN_A_DEL = """
import signal, sys
from celery.result import AsyncResult
from examples.replica.__main__ import main

interrupts = iter([signal.SIGINT])
AsyncResult.__del__ = lambda result: [signal.raise_signal(number) for number in interrupts]
sys.exit(main(["--events", sys.argv[1]]))
"""


@pytest.mark.full
def test_a_replica_is_interrupted_where_python_drops_exceptions(start: Starts, tmp_path: Path) -> None:
    run = start("-c", INTERRUPTED_IN_A_DEL, stream(tmp_path, 400))
    assert run.end() in (130, -signal.SIGINT)
    assert "Exception ignored in" in run.err, "Python dropped it"
    assert run.err.splitlines()[-1] == "interrupted"
    assert not run.has_left_something()


@pytest.mark.full
def test_a_replica_whose_worker_dies_says_so(start: Starts, tmp_path: Path) -> None:
    run = start("-m", "examples.replica", "--events", stream(tmp_path, 2000))
    eventually(lambda: "plain Celery: 0 of" in run.err, DEADLINE)
    eventually(run.worker).kill()
    assert run.end() == 2
    assert "examples.replica.tasks.mirror_plain" in run.err, "the worker's log is shown"
    assert run.err.splitlines()[-1] == "replica: the worker ended by itself with status -9"


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--events", "missing.gz"], "replica: missing.gz cannot be read"),
        (["--repo", "missing"], "replica: missing cannot be read"),
        (["--redis", "redis://:secret@127.0.0.1:1/0"], "replica: "),
        (["--redis", "amqp://:secret@127.0.0.1"], "must begin with one of redis://"),
        (["--events", "a", "--repo", "b"], "not allowed with"),
    ],
)
def test_what_cannot_be_used_is_refused(start: Starts, arguments: list[str], complaint: str) -> None:
    run = start("-m", "examples.replica", *arguments)
    assert run.end() == 2
    assert complaint in run.err.splitlines()[-1]
    assert "Traceback" not in run.err
    assert "secret" not in run.err
