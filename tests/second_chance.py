"""A second chance for one test of a long session: ``python -m tests.second_chance -m full -- tests/store``.

Runs pytest with all these words. A single test that failed runs twice more, with the words before ``--``,
beside computing processes in place of its neighbours. If it passes both times, its name and log go to the
file that ``LOWKIQ_FLAKY_LOG`` names, and the exit status is 0. Never a second chance: for a test that saw
a payload lost, doubled or inverted, runs overlap, or something hang; for a second test while that file
has one; for a test that ``tests/flaky.toml`` names.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.busy import computing

if TYPE_CHECKING:
    import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "tests" / "flaky.toml"
RERUNS = 2
#: Marks of failures that no repetition excuses, in the lines where pytest shows what failed.
GRAVE = re.compile(
    r"(?i)lost|doubled|twice|inver(ted|sion)|overlap|out of order|\b(hangs?|hung)\b"
    r"|timeout \(>|timeoutexpired|crashed"
)
#: Characters of a failure's text that are kept, from its end.
KEPT = 30_000


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failed test: its node id, and pytest's text with the captured log."""

    name: str
    text: str

    @property
    def function(self) -> str:
        """The node id without parameters."""
        return self.name.partition("[")[0]

    def grave_line(self) -> str | None:
        """The first line of what failed that tells of a fault of the product."""
        lines = [line for line in self.text.splitlines() if line.startswith(("E ", ">", "worker '"))]
        return next((line for line in lines if GRAVE.search(line)), None)


def refusal(failures: Sequence[Failure], known: Collection[str], earlier: Collection[str]) -> str | None:
    """The reason why no test of these may run again; none if the only one may.

    ``known``: functions of ``tests/flaky.toml``. ``earlier``: names that an earlier session excused.
    """
    if len(failures) != 1:
        return f"{len(failures)} tests failed"
    (failure,) = failures
    if earlier:
        return f"{', '.join(earlier)} had the second chance of this run"
    if failure.function in known:
        return f"{failure.function} is in tests/flaky.toml"
    if line := failure.grave_line():
        return f"no repetition excuses this failure: {line.strip()}"
    return None


def run(words: Sequence[str]) -> tuple[int, list[Failure], set[str]]:
    """Run pytest; return its exit status, each failed test, and the names of tests that passed."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes"
        outcomes.touch()
        env = {**os.environ, "LOWKIQ_TEST_OUTCOMES": str(outcomes)}
        pytest_words = [sys.executable, "-m", "pytest", "-p", "tests.second_chance", *words]
        status = subprocess.run(pytest_words, env=env, check=False).returncode
        reports: list[dict[str, str]] = [json.loads(line) for line in outcomes.read_text().splitlines()]
    failed: dict[str, str] = {}
    for report in reports:
        if report["outcome"] == "failed":
            failed[report["name"]] = failed.get(report["name"], "") + report["text"]
    passed = {report["name"] for report in reports if report["outcome"] == "passed"} - failed.keys()
    return status, [Failure(name, text) for name, text in failed.items()], passed


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how a test ended. With xdist, the process that distributes the tests gets all reports."""
    if "PYTEST_XDIST_WORKER" in os.environ or not (
        report.failed or (report.passed and report.when == "call")
    ):
        return
    sections = [text for _, text in report.sections] if report.failed else []
    text = "\n".join([report.longreprtext, *sections]) if report.failed else ""
    outcome = {"name": report.nodeid, "outcome": report.outcome, "text": text}
    with Path(os.environ["LOWKIQ_TEST_OUTCOMES"]).open("a") as file:
        file.write(json.dumps(outcome) + "\n")


def excused(log: Path) -> list[str]:
    """Names of tests that the log already excuses."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.removeprefix("FLAKY ") for line in lines if line.startswith("FLAKY ")]


def entry(failure: Failure) -> str:
    """A test in the log: its name, the lines with its seed, and its text."""
    lines = (line.strip() for line in failure.text.splitlines())
    seeds = [line for line in lines if re.search(r"(?i)\bseed|reproduce_failure", line)]
    return "\n".join([f"FLAKY {failure.name}", *seeds[:10], failure.text[-KEPT:], ""])


def main(words: Sequence[str]) -> int:
    """Exit status of pytest, or 0 for one test that passes when it runs again."""
    again = list(words[: words.index("--")] if "--" in words else words)
    status, failures, _ = run([word for word in words if word != "--"])
    if status != 1 or not failures:
        return status
    log = Path(os.environ.get("LOWKIQ_FLAKY_LOG", ROOT / ".ci" / "flaky.log"))
    if reason := refusal(failures, tomllib.loads(KNOWN.read_text()).keys(), excused(log)):
        print(f"No second chance: {reason}", flush=True)
        return status
    (failure,) = failures
    neighbours = int(again[again.index("-n") + 1]) - 1 if "-n" in again else 0
    for _ in range(RERUNS):
        with computing(neighbours):
            rerun: tuple[int, Any, set[str]] = run([*again, failure.name])
        if rerun[0] != 0 or failure.name not in rerun[2]:
            return status
    with log.open("a") as file:
        file.write(entry(failure))
    print(f"FLAKY {failure.name}: it failed once and passed {RERUNS} times; see {log}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
