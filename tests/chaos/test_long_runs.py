"""The whole plan: real workers under every kind of fault, all gates, with figures printed (``-s``).

LOWKIQ_CHAOS_SEEDS and LOWKIQ_CHAOS_SECONDS say how much of it; LOWKIQ_CHAOS_JOBS and LOWKIQ_CHAOS_KILLS the
size of the comparison.
"""

from __future__ import annotations

import os

import pytest

from tests.chaos.__main__ import main

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

SEEDS = os.environ.get("LOWKIQ_CHAOS_SEEDS", "1,2,3").split(",")
SECONDS = os.environ.get("LOWKIQ_CHAOS_SECONDS", "60")
JOBS = os.environ.get("LOWKIQ_CHAOS_JOBS", "20000")
KILLS = os.environ.get("LOWKIQ_CHAOS_KILLS", "40")

FAULTS = {
    "everything that may die": "kill,freeze,redis,cut",
    "failovers that lose writes": "kill,freeze,redis,cut,rollback",
    "a clock that jumps": "kill,freeze,clock",
    "nodes that come and go": "rebalance",
    "shards that come and go": "kill,freeze,redis,cut,rollback,reshard",
    "failovers to a replica while jobs move": "kill,freeze,redis,cut,reshard,failover",
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exclusion", ["cooperative", "strict"])
@pytest.mark.parametrize("faults", FAULTS)
def test_every_gate_is_passed(faults, exclusion, seed):
    words = ["--seconds", SECONDS, "--seed", seed, "--exclusion", exclusion, "--faults", FAULTS[faults]]
    assert main([*words, "--shards", "24"] if "reshard" in FAULTS[faults] else words) == 0


def test_nothing_is_lost_where_plain_celery_loses():
    few = ["--seconds", "1", "--seed", SEEDS[0], "--faults", "kill"]
    assert main([*few, "--compare-celery", "--jobs", JOBS, "--kills", KILLS]) == 0
