"""A second chance of long sessions: given once, and never for a fault of the product."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_chance import ROOT, Failure, refusal

NAME = "tests/worker/test_stopping.py::test_a_stop"


def test_one_failed_test_may_run_again():
    assert refusal([Failure(f"{NAME}[a]", "E   assert 1 == 2")], (), ()) is None


@pytest.mark.parametrize(
    "line",
    [
        "E   AssertionError: 3 payloads lost",
        "E   assert settled_twice(1) == 0",
        "E   inversions: 2",
        "> assert not overlaps(journal)",
        "E   Failed: Timeout (>600.0s) from pytest-timeout.",
        "E   AssertionError: the worker hung",
        "worker 'gw1' crashed while running 'tests/test_x.py::test_x'",
    ],
)
def test_a_fault_of_the_product_is_not_excused(line: str):
    assert "no repetition excuses" in str(refusal([Failure(NAME, f"a text\n{line}\n")], (), ()))


def test_words_of_the_test_itself_are_no_fault():
    source = (
        "    def test_a_lost_job_is_named():  # never hangs\n>       assert shown == 1\nE       assert 0 == 1"
    )
    assert refusal([Failure(NAME, source)], (), ()) is None


def test_two_failed_tests_have_no_second_chance():
    assert (
        refusal([Failure(NAME, "E   a"), Failure("tests/b.py::test_b", "E   b")], (), ()) == "2 tests failed"
    )


def test_a_run_gives_one_second_chance():
    assert "had the second chance" in str(refusal([Failure(NAME, "E   a")], (), ["tests/b.py::test_b"]))


def test_a_known_test_has_none_with_any_parameter():
    assert "tests/flaky.toml" in str(refusal([Failure(f"{NAME}[b]", "E   a")], {NAME}, ()))


def tried(folder: Path, fails: int) -> tuple[subprocess.CompletedProcess[str], str]:
    """A session whose only test fails the first ``fails`` times; its output, and the log of excused tests."""
    test = folder / "test_once.py"
    test.write_text(
        "import pathlib\n"
        "def test_it():\n"
        "    runs = pathlib.Path(__file__).with_name('runs')\n"
        "    count = len(runs.read_text()) if runs.exists() else 0\n"
        "    runs.write_text('x' * (count + 1))\n"
        "    print('seed 41')\n"
        f"    assert count >= {fails}\n"
    )
    log = folder / "flaky.log"
    words = [sys.executable, "-m", "tests.second_chance", "-q", "-p", "no:cacheprovider"]
    words += ["--rootdir", str(folder), "-c", os.devnull, "--", str(test)]
    env = {**os.environ, "LOWKIQ_FLAKY_LOG": str(log), "PYTHONPATH": str(ROOT)}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done, log.read_text() if log.exists() else ""


def test_a_test_that_passes_twice_is_excused_and_its_log_kept(tmp_path: Path):
    done, log = tried(tmp_path, fails=1)
    assert done.returncode == 0, done.stdout
    assert "FLAKY test_once.py::test_it" in done.stdout
    assert log.startswith("FLAKY test_once.py::test_it\n")
    assert "\nseed 41\n" in log
    assert (tmp_path / "runs").read_text() == "xxx"


def test_a_test_that_fails_again_fails_the_session(tmp_path: Path):
    done, log = tried(tmp_path, fails=2)
    assert done.returncode == 1, done.stdout
    assert not log
