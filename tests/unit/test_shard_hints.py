"""Whether another number of shards would help, and which."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.layout import shard_of
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.reports import LaneReport, NodeReport, Running, ShardReport
from celery_lowkiq.rules.shard_hints import by_load, shard_hints
from celery_lowkiq.rules.views import Stats


def shard(index=0, *, running=("42",), paused=None, alive=True, rate=None, **stats):
    run = Running(ShardRef("orders", index), running, len(running), 3.0) if running else None
    owner = "a@host" if alive else None
    return ShardReport(index, Stats(**stats), owner, 5, 1.0, alive, 1.0, run, paused, jobs_per_minute=rate)


def crowded(index=0, ids=5, lag=40.0, **options):
    return shard(index, busy=1, due=ids, length=ids, lag=lag, oldest=lag, **options)


def node(lanes=8, running="", silent=1.0, queues=("orders",), shards=24):
    """Its lanes got the shards in turn."""
    run = Running(ShardRef(running, 0), ("1",), 1, 1.0) if running else None
    refs = [ShardRef("orders", index) for index in range(shards)]
    reports = tuple(
        LaneReport(f"lane-{number}", tuple(refs[number::lanes]), shards // lanes, run)
        for number in range(lanes)
    )
    return NodeReport("a@host", "a@host-1", 1, 10.0, False, False, queues, reports, silent=silent)


def hints(*shards, number=24, nodes=None):
    return shard_hints("orders", number, shards, [node()] if nodes is None else nodes)


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
    assert hint.text == "Ids wait for each other in orders/3,7, for up to 55 s: 2 lanes of 8 have work."
    assert hint.advice == (
        "Another number of shards would use about 7 lanes: celery -A proj lowkiq reshard orders 53"
    )


def test_shards_of_one_lane_wait_for_each_other_too():
    """Found in a run: with 72 shards, the ids were in the lanes that they had with 24."""
    late = [shard(index, due=4, lag=40.0, oldest=40.0, running=()) for index in (5, 29)]
    (hint,) = hints(crowded(53, ids=4), *late, number=72, nodes=[node(shards=72)])
    assert hint.text == "Ids wait for each other in orders/5,29,53, for up to 40 s: 1 lane of 8 has work."
    assert hint.advice.endswith("reshard orders 149")


@pytest.mark.parametrize(
    "number, lanes, proposed",
    [(1, 2, 5), (5, 2, 11), (24, 8, 53), (24, 100, 211), (2500, 8, 4001), (4001, 8, 4003)],
)
def test_to_what_number(number, lanes, proposed):
    (hint,) = hints(crowded(ids=40), number=number, nodes=[node(lanes, shards=number)])
    assert hint.advice.endswith(f" orders {proposed}")


def test_the_proposed_number_does_what_it_says():
    """Ids of one shard of 24 are in one lane of 8 with 48 shards, too."""
    ids = [name for name in map(str, range(5000)) if shard_of(name, 24) == 5][:20]

    def lanes(shards):
        return len({shard_of(name, shards) % 8 for name in ids})

    (hint,) = hints(crowded(5, ids=len(ids)))
    assert "about 7 lanes" in hint.advice
    assert (lanes(24), lanes(48), lanes(72)) == (1, 1, 1)
    assert lanes(int(hint.advice.split()[-1])) >= 7


def test_lanes_that_all_have_work_need_no_shards():
    shards = [crowded(index) for index in range(8)]
    (hint,) = hints(*shards)
    assert "8 lanes of 8 have work" in hint.text
    assert hint.advice.startswith("More shards would not help: start more workers")
    # Lanes that run another queue, or are of another node, are none of this one.
    others = [node(9, running="other"), node(1, silent=20.0), node(1, queues=())]
    assert hints(*shards, nodes=[node(), *others]) == [hint]
    (more,) = hints(*shards, nodes=[node(), node(8, running="orders", shards=0)])
    assert "reshard" in more.advice


def test_a_few_ids_that_met_by_chance_would_meet_again():
    (hint,) = hints(crowded(3, ids=2), shard(4, busy=1, due=1), shard(5, busy=1))
    assert "3 lanes of 8 have work" in hint.text
    assert hint.advice.startswith("More shards would not help")


def test_more_lanes_than_shards():
    (hint,) = hints(*map(crowded, range(4)), number=4, nodes=[node(lanes=16, shards=4)])
    assert hint.advice.endswith("would use about 12 lanes: celery -A proj lowkiq reshard orders 37")


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


def test_shards_that_no_lane_lists_count_as_lanes():
    """A report lists 1,000 shards at most."""
    (hint,) = hints(*map(crowded, range(100, 108)), number=200)
    assert "8 lanes of 8 have work" in hint.text
    (hint,) = hints(crowded(), nodes=[])
    assert hint.advice.startswith("More shards would not help")


def test_the_most_loaded_come_first():
    shards = [shard(0), shard(1, rate=9.0), shard(2, busy=1), shard(3, length=5), shard(4, lag=1.0)]
    assert [one.index for one in by_load(shards)] == [4, 3, 2, 1, 0]
    assert [one.index for one in by_load([shard(1), shard(0)])] == [1, 0]
