"""Which tests reach a line, and how long each takes: one run of the tests under coverage."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from coverage import CoverageData

#: Tests that run the package within their process, where coverage sees which test reaches a line.
TESTS = ("unit", "store", "model", "simulation", "web", "cli", "features")
#: Without the long ones, and on one server; without plugins that take a second to import.
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.plugin"),
    *("-m", "not full and not chaos and not browser"),
    *("-p", "no:schemathesis", "-p", "no:docker_tools", "-p", "no:celery", "-p", "no:xdist"),
)
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
    """The tests that can notice a change of a line."""

    def __init__(self, root: Path) -> None:
        self.seconds: dict[str, float] = {}
        self._root = root
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: Lines that run when a module of the package or of the tests is imported.
        self._imported: dict[str, set[int]] = defaultdict(set)

    def add(self, data: Path) -> None:
        """Read what :func:`measure` wrote. A test that failed without a mutant kills none."""
        passed = json.loads(_seconds_of(data).read_text())
        self.seconds |= passed
        found = CoverageData(str(data))
        found.read()
        for file in found.measured_files():
            for line, contexts in found.contexts_by_lineno(file).items():
                self._lines[file][line] |= passed.keys() & contexts
                if "" in contexts:
                    self._imported[file].add(line)

    def tests(self, file: str, first: int, last: int) -> list[str]:
        """Those that reach these lines, quickest first. Of lines that an import runs, or that run in other
        processes, also those that reach the module, and those in files that name it.
        """
        lines = self._lines.get(file, {})
        changed = range(first, last + 1)
        found = self._quickest(set().union(*(lines.get(line, set()) for line in changed)))
        if not found or not self._imported[file].isdisjoint(changed):
            found += self._quickest(set().union(*lines.values()))
            found += self._quickest(self._naming(file))
        return list(dict.fromkeys(found))

    def _quickest(self, tests: set[str]) -> list[str]:
        return sorted(tests, key=lambda test: self.seconds[test])

    def _naming(self, file: str) -> set[str]:
        package, _, module = file.removesuffix(".py").replace("/", ".").rpartition(".")
        name = re.compile(rf"{package}(\.| import .*\b){module}\b")
        paths = {test.partition("::")[0] for test in self.seconds}
        naming = {path for path in paths if name.search((self._root / path).read_text())}
        return {test for test in self.seconds if test.partition("::")[0] in naming}


def measure(root: Path, folder: str, data: Path) -> None:
    """Run the tests of a folder once. Raises CalledProcessError when they did not run."""
    settings = data.with_suffix(".ini")
    settings.write_text(SETTINGS.format(data=data))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", *PYTEST[1:]]
    command += ["-p", "no:cacheprovider", "--lowkiq-seconds", str(_seconds_of(data)), f"tests/{folder}"]
    done = subprocess.run(command, cwd=root)
    if done.returncode not in (PASSED, FAILED):
        data.unlink(missing_ok=True)
        done.check_returncode()


def _seconds_of(data: Path) -> Path:
    return data.with_suffix(".json")
