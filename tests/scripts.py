"""Python scripts in processes of their own, which find the package imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT, Process


def run_script(code: str, directory: Path, seconds: float = 60.0, **env: str) -> tuple[int, str, str]:
    """Run it with the variables, in addition to those of this process: its status, and what it wrote.

    The directory is for its output. A script that does not end within the time is an error.
    """
    out, err = directory / "out", directory / "err"
    words, variables = [sys.executable, "-c", code], {**os.environ, **env}
    with out.open("wb") as to, err.open("wb") as errors:
        process = Process(words, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=to, stderr=errors)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise TimeoutError(f"the script does not end within {seconds} s: {err.read_text()}") from None
    return status, out.read_text(), err.read_text()
