"""docs/invariants.md names tests and planted faults that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.planted_faults import AFTER_FAILOVERS, OFTEN, PLAIN, RARE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "invariants.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT)))
FAULTS = sorted(set(re.findall(r'"([^"]+)"', "".join(re.findall(r"Simulator \(([^)]+)\)", TEXT)))))


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_exist(name):
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    assert not test or re.search(rf"def {test}\(", (ROOT / path).read_text())


def test_the_planted_faults_exist():
    assert len(FAULTS) > 5
    assert set(FAULTS) <= {*PLAIN, *OFTEN, *AFTER_FAILOVERS, *RARE}
