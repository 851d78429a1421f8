"""Seeded faults in the workers: a chaos run finds each of them."""

from __future__ import annotations

import os
import time

import pytest

from celery_lowkiq.chaos.options import Options
from celery_lowkiq.chaos.run import run

from .mutants import MUTANTS, VARIABLE

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

#: Random faults may pass a mutant by: each gets so many seeds.
SEEDS = (1, 2, 3)
SECONDS = float(os.environ.get("LOWKIQ_CHAOS_MUTANT_SECONDS", "12"))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_run_finds_the_mutant(name, monkeypatch):
    mutant = MUTANTS[name]
    monkeypatch.setenv(VARIABLE, name)
    began_at = time.monotonic()
    for seed in SEEDS:
        options = Options(
            seed,
            seconds=SECONDS,
            exclusion=mutant.exclusion,
            faults=mutant.faults,
            app="tests.chaos.mutants",
        )
        report = run(options, print)
        if report.failed() & mutant.gates:
            print(f"{name}: {sorted(report.failed())}, seed {seed}, {time.monotonic() - began_at:.0f} s")
            return
    pytest.fail(f"no run of {SEEDS} found it; they failed {sorted(report.failed())}")
