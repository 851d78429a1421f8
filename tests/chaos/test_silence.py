"""How long a healthy shard was silent: what counts, and which faults excuse it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.checker import check
from tests.chaos.history import Acquire, Death, Drain, Execution, History, Push, Service, Trouble

GATE = "silence of a healthy shard s"
ONE, TWO = 101, 102


def ran(pid, began_at, ended_at, shard=0, thread=1, **payloads):
    return Execution(pid, shard, 1, began_at, began_at, ended_at, payloads, thread=thread)


#: A call at 20 s runs 3 s later; nothing else happens.
SILENT = History(
    lease=1.0,
    strict=False,
    drain=Drain(0.5),
    cluster=True,
    pushes=(Push("a", 1, 19.9, 20.0),),
    executions=(ran(ONE, 23.0, 23.1, a=(1,)),),
    acquires=(Acquire(ONE, "one", 0, 1, 0.0, 0.1),),
)


def silence(**changes):
    (gate,) = [gate for gate in check(replace(SILENT, **changes)).gates if gate.name == GATE]
    return gate.figure


def test_a_shard_is_silent_from_the_call_to_its_run():
    assert silence() == pytest.approx(3.0)
    assert GATE in check(SILENT).failed()


@pytest.mark.parametrize("place", [{"thread": 1, "shard": 5}, {"thread": 2, "shard": 0}])
def test_it_is_not_while_the_lane_or_the_shard_is_at_work(place):
    pushes = (*SILENT.pushes, Push("b", 2, 19.0, 19.5))
    before = ran(ONE, 19.6, 22.5, b=(2,), **place)
    assert silence(pushes=pushes, executions=(before, *SILENT.executions)) == pytest.approx(0.5)


def test_nor_while_the_lane_is_at_work_that_had_the_shard_before():
    """The shard was moved, or released, while its lane ran another one: it had to wait for that."""
    other = ran(TWO, 19.0, 30.0, shard=5, z=(9,))
    services = (Service(TWO, 1, 0, 10.0, 22.0), Service(ONE, 1, 0, 22.4, 50.0))
    executions = (other, *SILENT.executions)
    assert silence(services=services, executions=executions) == pytest.approx(1.0)
    # A lane that had ended its run does not count, nor one that began another run later.
    ended = (replace(other, ended_at=20.5), *SILENT.executions)
    assert silence(services=services, executions=ended) == pytest.approx(2.5)
    later = (replace(other, began_at=22.2), *SILENT.executions)
    assert silence(services=services, executions=later) == pytest.approx(3.0)


def test_what_runs_again_was_claimed_before():
    first = ran(ONE, 20.1, 20.2, a=(1,))
    assert silence(executions=(first, *SILENT.executions)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble("failover", 21.0, 22.0, shards=(0, 4)),
        Trouble("failover", 15.0, 18.0, shards=(0,)),
        Trouble("reshard", 10.0, 21.0),
        Trouble("freeze", 20.5, 21.0, victim=ONE),
    ],
)
def test_a_fault_of_its_master_its_slot_or_its_worker_excuses_it(trouble):
    assert silence(troubles=(trouble,)) is None


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble("failover", 21.0, 22.0, shards=(1,)),
        Trouble("slot held half-way", 21.0, 22.0, shards=()),
        Trouble("failover", 10.0, 12.0, shards=(0,)),
        Trouble("freeze", 20.5, 21.0, victim=TWO),
    ],
)
def test_a_fault_of_another_one_does_not(trouble):
    assert silence(troubles=(trouble,)) == pytest.approx(3.0)


def test_a_shard_that_is_taken_from_a_dead_worker_is_not_healthy():
    acquires = (Acquire(TWO, "two", 0, 0, 0.0, 0.1), Acquire(ONE, "one", 0, 1, 22.0, 22.1))
    assert silence(acquires=acquires, deaths=(Death(TWO, 20.5, "kill"),)) is None
    # A worker that lives had no reason to lose it.
    assert silence(acquires=acquires) == pytest.approx(3.0)
    assert silence(acquires=acquires, deaths=(Death(TWO, 30.0, "stop"),)) == pytest.approx(3.0)
