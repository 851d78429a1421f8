"""A user's project and tests, run by pytest in a process of their own: some tools change Celery for good."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
        pytester.runpytest_subprocess(*options, timeout=120).assert_outcomes(passed=count)

    return run
