"""Which tests reach a line: a run of the tests under coverage, with a context for each test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from coverage import CoverageData

#: Tests within one process, where coverage sees which test reaches a line.
TESTS = ("tests/unit", "tests/store", "tests/model", "tests/simulation")
SETTINGS = """
[run]
source = celery_lowkiq
relative_files = true
data_file = {data}
dynamic_context = test_function
concurrency = thread
core = ctrace
"""

#: pytest's status.
PASSED, FAILED = 0, 1

Reached = dict[str, dict[int, set[str]]]


def measure(root: Path, data: Path) -> None:
    """Run the tests once and keep in ``data`` what they reach, and beside it which ones failed. Raises
    CalledProcessError when they did not run.
    """
    settings = data.with_suffix(".ini")
    settings.write_text(SETTINGS.format(data=data))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q"]
    cache = data.with_suffix(".cache")
    command += ["-o", f"cache_dir={cache}", "-m", "not full and not chaos", *TESTS]
    done = subprocess.run(command, cwd=root)
    if done.returncode not in (PASSED, FAILED):
        data.unlink(missing_ok=True)
        done.check_returncode()
    last = cache / "v" / "cache" / "lastfailed"
    data.with_suffix(".failed").write_text(last.read_text() if last.exists() else "{}")


def reached(root: Path, data: Path) -> Reached:
    """By file and line: the ids of the tests that reach it; none when only an import does. A test that failed
    without a mutant kills none.
    """
    found = CoverageData(str(data))
    found.read()
    failed = {name.partition("[")[0] for name in json.loads(data.with_suffix(".failed").read_text())}
    names: dict[str, str | None] = {}
    lines: Reached = defaultdict(dict)
    for file in found.measured_files():
        for line, contexts in found.contexts_by_lineno(file).items():
            ids = {names.setdefault(context, test_id(root, context)) for context in contexts if context}
            lines[file][line] = {one for one in ids if one} - failed
    return lines


def sizes(lines: Reached) -> Counter[str]:
    """How many lines each test reaches."""
    found: Counter[str] = Counter()
    for of_file in lines.values():
        for tests in of_file.values():
            found.update(tests)
    return found


def test_id(root: Path, context: str) -> str | None:
    """``tests.unit.test_x.TestY.test_z`` as pytest names it; None when there is no such file."""
    parts = context.split(".")
    for count in range(len(parts) - 1, 0, -1):
        path = root.joinpath(*parts[:count]).with_suffix(".py")
        if path.is_file():
            return "::".join([str(path.relative_to(root)), *parts[count:]])
    return None
