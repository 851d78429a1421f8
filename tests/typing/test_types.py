"""What type checkers find in the code of users: each planted error, and nothing in right uses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MYPY = ("mypy", "--strict", "--no-error-summary", "--cache-dir", os.devnull, "--follow-imports", "silent")


def mypy() -> set[tuple[str, int]]:
    """Files and lines with an error."""
    command = [sys.executable, "-m", *MYPY, "--config-file", "", "right.py", "wrong.py"]
    environ = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=HERE, env=environ, capture_output=True, text=True, timeout=300)
    found = re.findall(r"^(\w+\.py):(\d+): error:", done.stdout, re.MULTILINE)
    assert done.returncode == 1, done.stdout + done.stderr
    return {(name, int(line)) for name, line in found}


def pyright() -> set[tuple[str, int]]:
    """Files and lines with an error."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "right.py", "wrong.py"], cwd=HERE, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1)
        for found in json.loads(done.stdout)["generalDiagnostics"]
        if found["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_type_checkers_find_each_planted_error_and_no_other(checker):
    pytest.importorskip(checker.__name__)
    lines = (HERE / "wrong.py").read_text().splitlines()
    planted = {("wrong.py", number) for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert len(planted) == 19
    assert checker() == planted
