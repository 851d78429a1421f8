"""Which tests reach a line: a run of the tests under coverage, with a context for each test."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
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

Reached = dict[str, dict[int, set[str]]]


def measure(root: Path, data: Path) -> None:
    """Run the tests once and keep what they reach in ``data``. Raises CalledProcessError when one fails."""
    settings = data.with_suffix(".ini")
    settings.write_text(SETTINGS.format(data=data))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-m", "not full and not chaos", *TESTS]
    try:
        subprocess.run(command, cwd=root, check=True)
    except subprocess.CalledProcessError:
        data.unlink(missing_ok=True)
        raise


def reached(root: Path, data: Path) -> Reached:
    """By file and line: the ids of the tests that reach it; none when only an import does."""
    found = CoverageData(str(data))
    found.read()
    names: dict[str, str | None] = {}
    lines: Reached = defaultdict(dict)
    for file in found.measured_files():
        for line, contexts in found.contexts_by_lineno(file).items():
            ids = {names.setdefault(context, test_id(root, context)) for context in contexts if context}
            lines[file][line] = {one for one in ids if one}
    return lines


def test_id(root: Path, context: str) -> str | None:
    """``tests.unit.test_x.TestY.test_z`` as pytest names it; None when there is no such file."""
    parts = context.split(".")
    for count in range(len(parts) - 1, 0, -1):
        path = root.joinpath(*parts[:count]).with_suffix(".py")
        if path.is_file():
            return "::".join([str(path.relative_to(root)), *parts[count:]])
    return None
