"""Runs Celery's integration tests with plain and with ordered tasks, and prints the tests that differ.

``python -m tests.celery_suite [--way NAME ...] [arguments of pytest]``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import celery

from celery_lowkiq.embedded import EmbeddedServer
from tests.ports import free_port

FILES = ("t/integration/test_canvas.py", "t/integration/test_tasks.py")
PLUGINS = ("pytest_timeout", "celery.contrib.pytest", "tests.celery_suite.plugin")
OPTIONS = (
    *("-q", "--tb=short", "--timeout=120", "-c", os.devnull, "-o", "python_classes=test_*"),
    *(word for plugin in PLUGINS for word in ("-p", plugin)),
)
HERE = Path(__file__).parents[2]
#: Names the tests that differ, each with its reason.
KNOWN = HERE / "docs" / "celery-features.md"


class Way(NamedTuple):
    """A way to run the tests."""

    pool: str
    ids: str = ""
    run_in: str = ""
    #: Whether the worker is a process of its own; else tests can look at its state.
    in_process: bool = False

    @property
    def plain(self) -> Way:
        """The same with plain tasks."""
        return Way(self.pool, in_process=self.in_process)


WAYS = {
    "threads": Way("threads", "own"),
    "threads-few-ids": Way("threads", "few"),
    "prefork": Way("prefork", "own", in_process=True),
    "process": Way("threads", "own", "process", in_process=True),
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


def outcomes(celery_source: Path, way: Way, words: list[str]) -> dict[str, str]:
    """Run the tests in one way. Returns the outcome of each."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(port=int(port)):
        report = Path(folder) / "report.json"
        url = f"redis://127.0.0.1:{port}/0"
        env = {
            **os.environ,
            "TEST_BROKER": url,
            "TEST_BACKEND": url,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": port,
            "LOWKIQ_SUITE_POOL": way.pool,
            "LOWKIQ_SUITE_IDS": way.ids,
            "LOWKIQ_SUITE_RUN_IN": way.run_in,
            "LOWKIQ_SUITE_PROCESS": "1" if way.in_process else "",
            "LOWKIQ_SUITE_REPORT": str(report),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(celery_source), str(HERE)]),
        }
        options = [f"--rootdir={celery_source}", *OPTIONS]
        command = [sys.executable, "-m", "pytest", *options, *(words or FILES)]
        subprocess.run(command, cwd=celery_source, env=env, check=False)
        found: dict[str, str] = json.loads(report.read_text())
        return found


def compare(name: str, plain: dict[str, str], ordered: dict[str, str]) -> list[str]:
    """Print the tests that pass with plain tasks only. Returns those that the docs do not name."""
    compared = [test for test, outcome in plain.items() if outcome == "passed"]
    differ = [test for test in compared if ordered.get(test) != "passed"]
    explained = KNOWN.read_text()
    new = [test for test in differ if test.partition("[")[0].rpartition("::")[2] not in explained]
    print(f"\n{name}: {len(differ)} of {len(compared)} tests differ")
    for test in differ:
        print(f"  {test}{' (not in the docs)' if test in new else ''}")
    return new


def main() -> int:
    """Compare each way with plain tasks. Returns 1 when a test differs that the docs do not name."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--sources", type=Path, default=Path(tempfile.gettempdir()))
    given, words = parser.parse_known_args()
    code = source(given.sources)
    plain: dict[Way, dict[str, str]] = {}
    new: list[str] = []
    for name in given.way or WAYS:
        way, began = WAYS[name], time.monotonic()
        if way.plain not in plain:
            plain[way.plain] = outcomes(code, way.plain, words)
        new += compare(name, plain[way.plain], outcomes(code, way, words))
        print(f"  in {time.monotonic() - began:.0f} s")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
