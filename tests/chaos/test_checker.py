"""The chaos checker: a clean run passes every gate, and each seeded violation fails its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.checker import check
from tests.chaos.history import (
    Acquire,
    Death,
    Drain,
    Execution,
    History,
    Push,
    Release,
    Renewal,
    Settle,
    Trouble,
    Watch,
    history_of,
)

ONE, TWO = 101, 102


def ran(pid, epoch, claimed_at, ended_at, **payloads):
    """A run on shard 0 that begins 0.1 s after its claim."""
    return Execution(pid, 0, epoch, claimed_at, claimed_at + 0.1, ended_at, payloads)


#: Process ONE works from 0 s on, and is killed at 5.0 over a batch; TWO takes the shard at 6.2 and ends.
CLEAN = History(
    lease=1.0,
    strict=False,
    drain=Drain(0.5),
    pushes=(Push("a", 1, 0.5, 0.6), Push("a", 2, 1.5, 1.6), Push("b", 3, 4.0, 4.1)),
    executions=(
        ran(ONE, 10, 1.0, 1.3, a=(1,)),
        ran(ONE, 10, 2.0, 2.3, a=(2,)),
        replace(ran(ONE, 10, 4.8, 5.0, b=(3,)), finished=False),
        ran(TWO, 20, 6.4, 6.6, b=(3,)),
    ),
    acquires=(Acquire(ONE, "one", 0, 10, 0.0, 0.1), Acquire(TWO, "two", 0, 20, 6.1, 6.2)),
    renewals=tuple(Renewal(0, 10, tick / 5) for tick in range(1, 25))
    + tuple(Renewal(0, 20, tick / 5) for tick in range(32, 45)),
    releases=(Release(0, 20, 9.0),),
    settles=(Settle(ONE, 0, 10, 1.3, 1.31), Settle(ONE, 0, 10, 2.3, 2.31), Settle(TWO, 0, 20, 6.6, 6.61)),
    deaths=(Death(ONE, 5.0, "kill"), Death(TWO, 9.1, "stop")),
    troubles=(Trouble("kill", 4.99, 5.01),),
)


def with_(**more):
    """The clean run with more of something."""
    return replace(CLEAN, **{name: getattr(CLEAN, name) + values for name, values in more.items()})


def without(name, position):
    values = list(getattr(CLEAN, name))
    del values[position]
    return replace(CLEAN, **{name: tuple(values)})


#: ONE went on after its lease had run out: it was frozen, not killed.
FROZEN = replace(
    CLEAN, executions=(*CLEAN.executions[:2], ran(ONE, 10, 4.8, 7.0, b=(3,)), CLEAN.executions[3])
)
#: The same, and a migration moved the id before TWO ran it, in a shard that it had all the time.
MOVED = replace(
    FROZEN,
    executions=(*FROZEN.executions[:3], replace(FROZEN.executions[3], shard=1, epoch=5)),
    acquires=(*FROZEN.acquires, Acquire(TWO, "two", 1, 5, 0.0, 0.1)),
)


def calm(**more):
    """A run in which nodes only came and went: ONE gives the shard to TWO."""
    history = replace(
        CLEAN,
        executions=(*CLEAN.executions[:2], ran(TWO, 20, 6.4, 6.6, b=(3,))),
        releases=(Release(0, 10, 6.0), Release(0, 20, 9.0)),
        deaths=(Death(ONE, 6.1, "stop"), Death(TWO, 9.1, "stop")),
        troubles=(Trouble("rebalance", 5.0, 5.0),),
    )
    return replace(history, **more)


def failed_over(until=3.0):
    """The same on a cluster, after a failover; the shard waits for 1.1 s."""
    return calm(
        cluster=True,
        pushes=(*CLEAN.pushes[:2], Push("b", 3, 6.0, 6.1)),
        releases=(Release(0, 10, 5.1),),
        troubles=(Trouble("rebalance", 5.0, 5.0), Trouble("failover", 2.0, until, shards=(0,))),
    )


SEEDED = {
    "a payload that never ran": ("lost payloads", with_(pushes=(Push("c", 4, 4.0, 4.1),))),
    "a payload that died with its worker": ("lost payloads", without("executions", 3)),
    "a payload accepted before the rollback": (
        "lost payloads",
        with_(pushes=(Push("c", 4, 4.0, 4.1),), troubles=(Trouble("rollback", 4.2, 4.9),)),
    ),
    "a payload that is settled again": (
        "settled twice",
        with_(
            executions=(ran(TWO, 20, 7.0, 7.2, a=(1,)),),
            settles=(Settle(TWO, 0, 20, 7.2, 7.25),),
            # It did not forget that settle.
            troubles=(Trouble("failover", 1.4, 2.2),),
        ),
    ),
    "a payload that is settled again, by settles that name it": (
        "settled twice",
        with_(
            executions=(ran(TWO, 20, 7.0, 7.2, a=(1,)),),
            settles=(Settle(TWO, 0, 20, 7.2, 7.25, done=("a",)),),
        ),
    ),
    "a payload that is lost in a failover, although its push was confirmed": (
        "lost payloads",
        with_(pushes=(Push("c", 4, 4.0, 4.1),), troubles=(Trouble("failover", 3.9, 4.9),)),
    ),
    "two threads of one lease": (
        "overlapping executions",
        with_(executions=(ran(ONE, 10, 2.05, 2.2, a=(2,)),)),
    ),
    "a takeover from an owner that renews": (
        "overlapping executions",
        with_(
            acquires=(Acquire(TWO, "two", 0, 11, 4.82, 4.84),),
            executions=(ran(TWO, 11, 4.85, 5.1, b=(3,)),),
        ),
    ),
    "a former owner that is still running, in strict mode": (
        "overlapping executions",
        replace(FROZEN, strict=True),
    ),
    "a former owner whose shard nobody took before the id was moved": (
        "overlapping executions",
        replace(MOVED, acquires=(MOVED.acquires[0], MOVED.acquires[2]), deaths=(), settles=()),
    ),
    "a settle of an older epoch": (
        "accepted stale writes",
        with_(settles=(Settle(ONE, 0, 10, 6.3, 6.35),)),
    ),
    "an epoch that was given twice": (
        "epochs that do not grow",
        with_(acquires=(Acquire(ONE, "three", 0, 20, 8.0, 8.1),)),
    ),
    "an epoch that went back": (
        "epochs that do not grow",
        with_(acquires=(Acquire(ONE, "three", 0, 15, 8.0, 8.1),)),
    ),
    "payloads that descend within a batch": (
        "order inversions",
        with_(pushes=(Push("a", 0, 0.1, 0.2),), executions=(ran(TWO, 20, 7.0, 7.2, a=(2, 0)),)),
    ),
    "a payload overtaken by a later one": (
        "order inversions",
        with_(
            pushes=(Push("c", 4, 4.0, 4.1), Push("c", 5, 4.2, 4.3)),
            executions=(ran(TWO, 20, 6.7, 6.9, c=(5,)), ran(TWO, 20, 7.0, 7.2, c=(4,))),
        ),
    ),
    "a key that stays": ("leftover keys", replace(CLEAN, drain=Drain(0.5, ("a key",)))),
    "a queue that empties slowly": ("drain s", replace(CLEAN, drain=Drain(10.1))),
    "a queue that never empties": ("drain s", replace(CLEAN, drain=Drain(None))),
    "a takeover that takes long": (
        "takeover s",
        replace(CLEAN, acquires=(CLEAN.acquires[0], Acquire(TWO, "two", 0, 20, 7.2, 7.3))),
    ),
    "a takeover that waits for a node that began after the death": (
        "takeover s",
        replace(
            CLEAN,
            watches=(Watch(103, 0.0), Watch(TWO, 6.0)),
            acquires=(CLEAN.acquires[0], Acquire(TWO, "two", 0, 20, 7.2, 7.3)),
        ),
    ),
    "a takeover that takes a node long that began after the death": (
        "takeover s",
        replace(
            CLEAN,
            watches=(Watch(TWO, 5.4),),
            acquires=(CLEAN.acquires[0], Acquire(TWO, "two", 0, 20, 7.6, 7.7)),
            deaths=(CLEAN.deaths[0],),
        ),
    ),
    "a shard that nobody takes": (
        "takeover s",
        replace(without("acquires", 1), pushes=CLEAN.pushes[:2]),
    ),
    "a worker that ends by itself": (
        "unexpected ends of workers",
        with_(deaths=(Death(103, 3.0, "unexpected"),)),
    ),
    "a run in which nothing happens": ("idle run", replace(CLEAN, pushes=(), executions=())),
    "a payload that runs again while nodes come and go": (
        "duplicates",
        calm(executions=(*calm().executions, ran(TWO, 20, 7.0, 7.2, a=(2,)))),
    ),
    "a shard that waits for its next owner": ("hand-over s", calm(releases=(Release(0, 10, 5.1),))),
    "a shard that waits for its next owner after a failover": ("hand-over s", failed_over()),
    "a shard that waits for its next owner while another master is unreachable": (
        "hand-over s",
        replace(failed_over(), troubles=(Trouble("failover", 4.5, 5.5, shards=(1, 2)),)),
    ),
}


@pytest.mark.parametrize("name", SEEDED)
def test_each_violation_fails_its_own_gate_and_no_other(name):
    gate, history = SEEDED[name]
    assert check(history).failed() == {gate}


@pytest.mark.parametrize(
    "more",
    [
        {"troubles": failed_over(until=4.5).troubles},
        {"troubles": (Trouble("freeze", 3.0, 4.0, victim=TWO),)},
        {"deaths": (Death(103, 3.0, "kill"),)},
    ],
)
def test_a_fault_excuses_a_hand_over_that_waits(more):
    report = check(replace(failed_over(), **more))
    (gate,) = [gate for gate in report.gates if gate.name == "hand-over s"]
    assert (gate.figure, report.failed()) == (None, set())


@pytest.mark.parametrize("history", [CLEAN, calm()], ids=["kill", "rebalance"])
def test_a_clean_run_passes_every_gate(history):
    report = check(history)
    assert report.passed
    assert all(gate.figure is not None for gate in report.gates if gate.name != "takeover s")


@pytest.mark.parametrize("kind", ["kill", "kill at rest"])
def test_the_takeover_is_measured_from_the_death_to_the_answer(kind):
    killed = replace(CLEAN, troubles=(Trouble(kind, 4.99, 5.01),))
    (gate,) = [gate for gate in check(killed).gates if gate.name == "takeover s"]
    assert gate.figure == pytest.approx(1.2)
    assert gate.limit == pytest.approx(2.25)


def test_a_shard_that_its_owner_had_given_up_before_its_death_has_no_takeover():
    """A failover lost the answer to the release of a retired shard, which needs no owner."""
    gave_up = with_(acquires=(Acquire(ONE, "one", 7, 3, 0.0, 0.1),), renewals=(Renewal(7, 3, 3.9),))
    assert check(gave_up).passed
    assert check(with_(acquires=gave_up.acquires[-1:], renewals=(Renewal(7, 3, 4.1),))).failed() == {
        "takeover s"
    }


def test_the_takeover_counts_from_when_a_node_watches_that_lives_on():
    """TWO begins after the death, and 103 dies before it could take the shard."""
    late = replace(
        CLEAN,
        watches=(Watch(103, 0.0), Watch(TWO, 5.6)),
        acquires=(CLEAN.acquires[0], Acquire(TWO, "two", 0, 20, 7.2, 7.3)),
        deaths=(CLEAN.deaths[0], Death(103, 5.5, "unexpected")),
    )
    (gate,) = [gate for gate in check(late).gates if gate.name == "takeover s"]
    assert gate.figure == pytest.approx(1.7)


ALLOWED = {
    "lost within a rollback": (
        "lost within rollbacks",
        with_(pushes=(Push("c", 4, 4.0, 4.1),), troubles=(Trouble("rollback", 3.9, 4.9),)),
    ),
    "a former owner that was frozen past its lease": (
        "frozen overlaps",
        FROZEN,
    ),
    "a former owner that was frozen past its lease, from whose shard the id was moved": (
        "frozen overlaps",
        MOVED,
    ),
    "lost in a failover before its push was confirmed": (
        "not confirmed",
        with_(unconfirmed=(Push("c", 4, 4.0, 4.1),), troubles=(Trouble("failover", 3.9, 4.9),)),
    ),
    "runs again since its settle gave it back": (
        "duplicates",
        replace(
            with_(executions=(ran(TWO, 20, 7.0, 7.2, a=(1,)),)),
            settles=(replace(CLEAN.settles[0], done=()), *CLEAN.settles[1:], Settle(TWO, 0, 20, 7.2, 7.25)),
        ),
    ),
    "runs again after a failover that lost its settle": (
        "duplicates",
        with_(
            executions=(ran(TWO, 20, 7.0, 7.2, a=(1,)),),
            settles=(Settle(TWO, 0, 20, 7.2, 7.25),),
            troubles=(Trouble("failover", 1.0, 2.2),),
        ),
    ),
    "runs again after a failover that lost its claim": (
        "duplicates",
        with_(
            executions=(ran(TWO, 20, 7.0, 7.2, a=(1,)),),
            settles=(Settle(TWO, 0, 20, 7.2, 7.25),),
            troubles=(Trouble("failover", 0.9, 1.1),),
        ),
    ),
    "runs again since its call was repeated": (
        "duplicates",
        with_(
            unconfirmed=(Push("a", 1, 1.4, 1.5),),
            executions=(ran(TWO, 20, 7.0, 7.2, a=(1,)),),
            settles=(Settle(TWO, 0, 20, 7.2, 7.25),),
        ),
    ),
    "runs again after a crash": ("duplicates", with_(executions=(ran(TWO, 20, 7.0, 7.2, a=(2,)),))),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_nobody_can_prevent_is_counted_apart(name):
    figure, history = ALLOWED[name]
    report = check(history)
    assert report.passed, report.failed()
    assert report.figures[figure] == 1
    assert not check(CLEAN).figures.get(figure)


def test_what_was_not_confirmed_and_is_lost_is_named():
    found = with_(
        pushes=(Push("b", 3, 4.2, 4.3),), unconfirmed=(Push("b", 3, 4.0, 4.1), Push("c", 4, 4.0, 4.1))
    )
    assert check(found).figures["not confirmed"] == 1
    assert check(found).figures["not confirmed and lost"] == ["id c payload 4"]


def test_what_was_accepted_after_the_claim_may_run_after_it():
    """A payload with a smaller score that came between the claim's call and the run."""
    late = with_(
        pushes=(Push("c", 4, 6.71, 6.75), Push("c", 5, 4.2, 4.3)),
        executions=(ran(TWO, 20, 6.7, 6.9, c=(5,)), ran(TWO, 20, 7.0, 7.2, c=(4,))),
    )
    assert check(late).passed


def test_a_settle_may_follow_a_grant_that_a_rollback_made_redis_forget():
    stale = with_(settles=(Settle(ONE, 0, 10, 6.3, 6.35),), troubles=(Trouble("rollback", 6.0, 6.25),))
    assert "accepted stale writes" not in check(stale).failed()


def test_a_redis_that_forgot_a_grant_knows_of_it_by_its_clock_only():
    back = with_(
        acquires=(Acquire(ONE, "three", 0, 15, 8.0, 8.1),), troubles=(Trouble("rollback", 6.0, 7.9),)
    )
    assert check(back).failed() == {"epochs that do not grow"}
    jumped = replace(back, troubles=(*back.troubles, Trouble("clock", 7.0, 7.0)))
    assert check(jumped).passed


def test_a_grant_that_is_answered_twice_is_one():
    again = with_(acquires=(Acquire(TWO, "two", 0, 20, 6.3, 6.4),))
    assert check(again).passed


def test_a_kill_is_not_measured_while_something_else_is_wrong():
    slow = replace(CLEAN, acquires=(CLEAN.acquires[0], Acquire(TWO, "two", 0, 20, 8.2, 8.3)))
    assert check(replace(slow, troubles=(*slow.troubles, Trouble("redis", 6.0, 6.5)))).failed() == set()


def test_a_history_is_read_from_the_lines_of_a_ledger():
    place = {"pid": ONE, "shard": 0, "epoch": 10}
    lines = [
        {"event": "push", "at": 0.6, "called_at": 0.5, "payloads": {"a": 1}},
        {"event": "unconfirmed", "at": 0.4, "called_at": 0.3, "payloads": {"a": 1}},
        {"event": "watch", "at": 0.05, "pid": ONE},
        {"event": "acquire", "at": 0.1, "called_at": 0.0, "owner": "one", **place},
        {"event": "start", "at": 1.1, "run": 0, "claimed_at": 1.0, "payloads": {"a": [1]}, **place},
        {"event": "end", "at": 1.3, "pid": ONE, "run": 0},
        {"event": "settle", "at": 1.4, "called_at": 1.3, **place},
        {"event": "start", "at": 2.1, "run": 1, "claimed_at": 2.0, "payloads": {"b": [2]}, **place},
        {"event": "renew", "at": 2.0, "called_at": 1.9, "pid": ONE, "epochs": {"0": 10}},
        {"event": "death", "at": 2.5, "dead": ONE, "cause": "kill"},
        {"event": "trouble", "kind": "kill", "at": 2.6, "began_at": 2.4, "ended_at": 2.6},
    ]
    history = history_of(lines, lease=1.0, strict=True, drain=Drain(0.1))
    finished, broken_off = history.executions
    assert (finished.ended_at, finished.finished) == (1.3, True)
    assert (broken_off.ended_at, broken_off.finished, broken_off.payloads) == (2.5, False, {"b": (2,)})
    assert history.pushes == (Push("a", 1, 0.5, 0.6),)
    assert history.unconfirmed == (Push("a", 1, 0.3, 0.4),)
    assert history.acquires == (Acquire(ONE, "one", 0, 10, 0.0, 0.1),)
    assert history.renewals == (Renewal(0, 10, 1.9),)
    assert history.watches == (Watch(ONE, 0.05),)
    assert history.settles == (Settle(ONE, 0, 10, 1.3, 1.4),)
    assert history.deaths == (Death(ONE, 2.5, "kill"),)
    assert history.troubles == (Trouble("kill", 2.4, 2.6),)
