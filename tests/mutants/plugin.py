"""pytest's side: ``-p tests.mutants.plugin`` notes what each test reaches and how long it takes, or runs the
tests of a file in its order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

SECONDS: dict[str, float] = {}
FAILED: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options, each with a file."""
    parser.addoption(
        "--lowkiq-seconds", type=Path, help="where to write the seconds of each test that passes"
    )
    parser.addoption(
        "--lowkiq-tests", type=Path, help="ids of tests, one a line: these are run, in this order"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that were asked for."""
    path = config.getoption("--lowkiq-tests")
    if path is not None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in path.read_text().splitlines() if name in found]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines that run from here on are reached by this test, which includes its fixtures."""
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Sum up setup, call and teardown."""
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        FAILED.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the times."""
    path = session.config.getoption("--lowkiq-seconds")
    if path is not None:
        path.write_text(json.dumps({test: SECONDS[test] for test in SECONDS if test not in FAILED}))
