"""``python -m tests.mutants``: exit status 0 when at least 90 % of the mutants are killed."""

from __future__ import annotations

import argparse
import compileall
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue

from .changes import Change, changes_of
from .covering import TESTS, Reached, measure, reached, sizes

ROOT = Path(__file__).parents[2]
FOLDERS = ("rules", "store", "worker")
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
#: Seconds after which one test counts as hanging, which kills its mutant.
HANGS = "60"
#: Seconds for all tests of a mutant; one that takes longer counts as a survivor.
LONGEST = 900.0
ENOUGH = 0.9
#: Plugins that these tests do not use, and that take a second to import.
WITHOUT = ("-p", "no:schemathesis", "-p", "no:docker_tools", "-p", "no:celery", "-p", "no:xdist")
#: pytest's status when a test failed, and when its collection did.
KILLED = (1, 2, 3, 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    paths = [path for folder in FOLDERS for path in sorted((ROOT / "celery_lowkiq" / folder).rglob("*.py"))]
    changes = [change for path in paths for change in changes_of(path)]
    chosen = random.Random(given.seed).sample(changes, min(given.count, len(changes)))
    with tempfile.TemporaryDirectory(prefix="lowkiq-mutants-") as name:
        copies = [_copy(Path(name) / str(number)) for number in range(given.parallel)]
        data = (given.data or Path(name) / "reached").absolute()
        if not data.exists():
            measure(copies[0], data)
        lines = reached(ROOT, data)
        survivors = _try_all(chosen, copies, lines)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} mutants killed ({killed / len(chosen):.1%}), seed {given.seed}")
    for change, why in survivors:
        print(f"survived ({why}): {change}")
    return 0 if killed >= ENOUGH * len(chosen) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--parallel", type=int, default=2, help="mutants at a time (2)")
    parser.add_argument("--data", type=Path, help="where coverage is kept, or was by an earlier run")
    return parser


def _copy(target: Path) -> Path:
    target.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
            # By hash: a mutant may have the size and the second of the module that it replaces.
            compileall.compile_dir(target / name, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        else:
            shutil.copy(source, target)
    return target


def _try_all(chosen: list[Change], copies: list[Path], lines: Reached) -> list[tuple[Change, str]]:
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    size = sizes(lines)

    def survives(change: Change) -> str:
        copy = free.get()
        began_at = time.monotonic()
        try:
            why = _survives(change, copy, lines, size)
        finally:
            free.put(copy)
        print(f"{time.monotonic() - began_at:5.0f} s {why or 'killed':16} {change}", flush=True)
        return why

    with ThreadPoolExecutor(len(copies)) as pool:
        results = list(pool.map(survives, chosen))
    return [(change, why) for change, why in zip(chosen, results, strict=True) if why]


def _survives(change: Change, copy: Path, lines: Reached, size: Counter[str]) -> str:
    """Why no test notices the change; empty when one does."""
    name = str(change.path.relative_to(ROOT))
    of_file = lines.get(name, {})
    touched = [of_file[line] for line in range(change.line, change.last_line + 1) if line in of_file]
    if not touched:
        return "no test reaches it"
    # A test that reaches few lines is quick, and about the change rather than another.
    tests = sorted(set().union(*touched), key=lambda test: (size[test], test)) or list(TESTS)
    target, source = copy / name, change.path.read_bytes()
    target.write_bytes(change.apply(source))
    try:
        return "" if _fails(copy, tests) else f"{len(tests)} tests pass"
    except subprocess.TimeoutExpired:
        return f"no answer in {LONGEST:g} s"
    finally:
        target.write_bytes(source)


def _fails(copy: Path, tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", HANGS]
    command += [*WITHOUT, "-m", "not full and not chaos", *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LOWKIQ_TEST_OLDEST": "0"}
    done = subprocess.run(command, cwd=copy, env=environment, timeout=LONGEST, capture_output=True)
    return done.returncode in KILLED


if __name__ == "__main__":
    sys.exit(main())
