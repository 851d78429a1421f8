"""The plan of a chaos run is a pure function of seed and options."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from celery_lowkiq.rules.errors import ConfigurationError
from tests.chaos.options import DEFAULT_FAULTS, FAULTS, ON_A_CLUSTER, Options
from tests.chaos.plan import (
    YEAR,
    AddMaster,
    Cut,
    Down,
    Failover,
    Freeze,
    FreezeMaster,
    HoldSlot,
    Hole,
    Jump,
    Kill,
    KillMaster,
    KillRedis,
    MoveSlots,
    Reshard,
    Resize,
    Roll,
    Rollback,
    plan,
)

ALL = Options(seed=7, seconds=600, faults=frozenset(FAULTS))
KINDS = {
    "kill": {Kill},
    "freeze": {Freeze},
    "redis": {KillRedis},
    "cut": {Cut, Hole, Down},
    "rollback": {Rollback},
    "clock": {Jump},
    "rebalance": {Resize, Roll},
    "reshard": {Reshard},
    "failover": {Failover},
}


OF_MASTERS = {
    "master": KillMaster,
    "stale": FreezeMaster,
    "behind": KillMaster,
    "slot": HoldSlot,
    "abort": HoldSlot,
    "slots": MoveSlots,
    "masters": AddMaster,
}


def test_the_same_seed_makes_the_same_plan():
    assert list(plan(7, ALL)) == list(plan(7, ALL))
    assert list(plan(7, ALL)) != list(plan(8, ALL))


def test_faults_come_in_order_every_0_4_seconds_or_so():
    times = [fault.at for fault in plan(7, ALL)]
    assert all(0.2 <= b - a <= 0.6 for a, b in pairwise(times))
    assert times[-1] < ALL.seconds
    assert len(times) == pytest.approx(600 / 0.4, rel=0.1)
    slow = [fault.at for fault in plan(7, replace(ALL, pause=4.0))]
    assert len(slow) == pytest.approx(600 / 4.0, rel=0.2)


def test_every_kind_that_is_asked_for_comes_and_no_other():
    for name, kinds in KINDS.items():
        faults = frozenset({name, "kill"})
        assert {type(fault) for fault in plan(7, Options(7, seconds=600, faults=faults))} == kinds | {Kill}


@pytest.mark.parametrize("name, kind", OF_MASTERS.items())
def test_the_faults_of_a_cluster_come_beside_those_of_workers(name, kind):
    options = Options(7, seconds=600, faults=frozenset({name, "kill"}), cluster=True)
    assert {type(fault) for fault in plan(7, options)} == {kind, Kill}


def test_on_a_cluster_nodes_are_replaced_beside_other_faults():
    """Their number stays: eight workers beside six servers are too many for a small machine."""
    options = Options(7, seconds=6000, pause=2.0, faults=ON_A_CLUSTER, cluster=True)
    of_nodes = [type(fault) for fault in plan(7, options) if isinstance(fault, (Resize, Roll, Kill))]
    assert set(of_nodes) == {Roll, Kill}
    assert of_nodes.count(Roll) < 0.7 * of_nodes.count(Kill)


def test_lines_are_cut_to_any_master():
    options = Options(7, seconds=600, faults=frozenset({"cut"}), cluster=True)
    assert {fault.master % 3 for fault in plan(7, options)} == {0, 1, 2}


def test_a_fault_that_is_none_of_the_store_is_refused():
    with pytest.raises(ConfigurationError, match="master are no faults of one Redis"):
        Options(7, faults=frozenset({"master"}))
    with pytest.raises(ConfigurationError, match="redis are no faults of a cluster"):
        Options(7, faults=frozenset({"redis"}), cluster=True)
    with pytest.raises(ConfigurationError, match="--redis"):
        Options(7, faults=frozenset(), cluster=True, redis_url="redis://here")


def test_times_are_those_of_the_test_plan():
    lease = 2.0
    for fault in plan(7, Options(7, seconds=600, lease=lease, faults=frozenset(FAULTS))):
        if isinstance(fault, Freeze):
            assert 0.3 * lease <= fault.seconds <= 2.5 * lease
        elif isinstance(fault, KillRedis):
            assert fault.seconds in (0.05 * lease, 0.5 * lease, 1.5 * lease)
        elif isinstance(fault, (Hole, Down)):
            assert 0 < fault.seconds <= 1.5 * lease
        elif isinstance(fault, Failover):
            assert 0 <= fault.lag <= 0.5 * lease
            assert fault.seconds in (0.05 * lease, 0.5 * lease, 1.5 * lease)
        elif isinstance(fault, Rollback):
            assert 0.1 * lease <= fault.seconds <= 2 * lease
        elif isinstance(fault, Jump):
            assert -3600 <= fault.seconds <= YEAR


def test_rebalancing_alone_is_a_plan_of_its_own():
    sizes = [
        fault.nodes
        for fault in plan(7, Options(7, faults=frozenset({"rebalance"})))
        if hasattr(fault, "nodes")
    ]
    assert sizes == [1, 4, 2, 8]
    assert list(plan(7, Options(7, faults=frozenset()))) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"faults": frozenset({"fire"})},
        {"exclusion": "hopeful"},
        {"nodes": 0},
        {"seconds": 0},
        {"lease": 0.1},
        {"shards": 0},
        {"pause": 0},
    ],
)
def test_an_impossible_run_is_refused(bad):
    with pytest.raises(ConfigurationError):
        Options(1, **bad)


def test_clock_jumps_and_rebalancing_are_off_unless_asked_for():
    assert {"kill", "freeze", "redis", "cut", "rollback"} == DEFAULT_FAULTS
