"""docs/invariants.md names files, tests and planted faults that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_lowkiq.store.scripts.script import lua_files
from tests.simulation.test_simulation import OFTEN, PLAIN, RARE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_lowkiq"
TEXT = (ROOT / "docs" / "invariants.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT)))
FILES = sorted(set(re.findall(r"`((?:rules|store|worker|integration)/[\w/]+\.py|(?:lib/)?\w+\.lua)`", TEXT)))
FAULTS = sorted(set(re.findall(r'"([^"]+)"', "".join(re.findall(r"Simulator \(([^)]+)\)", TEXT)))))


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_exist(name):
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    assert not test or re.search(rf"def {test}\(", (ROOT / path).read_text())


@pytest.mark.parametrize("name", FILES)
def test_what_keeps_them_exists(name):
    assert (PACKAGE / name).exists() or name in lua_files()


def test_the_planted_faults_exist():
    assert len(FAULTS) > 5
    assert set(FAULTS) <= PLAIN.keys() | OFTEN.keys() | RARE.keys()
