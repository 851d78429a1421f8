"""Seeded faults: a chaos run, or the store's own tests, find each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.chaos.mutants import MUTANTS, OF_HOLDS, OF_THE_STORE, VARIABLE
from tests.chaos.options import Options
from tests.chaos.run import run

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
#: Random faults may miss a mutant: each gets these seeds.
SEEDS = (1, 2, 3)
SECONDS = float(os.environ.get("LOWKIQ_CHAOS_MUTANT_SECONDS", "12"))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_run_finds_the_mutant(name, monkeypatch, tmp_path):
    mutant = MUTANTS[name]
    monkeypatch.setenv(VARIABLE, name)
    # Where failed runs leave their ledgers.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    began_at = time.monotonic()
    for seed in SEEDS:
        options = Options(
            seed,
            seconds=SECONDS,
            lease=mutant.lease,
            pause=0.4 * mutant.lease,
            exclusion=mutant.exclusion,
            faults=mutant.faults,
            app="tests.chaos.mutants",
        )
        report = run(options, print)
        if report.failed() & mutant.gates:
            print(f"{name}: {sorted(report.failed())}, seed {seed}, {time.monotonic() - began_at:.0f} s")
            return
    pytest.fail(f"no run of {SEEDS} found it; they failed {sorted(report.failed())}")


@pytest.mark.parametrize("faults", ["kill,cut", "rollback,rebalance"])
def test_a_slow_line_alone_is_no_fault(faults, monkeypatch):
    monkeypatch.setenv(VARIABLE, "a slow line")
    faults = frozenset(faults.split(","))
    report = run(Options(1, seconds=SECONDS, faults=faults, app="tests.chaos.mutants"), print)
    assert report.failed() - {"takeover s"} == set()


@pytest.mark.parametrize(
    "name, tests",
    [
        *((name, ["tests/store", "tests/model"]) for name in OF_THE_STORE),
        *((name, ["tests/store/test_holds.py"]) for name in OF_HOLDS),
    ],
)
def test_the_stores_own_tests_find_the_mutant(name, tests):
    """Two layers of tests: what chaos passes by, these must find."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.chaos.mutants",
    ]
    done = subprocess.run(
        [*command, *tests],
        env={**os.environ, VARIABLE: name},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout[-2000:]
    print(name, re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE))
