"""Whether another number of shards would help, and which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.health import by_load, shard_hints
from celery_lowkiq.rules.models import ShardRef, shard_of
from celery_lowkiq.rules.views import LaneReport, NodeReport, Running, ShardReport, Stats

NOW = 1_700_000_000.0


def shard(index=0, *, running=("42",), paused=None, alive=True, rate=None, since=NOW - 3600, **stats):
    run = Running(ShardRef("orders", index), running, len(running), 3.0) if running else None
    owner = "a@host" if alive else None
    return ShardReport(index, Stats(**stats), owner, 5, since, alive, 1.0, run, paused, jobs_per_minute=rate)


def crowded(index=0, ids=5, lag=40.0, **options):
    return shard(index, busy=1, due=ids, length=ids, lag=lag, oldest=lag, **options)


def node(lanes=8, full=(), silent=1.0, queues=("orders",), shards=24, other=0.0, running=None):
    """Its lanes got the shards in turn; lanes ``full`` worked all the time, the others ``other`` of it."""
    refs = [ShardRef("orders", index) for index in range(shards)]
    reports = tuple(
        LaneReport(
            f"lane-{number}",
            tuple(refs[number::lanes]),
            shards // lanes,
            running if number in full else None,
            0.98 if number in full else other,
        )
        for number in range(lanes)
    )
    owner = "a@host-1"
    return NodeReport("a@host", owner, 1, 10.0, False, False, queues, reports, 0.0, NOW, silent)


def hints(*shards, number=24, nodes=None, lanes=8):
    """By default, the lanes of the shards that are busy worked all the time."""
    full = {one.index % lanes for one in shards if one.stats.busy}
    return shard_hints(
        "orders", number, shards, [node(lanes, full, shards=number)] if nodes is None else nodes
    )


def test_nothing_is_said_of_shards_in_time():
    assert hints(crowded(lag=9.0), shard(1), shard(2, busy=1), shard(3, lag=2.0)) == []


@pytest.mark.parametrize(
    "of_shard",
    [
        {"alive": False},
        {"paused": 5.0},
        # Its lane does not work: not for want of shards.
        {"busy": 0, "running": ()},
    ],
)
def test_nothing_is_said_of_shards_that_are_late_for_another_reason(of_shard):
    options = {"busy": 1, "due": 5, "lag": 40.0, "oldest": 40.0, **of_shard}
    assert hints(shard(**options)) == []


def test_ids_that_collide_get_another_number_of_shards():
    (hint,) = hints(crowded(3, ids=8), crowded(7, ids=8, lag=55.0), shard(9))
    assert hint.text == (
        "Ids wait for each other in orders/3,7, for up to 55 s: in the last 10 min, 2 lanes of 8 worked all "
        "the time, and all of them 24% of it."
    )
    assert hint.advice == (
        "Another number of shards would use more lanes: celery -A proj lowkiq reshard orders 53"
    )


@pytest.mark.parametrize(
    "nodes",
    [
        [replace(node(full={3}), lanes=(*node(full={3}).lanes[:7], LaneReport("lane-7", (), 0)))],
        [node(full={3}), replace(node(), lanes=(LaneReport("lane-0", (), 0),))],
        [node(other=0.4)],
        [],
    ],
    ids=["a lane is younger", "a node is younger", "lanes had time", "no node"],
)
def test_advice_comes_from_ten_minutes_of_work(nodes):
    assert hints(crowded(3), nodes=[node(full={3})])
    assert hints(crowded(3), nodes=nodes) == []


def test_a_move_is_followed_by_ten_minutes_without_advice():
    assert hints(crowded(3), shard(4, since=NOW - 500)) == []


def test_the_advice_stays_whatever_the_other_lanes_run_just_now():
    """It said 29, 23, 11, 37, 47 in five reads, since it left out lanes with a run of another queue."""
    other = Running(ShardRef("other", 0), ("1",), 1, 1.0)
    reads = [node(full={3}, other=0.1)]
    for busy in range(8):
        lanes = [replace(lane, running=other if n < busy else None) for n, lane in enumerate(reads[0].lanes)]
        reads.append(replace(reads[0], lanes=tuple(lanes)))
    found = [hints(crowded(3), nodes=[read]) for read in reads]
    assert len(found[0]) == 1
    assert found == [found[0]] * 9


def test_a_run_that_hangs_gets_no_advice_about_shards():
    hangs = Running(ShardRef("orders", 3), ("42",), 1, 1400.0, overdue=True)
    assert hints(crowded(3), nodes=[node(full={3}, running=hangs)]) == []


def test_shards_of_one_lane_wait_for_each_other_too():
    """Found in a run: with 72 shards, the ids were in the lanes that they had with 24."""
    late = [shard(index, due=4, lag=40.0, oldest=40.0, running=()) for index in (5, 29)]
    (hint,) = hints(
        crowded(53, ids=4),
        *late,
        number=72,
    )
    assert hint.text.startswith("Ids wait for each other in orders/5,29,53, for up to 40 s: ")
    assert hint.advice.endswith("reshard orders 149")


@pytest.mark.parametrize(
    "number, lanes, proposed",
    [(1, 2, 5), (5, 2, 11), (24, 8, 53), (24, 100, 211), (2500, 8, 4001), (4001, 8, 4003)],
)
def test_to_what_number(number, lanes, proposed):
    (hint,) = hints(crowded(ids=40), number=number, lanes=lanes)
    assert hint.advice.endswith(f" orders {proposed}")


def test_the_proposed_number_does_what_it_says():
    """Ids of one shard of 24 are in one lane of 8 with 48 shards, too."""
    ids = [name for name in map(str, range(5000)) if shard_of(name, 24) == 5][:20]

    def lanes(shards):
        return len({shard_of(name, shards) % 8 for name in ids})

    (hint,) = hints(crowded(5, ids=len(ids)))
    assert (lanes(24), lanes(48), lanes(72)) == (1, 1, 1)
    assert lanes(int(hint.advice.split()[-1])) >= 7


def test_lanes_that_all_have_work_need_no_shards():
    shards = [crowded(index) for index in range(8)]
    (hint,) = hints(*shards)
    assert "8 lanes of 8 worked all the time" in hint.text
    assert hint.advice.startswith("More shards would not help: start more workers")
    # Lanes of a lost node, or of one that does not serve the queue, are none of this one.
    full = node(full=range(8))
    assert hints(*shards, nodes=[full, node(1, silent=20.0), node(1, queues=())]) == [hint]
    (more,) = hints(*shards, nodes=[full, node(8, shards=0)])
    assert "reshard" in more.advice
    # Lanes that worked for another queue all the time have no time for this one.
    (same,) = hints(*shards, nodes=[full, node(8, full=range(8), shards=0)])
    assert same.advice == hint.advice


def test_a_few_ids_that_met_by_chance_would_meet_again():
    (hint,) = hints(crowded(3, ids=2), shard(4, busy=1, due=1), shard(5, busy=1))
    assert "3 lanes of 8 worked" in hint.text
    assert hint.advice.startswith("More shards would not help")


def test_more_lanes_than_shards():
    (hint,) = hints(*map(crowded, range(4)), number=4, lanes=16)
    assert hint.advice.endswith("would use more lanes: celery -A proj lowkiq reshard orders 37")


def test_a_hot_id_gets_no_more_shards():
    """Its next job is due all the while, and waits for the run of the same id."""
    (hint,) = hints(shard(7, busy=1, due=1, length=1, lag=0.0, oldest=50.0))
    assert hint.text == "Calls wait for the run of their own id (42) in orders/7, for up to 50 s."
    assert hint.advice.startswith("More shards do not help: runs of an id never overlap.")
    assert hints(shard(7, busy=1, due=1, paused_jobs=1, oldest=50.0)) == []


def test_ids_that_wait_for_the_batch_that_they_are_all_in_get_another_number():
    (hint,) = hints(shard(7, busy=6, due=6, lag=0.0, oldest=50.0))
    assert "reshard orders" in hint.advice


def test_both_are_said():
    found = hints(crowded(1), shard(2, busy=1, due=1, oldest=20.0))
    assert ["reshard" in hint.advice for hint in found] == [True, False]


def test_nothing_is_said_of_shards_that_no_lane_lists():
    """A report lists 1,000 shards at most."""
    assert hints(*map(crowded, range(100, 108)), nodes=[node(full=range(8))]) == []


def test_the_most_loaded_come_first():
    shards = [shard(0), shard(1, rate=9.0), shard(2, busy=1), shard(3, length=5), shard(4, lag=1.0)]
    assert [one.index for one in by_load(shards)] == [4, 3, 2, 1, 0]
    assert [one.index for one in by_load([shard(1), shard(0)])] == [1, 0]
