"""Runs Celery's integration tests with plain and with ordered tasks, and prints the tests that differ.

``python -m tests.celery_suite [--way NAME ...] [--reports FOLDER] [arguments of pytest]``
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import celery

from celery_lowkiq.embedded import EmbeddedServer

FILES = ("t/integration/test_canvas.py", "t/integration/test_tasks.py")
PLUGINS = ("pytest_timeout", "celery.contrib.pytest", "tests.celery_suite.plugin")
OPTIONS = (
    # pytest's own tracebacks parse the source, which fails within a deep recursion on Python 3.11.
    *("-q", "--tb=native", "-c", os.devnull, "-o", "python_classes=test_*"),
    *(word for plugin in PLUGINS for word in ("-p", plugin)),
)
HERE = Path(__file__).parents[2]
#: Names the tests that differ, each with its reason.
KNOWN = HERE / "docs" / "celery-features.md"
#: The tests mostly wait, so this many processes share them, each with a server and a worker of its own.
PARTS = 6
#: A test that fails with ordered tasks only is run again this often, and passes if it does so each time.
AGAIN = 2


class Way(NamedTuple):
    """A way to run the tests."""

    pool: str
    #: Which id a call has; empty for plain tasks.
    ids: str = ""
    run_in: str = ""

    @property
    def own_process(self) -> bool:
        """Whether the worker is a process of its own; else tests can look at its state."""
        return self.pool == "prefork" or bool(self.run_in)


PLAIN = {"plain-threads": Way("threads"), "plain-prefork": Way("prefork")}
WAYS = {
    "threads": Way("threads", "own"),
    "threads-few-ids": Way("threads", "few"),
    "prefork": Way("prefork", "own"),
    "process": Way("threads", "own", "process"),
}


def source(folder: Path) -> Path:
    """Celery's source distribution of the installed version, in the folder."""
    name = f"celery-{celery.__version__}"
    if not (folder / name).exists():
        words = ["--no-deps", "--no-binary", "celery", "--dest", str(folder), name.replace("-", "==")]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *words], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


class Suite(NamedTuple):
    """Celery's tests, and where their outcomes are written."""

    #: The folder of Celery's source distribution.
    code: Path
    #: The folder of the outcomes and logs: a test that has an outcome there is not run.
    reports: Path
    #: Arguments of pytest.
    words: Sequence[str] = FILES

    def run_part(self, way: Way, name: str, words: Sequence[str], part: str = "") -> dict[str, str]:
        """Run tests in one way, or a part of them. Returns the outcome of each."""
        report = self.reports / f"{name}.json"
        with EmbeddedServer(port=0) as server, report.with_suffix(".log").open("a+") as log:
            url = f"redis://127.0.0.1:{server.port}/0"
            env = {
                **os.environ,
                "TEST_BROKER": url,
                "TEST_BACKEND": url,
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": str(server.port),
                "LOWKIQ_SUITE_POOL": way.pool,
                "LOWKIQ_SUITE_IDS": way.ids,
                "LOWKIQ_SUITE_RUN_IN": way.run_in,
                "LOWKIQ_SUITE_PROCESS": "1" if way.own_process else "",
                "LOWKIQ_SUITE_PART": part,
                "LOWKIQ_SUITE_REPORT": str(report),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": os.pathsep.join([str(self.code), str(HERE)]),
            }
            command = [sys.executable, "-m", "pytest", f"--rootdir={self.code}", *OPTIONS, *words]
            subprocess.run(command, cwd=self.code, env=env, check=False, stdout=log, stderr=log)
            log.seek(0)
            if not report.exists():
                raise SystemExit(f"pytest did not start:\n{log.read()}")
        found: dict[str, str] = json.loads(report.read_text())
        return found

    def run(self, name: str, words: Sequence[str], turn: int, parts: int = PARTS) -> dict[str, str]:
        """Run tests in the way of this name, in parts. Returns the outcome of each."""
        way, began = {**PLAIN, **WAYS}[name], time.monotonic()

        def run(part: int) -> dict[str, str]:
            return self.run_part(way, f"{name}-{turn}-{part}-of-{parts}", words, f"{part}/{parts}")

        with ThreadPoolExecutor(parts) as pool:
            found = {test: outcome for part in pool.map(run, range(parts)) for test, outcome in part.items()}
        counts = sorted(Counter(found.values()).items())
        print(f"{name}: {dict(counts)} in {time.monotonic() - began:.0f} s", flush=True)
        return found

    def passing(self, name: str, among: Collection[str] = ()) -> set[str]:
        """Run all tests. Returns the tests that pass, at once or when they are run again.

        With ``among``, the tests that pass with plain tasks, only these are run again, and must pass twice.
        """
        found = self.run(name, self.words, 0)
        failed = [test for test in among or found if found.get(test) != "passed"]
        turns = 0 if not failed else AGAIN if among else 1
        again = [self.run(name, failed, 1 + turn, min(PARTS, len(failed))) for turn in range(turns)]
        flaky = {test for test in failed if all(each.get(test) == "passed" for each in again)}
        for test in sorted(flaky):
            print(f"  {test} passed when run again")
        return flaky.union(test for test, outcome in found.items() if outcome == "passed")

    def compare(self, name: str, plain: set[str]) -> list[str]:
        """Print the tests that pass with plain tasks only. Returns those that the docs do not name."""
        differ = sorted(plain - self.passing(name, plain))
        known = explained(name)
        new = [test for test in differ if test.partition("[")[0].rpartition("::")[2] not in known]
        print(f"{name}: {len(differ)} of {len(plain)} tests differ")
        for test in differ:
            print(f"  {test} {'is not' if test in new else 'is'} in the docs", flush=True)
        return new


def explained(way: str) -> set[str]:
    """The names of the tests that the docs say differ in this way."""
    section = KNOWN.read_text().partition("## Celery's own tests")[2]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `test_")]
    named = [tests for _, tests, ways, *_ in rows if f"`{way}`" in ways or ways.strip() == "all"]
    return set(re.findall(r"`(\w+)`", " ".join(named)))


@contextmanager
def folder(given: Path | None) -> Iterator[Path]:
    """The given folder, made if need be, or a temporary one."""
    if given:
        given.mkdir(parents=True, exist_ok=True)
        yield given.absolute()
    else:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)


def main() -> int:
    """Compare each way with plain tasks. Returns 1 when a test differs that the docs do not name."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--sources", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument(
        "--reports", type=Path, help="folder of outcomes and logs: tests that have one are not run"
    )
    given, words = parser.parse_known_args()
    new: list[str] = []
    with folder(given.reports) as reports:
        suite = Suite(source(given.sources), reports, words or FILES)
        ways = given.way or list(WAYS)
        beside = {way: "plain-prefork" if WAYS[way].own_process else "plain-threads" for way in ways}
        plain = {name: suite.passing(name) for name in sorted(set(beside.values()))}
        for way in ways:
            new += suite.compare(way, plain[beside[way]])
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
