"""One mutant: the tests of its lines, in a copy of the checkout that has the change."""

from __future__ import annotations

import compileall
import contextlib
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutants.changes import Change
from tests.mutants.covering import PYTEST, Covering

#: What the tests need of a checkout.
COPIED = (
    "celery_lowkiq",
    "tests",
    "examples",
    "benchmarks",
    "docs",
    "contrib",
    "pyproject.toml",
    "setup.cfg",
)
#: A test that hangs kills its mutant: seconds for one test, for all of them, and a factor of what they take.
ONE, ALL, SLOWER = 30.0, 120.0, 5.0
#: pytest's status when a test failed, and when its collection did.
KILLED = (1, 2, 3, 4)
PASSED = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    killed: bool
    #: The test that noticed it, or why none did.
    why: str


def copy_of(root: Path, target: Path) -> Path:
    """A checkout whose modules may be changed."""
    target.mkdir()
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
            # By hash: a mutant may have the size and the second of the module that it replaces.
            compileall.compile_dir(target / name, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        else:
            shutil.copy(source, target)
    return target


def attempt(change: Change, root: Path, copy: Path, covering: Covering) -> Outcome:
    """Whether a test notices the change."""
    name = str(change.path.relative_to(root))
    tests = covering.tests(name, change.line, change.last_line)
    if not tests:
        return Outcome(False, "no test reaches it")
    target, source = copy / name, change.path.read_bytes()
    target.write_bytes(change.apply(source))
    try:
        return _run(copy, tests, [covering.seconds[test] for test in tests])
    finally:
        target.write_bytes(source)


def _run(copy: Path, tests: list[str], seconds: list[float]) -> Outcome:
    limit = ALL + SLOWER * sum(seconds)
    chosen = copy / "tests.txt"
    chosen.write_text("\n".join(tests))
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    limits = ("--timeout", f"{ONE + SLOWER * max(seconds):.0f}")
    command = [*PYTEST, "-x", "--tb=no", "-p", "no:cacheprovider", *limits]
    command += ["--lowkiq-tests", str(chosen), *files]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    pytest = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = pytest.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return Outcome(True, f"no answer in {limit:.0f} s")
    finally:
        # Workers and servers that it left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pytest.pid, signal.SIGKILL)
        pytest.wait()
    if pytest.returncode in KILLED:
        return Outcome(True, " ".join(re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)[:1]))
    assert pytest.returncode == PASSED, printed
    return Outcome(False, f"{len(tests)} tests pass")
