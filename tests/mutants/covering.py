"""Which tests reach a line, and how long each takes: one run of the tests under coverage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from coverage import CoverageData

#: Tests within one process, where coverage sees which test reaches a line.
TESTS = ("unit", "store", "model", "simulation", "web", "cli")
#: Without the long ones, and on one server; without plugins that take a second to import.
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.plugin"),
    *("-m", "not full and not chaos and not browser"),
    *("-p", "no:schemathesis", "-p", "no:docker_tools", "-p", "no:celery", "-p", "no:xdist"),
)
ENVIRONMENT = {**os.environ, "LOWKIQ_TEST_OLDEST": "0"}
SETTINGS = """
[run]
source = celery_lowkiq
relative_files = true
data_file = {data}
concurrency = thread
core = ctrace
"""

#: pytest's status.
PASSED, FAILED = 0, 1


class Covering:
    """The tests of a line, quickest first."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))

    def add(self, data: Path) -> None:
        """Read what :func:`measure` wrote. A test that failed without a mutant kills none."""
        passed = json.loads(_seconds_of(data).read_text())
        self.seconds |= passed
        found = CoverageData(str(data))
        found.read()
        for file in found.measured_files():
            for line, contexts in found.contexts_by_lineno(file).items():
                # The context of an import has no name.
                self._lines[file][line] |= passed.keys() & contexts

    def tests(self, file: str, first: int, last: int) -> list[str]:
        """Those that reach these lines; of a line that only an import runs, those of the module."""
        lines = self._lines.get(file, {})
        touched = [lines[line] for line in range(first, last + 1) if line in lines]
        found = set().union(*touched)
        if touched and not found:
            found = set().union(*lines.values())
        return sorted(found, key=lambda test: self.seconds[test])


def measure(root: Path, folder: str, data: Path) -> None:
    """Run the tests of a folder once. Raises CalledProcessError when they did not run."""
    settings = data.with_suffix(".ini")
    settings.write_text(SETTINGS.format(data=data))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", *PYTEST[1:]]
    command += ["-p", "no:cacheprovider", "--lowkiq-seconds", str(_seconds_of(data)), f"tests/{folder}"]
    done = subprocess.run(command, cwd=root, env=ENVIRONMENT)
    if done.returncode not in (PASSED, FAILED):
        data.unlink(missing_ok=True)
        done.check_returncode()


def _seconds_of(data: Path) -> Path:
    return data.with_suffix(".json")
