"""``python -m tests.mutants``: exit status 0 when at least 90 % of the mutants are killed."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.changes import PACKAGE, ROOT, Change, changes_of
from tests.mutants.covering import TESTS, Covering, measure
from tests.mutants.trying import Outcome, attempt, copy_of

FOLDERS = ("rules", "store", "worker")
ENOUGH = 0.9


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    paths = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*.py"))]
    changes = [change for path in paths for change in changes_of(path)]
    chosen = random.Random(given.seed).sample(changes, min(given.count, len(changes)))
    others = [change for change in chosen if not change.is_equivalent]
    with tempfile.TemporaryDirectory(prefix="lowkiq-mutants-") as name:
        copies = [copy_of(ROOT, Path(name) / str(number)) for number in range(given.parallel)]
        data = (given.data or Path(name)).absolute()
        results = Results(data / "results.jsonl")
        _try_all([change for change in others if not results.has(change, given.again)], copies, data, results)
    survivors = [change for change in others if not results.of(change).killed]
    for change in survivors:
        print(f"survived ({results.of(change).why}): {change}")
    count, killed = len(others), len(others) - len(survivors)
    print(f"{killed} of {count} mutants killed ({killed / count:.1%}); {len(chosen) - count} are equivalent")
    return 0 if killed >= ENOUGH * count else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="mutants (200)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--parallel", type=int, default=1, help="mutants at a time (1)")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of what tests reach and of the results: a later run goes on from there",
    )
    parser.add_argument("--again", action="store_true", help="try the survivors of an earlier run again")
    return parser


class Results:
    """A file with a line for each mutant that was tried."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._found: dict[str, Outcome] = {}
        for line in map(json.loads, lines):
            self._found[line["mutant"]] = Outcome(line["killed"], line["why"])

    def has(self, change: Change, killed_only: bool) -> bool:
        """Whether it was tried, with ``killed_only`` whether it was killed."""
        found = self._found.get(str(change))
        return found is not None and (found.killed or not killed_only)

    def of(self, change: Change) -> Outcome:
        """Raises KeyError when it was not tried."""
        return self._found[str(change)]

    def add(self, change: Change, outcome: Outcome, seconds: float) -> None:
        """Append it to the file."""
        self._found[str(change)] = outcome
        line = {"mutant": str(change), **vars(outcome), "seconds": round(seconds, 1)}
        with self._path.open("a") as file:
            print(json.dumps(line), file=file)


def _try_all(chosen: list[Change], copies: list[Path], data: Path, results: Results) -> None:
    covering = _covering(copies[0], data)
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(change: Change) -> None:
        copy = free.get()
        began_at = time.monotonic()
        try:
            outcome = attempt(change, ROOT, copy, covering)
        finally:
            free.put(copy)
        seconds = time.monotonic() - began_at
        results.add(change, outcome, seconds)
        print(f"{seconds:5.0f} s {'killed' if outcome.killed else outcome.why:16} {change}", flush=True)

    with ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(one, chosen))


def _covering(copy: Path, data: Path) -> Covering:
    data.mkdir(exist_ok=True)
    covering = Covering(ROOT)
    for folder in TESTS:
        path = data / folder
        written_at = max(file.stat().st_mtime for file in (ROOT / "tests" / folder).rglob("*.py"))
        if not path.exists() or path.stat().st_mtime < written_at:
            measure(copy, folder, path)
        covering.add(path)
    return covering


if __name__ == "__main__":
    sys.exit(main())
