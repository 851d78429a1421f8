"""What a mover decides in a turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules import resharding
from celery_lowkiq.rules.models import Layout
from celery_lowkiq.rules.resharding import (
    LARGEST_SHARE,
    LEAST_SHARE,
    LONGEST_TURN,
    Export,
    Migration,
    Pace,
    Phase,
    ShardMoves,
    SilentOwners,
    cost,
    has_come_back,
    has_sorted,
    is_finished,
    last_export,
    pages_of,
    paused_turn,
    shards_of_turn,
    turn,
    turns_of_round,
)

GROWS = Migration(1, Phase.MOVE, Layout(4, 2))
SHRINKS = Migration(1, Phase.MOVE, Layout(2, 4))


def ids(migration, source, home, count=1):
    """Ids of a former shard and of a new one."""
    layout = migration.layout
    found = (
        name
        for name in map(str, range(10_000))
        if (layout.former_home(name), layout.home(name)) == (None if source == home else source, home)
    )
    return tuple(next(found) for _ in range(count))


def moves(*moving, gen=1, **others):
    return ShardMoves("2>4", gen, moving, **{"waiting": len(moving), **others})


def test_ids_that_stay_become_claimable_and_others_leave():
    stays, leaves = ids(GROWS, 0, 0), ids(GROWS, 0, 2)
    done = turn(GROWS, {0: moves(*stays, *leaves)}, {})
    assert done.relays == {0: stays}
    assert done.exports == (Export(0, 2, leaves),)


def test_a_source_is_asked_for_an_id_that_a_call_has_brought():
    (job_id,) = ids(GROWS, 0, 2)
    assert turn(GROWS, {2: moves(job_id)}, {}).exports == (Export(0, 2, (job_id,)),)


def test_ids_that_calls_have_brought_come_first(monkeypatch):
    monkeypatch.setattr(resharding, "TRANSFER_IDS", 2)
    first, second, third = ids(GROWS, 0, 2, 3)
    done = turn(GROWS, {0: moves(first, second), 2: moves(third)}, {})
    assert done.exports == (Export(0, 2, (third, first)),)


def test_what_was_in_processing_and_strays_leave_too():
    runs, dead = ids(GROWS, 1, 3, 2)
    (stays,) = ids(GROWS, 1, 1)
    done = turn(GROWS, {1: moves(inflight=(runs, stays))}, {1: [dead]})
    assert done.exports == (Export(1, 3, (runs, dead)),)


def test_a_transfer_that_is_on_its_way_is_asked_for_again():
    assert turn(GROWS, {0: moves(pending=(2,))}, {}).exports == (Export(0, 2),)


@pytest.mark.parametrize(
    "found",
    [
        moves(*ids(GROWS, 0, 2)),
        moves(inflight=ids(GROWS, 0, 2)),
        moves(*ids(GROWS, 0, 0), waiting=2),
        moves(gen=0),
    ],
)
def test_a_source_that_an_id_may_leave_is_not_sorted(found):
    assert not has_sorted(GROWS, 0, found)


def test_a_source_is_finished_when_nothing_is_on_its_way():
    stays = ids(GROWS, 0, 0)
    assert is_finished(GROWS, 0, moves(*stays, inflight=stays))
    assert not is_finished(GROWS, 0, moves(pending=(2,)))


def test_what_comes_back_to_a_finished_source_is_all_that_leaves_it():
    stays, leaves = ids(SHRINKS, 0, 0), ids(SHRINKS, 3, 1)
    assert not has_come_back(SHRINKS, 0, moves(*stays, inflight=stays, counts=5))
    # More wait than were read.
    assert not has_come_back(SHRINKS, 0, replace(moves(*stays), waiting=100))
    back = {"pending": (1,), "staying": True, "given_elsewhere": "a 1 1 server", "counts": 5, "gen": 0}
    for name, value in back.items():
        assert has_come_back(SHRINKS, 3, replace(moves(), **{name: value}))
    assert has_come_back(SHRINKS, 3, moves(*leaves))
    assert has_come_back(SHRINKS, 3, moves(inflight=leaves))


def test_an_owner_is_silent_when_its_lease_has_not_changed_for_its_time():
    owners = SilentOwners(10.0)
    owners.observed(3, "a 1 1", 0.0)
    owners.observed(3, "a 1 1", 10.0)
    assert [owners.silent(3, now) for now in (0.0, 10.4, 10.5)] == ["", "", "a 1 1"]
    owners.observed(3, "a 1 2", 11.0)
    assert [owners.silent(3, now) for now in (11.0, 21.4, 21.5)] == ["", "", "a 1 2"]
    owners.observed(3, "", 30.0)
    assert owners.silent(3, 100.0) == owners.silent(4, 100.0) == ""


@pytest.mark.parametrize("shards, left", [(None, ["", ""]), ([1], ["", "b"])])
def test_an_owner_that_could_not_renew_is_watched_from_anew(shards, left):
    owners = SilentOwners(10.0)
    owners.observed(1, "a", 0.0)
    owners.observed(2, "b", 0.0)
    owners.doubted(shards)
    assert [owners.silent(index, 20.0) for index in (1, 2)] == left


def test_counts_leave_a_shard_that_is_retired_after_all_else():
    assert last_export(SHRINKS, 3, moves(counts=5)) == Export(3, 1, counts=True)
    assert not is_finished(SHRINKS, 3, moves(counts=5))
    assert last_export(SHRINKS, 3, moves(*ids(SHRINKS, 3, 1), counts=5)) is None
    assert last_export(SHRINKS, 1, moves(counts=5)) is None
    assert is_finished(SHRINKS, 1, moves(counts=5))


def test_a_shard_that_the_new_number_does_not_have_is_retired():
    assert [SHRINKS.sealed(index) for index in range(4)] == ["2", "2", "retired", "retired"]


@pytest.mark.parametrize(("count", "round_of"), [(1, 1), (16, 1), (17, 2), (96, 6), (384, 24), (1000, 24)])
def test_turns_go_round_over_all_shards(count, round_of):
    migration = Migration(1, Phase.MOVE, Layout(count, 1))
    assert turns_of_round(migration) == round_of
    turns = [shards_of_turn(migration, number) for number in range(2 * round_of)]
    assert all(turns)
    assert sorted(index for turn in turns for index in turn) == sorted(2 * list(range(count)))


def share(pace, movers=1):
    """The part of the time that movers work together."""
    return movers * 0.01 / (0.01 + pace.pause_after(0.01, movers))


def paced(*requests):
    """After requests that took so long (s), again and again."""
    pace = Pace()
    for seconds in 50 * requests:
        pace.asked(seconds)
    return pace


@pytest.mark.parametrize("movers", [1, 2, 8])
def test_movers_together_leave_a_part_of_an_idle_redis(movers):
    assert share(paced(0.001, 0.0015), movers) == pytest.approx(LARGEST_SHARE)


@pytest.mark.parametrize("movers", [1, 8])
def test_movers_take_their_part_of_what_other_work_leaves(movers):
    # Redis is busy for others in a fifth of the time, whatever the way there takes.
    for way in (0.0001, 0.01):
        pace = paced(way, 9 * way, way, 2 * way, way)
        assert pace.busy == pytest.approx(0.2, abs=0.05)
        assert share(pace, movers) == pytest.approx(0.8 * LARGEST_SHARE, abs=0.04)


def test_movers_go_on_slowly_while_redis_is_always_busy():
    busy = paced(0.0001, *[0.05] * 100)
    assert share(busy) == pytest.approx(LEAST_SHARE)
    for _ in range(50):
        busy.asked(0.0001)
    assert share(busy) == pytest.approx(LARGEST_SHARE, abs=0.05)


def test_a_mover_that_was_frozen_in_a_turn_goes_on_soon():
    assert Pace().pause_after(3600.0, 8) == pytest.approx((8 / LARGEST_SHARE - 1) * LONGEST_TURN)


@pytest.mark.parametrize(("former", "shards"), [(4, 4096), (24, 48), (48, 24), (4096, 1)])
def test_the_pages_of_each_turn_share_its_jobs_among_its_sources(former, shards):
    migration = Migration(1, Phase.MOVE, Layout(shards, former))
    for number in range(turns_of_round(migration)):
        found = pages_of(migration, shards_of_turn(migration, number))
        sources = [page for index, page in found.items() if index < former]
        # A turn without a source would sort nothing; there is one where there are enough sources.
        assert not sources or 500 < sum(sources) <= 1000
        assert bool(sources) == (number < former)
        assert min(found.values()) >= 1


def test_a_shard_has_a_page_also_in_a_large_turn():
    assert set(pages_of(Migration(1, Phase.MOVE, Layout(4096, 4000)), range(4096)).values()) == {1}


def test_in_a_pause_ids_stay_unless_calls_have_brought_them():
    stays, leaves, arrives = ids(GROWS, 0, 0), ids(GROWS, 0, 2), ids(GROWS, 1, 3)
    found = {0: moves(*stays, *leaves, inflight=leaves, pending=(2,)), 3: moves(*arrives)}
    staying, done = paused_turn(GROWS, found)
    assert staying == {0: leaves}
    assert done.relays == {0: stays}
    assert done.exports == (Export(0, 2), Export(1, 3, arrives))


def test_a_shard_is_not_finished_while_jobs_that_leave_it_may_be_claimed():
    assert not is_finished(GROWS, 0, moves(staying=True))


def test_the_cost_of_a_migration():
    def leaving(former, shards):
        return cost("orders", Layout(shards, former), 600, 1200).leaving

    assert (leaving(24, 48), leaving(48, 24), leaving(2, 3), leaving(5, 5)) == (300, 300, 400, 0)
    found = cost("orders", Layout(48, 24), 600, 1200)
    assert (found.leaving_bytes, found.seconds) == (600, 600 / resharding.JOBS_PER_SECOND)
