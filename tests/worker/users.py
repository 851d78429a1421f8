"""A user's project and tests, run by pytest in a process of their own: some tools change Celery for good."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from subprocess import DEVNULL, PIPE, STDOUT

import pytest

from tests.processes import ROOT, Process


def users_pytest(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, **modules: str
) -> Callable[[str, int], None]:
    """Runs tests of that user, all of which pass; ``modules`` are the project."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(pytester.path)]))
    # Other plugins that are installed for our tests take half a second to import.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    if modules:
        pytester.makepyfile(**modules)

    def run(tests: str, count: int) -> None:
        pytester.makepyfile(test_it=tests)
        options = ("-p", "celery_lowkiq.testing", "-p", "no:cacheprovider", "-q", "test_it.py")
        words = [sys.executable, "-m", "pytest", "--basetemp=basetemp", *options]
        process = Process(words, cwd=pytester.path, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True)
        try:
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        print(said)
        pytest.RunResult(process.returncode, said.splitlines(), [], 0.0).assert_outcomes(passed=count)

    return run
