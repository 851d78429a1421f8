"""Paused ids: what waits of them is held, whatever brings it there; nothing is lost."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec
from celery_lowkiq.store.actions import DEAD, FAILED, STEP
from celery_lowkiq.store.keys import SHARD_KEYS, shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.resharding import reshard
from tests.bound import Actions, Queries
from tests.store.helpers import (
    ONE,
    SHARD,
    claim,
    contents,
    end,
    ids_of,
    listening,
    push,
    stats,
    take,
    waiting,
)

TWO = QueueSpec("two", shards=2, batch_size=1000)


def held_ids(store, queue=ONE):
    return {job.id for job in Queries(store.client).jobs(queue).items if job.paused}


def test_what_waits_of_a_paused_id_is_held_and_comes_back_at_its_own_time(store, pausing):
    push(store, "1", ("a", 1), ("b", 2), perform_in=5.0)
    push(store, "2", ("c", 1), perform_in=6.0)
    lease = take(store)
    assert pausing.switch_ids(ONE, ["1"], paused=True) == 1
    assert store.next_due([SHARD])[0].next_due == 6.0
    assert ids_of(claim(store, lease)) == ["2"]
    assert (stats(store).length, stats(store).paused_jobs, Queries(store.client).paused(ONE).ids) == (1, 1, 1)
    assert (stats(store).lag, stats(store).oldest > 1e9) == (0, True)
    assert pausing.switch_ids(ONE, ["1"], paused=False) == 1
    assert contents(claim(store, lease)) == {"1": [("a", 1), ("b", 2)]}
    assert (stats(store).paused_jobs, Queries(store.client).paused(ONE).ids) == (0, 0)


def test_ids_may_be_paused_and_resumed_again(store, pausing):
    push(store, "1", ("a", 1), perform_in=5.0)
    assert [
        pausing.switch_ids(ONE, ["1", "2", "1"], paused=True),
        pausing.switch_ids(ONE, ["2", "1"], paused=True),
    ] == [2, 0]
    (first, second) = Queries(store.client).paused_ids(ONE).items
    assert {first.id, second.id} == {"1", "2"}
    assert pausing.switch_ids(ONE, ["1", "3"], paused=False) == 1
    assert pausing.switch_ids(ONE, ["1"], paused=False) == 0
    assert [paused.id for paused in Queries(store.client).paused_ids(ONE).items] == ["2"]
    assert waiting(store, "1") == [("a", 1)]


def test_later_pushes_merge_into_the_held_job(store, pausing):
    pausing.switch_ids(ONE, ["1"], paused=True)
    lease = take(store)
    push(store, "1", ("a", 2), perform_in=5.0)
    store.push(ONE, [Call("1", b"b", 1.0, 7.0), Call("2", b"c", 1.0, 6.0), Call("1", b"d", 3.0, 8.0)])
    assert held_ids(store) == {"1"}
    assert ids_of(claim(store, lease)) == ["2"]
    pausing.switch_ids(ONE, ["1"], paused=False)
    claimed = claim(store, lease)
    assert contents(claimed) == {"1": [("b", 1), ("a", 2), ("d", 3)]}
    assert claimed.jobs[0].perform_in == 5.0


@pytest.mark.parametrize("disposition", [Disposition.RETRY, Disposition.RETURN, Disposition.DIE])
def test_what_comes_back_of_a_paused_id_is_held(store, pausing, disposition):
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    pausing.switch_ids(ONE, ["1"], paused=True)
    assert end(store, lease, claimed, disposition, error=b"boom").next_due is None
    assert held_ids(store) == {"1"}
    pausing.switch_ids(ONE, ["1"], paused=False)
    assert ids_of(claim(store, lease)) == ["1"]


def test_a_job_that_is_done_leaves_its_id_paused(store, pausing):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    pausing.switch_ids(ONE, ["1"], paused=True)
    end(store, lease, claimed)
    push(store, "1", ("b", 2))
    assert claim(store, lease).jobs == ()
    assert held_ids(store) == {"1"}


def test_a_takeover_recovers_into_held_and_so_do_strays(store, pausing):
    for job_id in ("1", "2"):
        push(store, job_id, ("a", 1), perform_in=1.0)
    claim(store, take(store))
    pausing.switch_ids(ONE, ["1"], paused=True)
    heir = take(store, owner="heir")
    assert held_ids(store) == {"1"}
    claimed = claim(store, heir)
    assert ids_of(claimed) == ["2"]
    pausing.switch_ids(ONE, ["2"], paused=True)
    assert claim(store, heir, in_hand=OpenClaims(claimed.number)).jobs == ()
    assert held_ids(store) == {"1", "2"}


def test_ten_thousand_paused_ids(store, pausing):
    """They are pushed, fail, and are recovered, and none of them is ever due."""
    ids = [str(number) for number in range(10_000)]
    store.push(TWO, [Call(job_id, b"x", 1, 1.0) for job_id in ids])
    leases = [take(store, TWO, shard) for shard in range(2)]
    failing = [claim(store, lease, 1000) for lease in leases]
    left = [claim(store, lease, 1000) for lease in leases]
    progress = []
    assert pausing.switch_ids(TWO, ids, progress.append, paused=True) == 10_000
    assert progress[-1] == 10_000
    assert len(progress) >= 10_000 // STEP
    for lease, claimed in zip(leases, failing, strict=True):
        end(store, lease, claimed, Disposition.RETRY, queue=TWO, error=b"boom")
    heirs = [take(store, TWO, shard, owner="heir") for shard in range(2)]
    assert all(len(claimed.jobs) == 1000 for claimed in left)
    store.push(TWO, [Call(job_id, b"y", 2) for job_id in ids])
    found = stats(store, TWO)
    assert (found.length, found.paused_jobs, found.retries, found.busy, found.lag) == (
        10_000,
        10_000,
        2000,
        0,
        0,
    )
    assert [due.next_due for due in store.next_due(TWO.shard_refs())] == [None, None]
    assert pausing.switch_ids(TWO, ids, paused=False) == 10_000
    payloads = []
    for heir in heirs:
        while (claimed := claim(store, heir, 1000)).jobs:
            payloads += [tuple(p.data for p in job.payloads) for job in claimed.jobs]
            end(store, heir, claimed, queue=TWO)
    # Suspects are claimed alone; all came, with both payloads.
    assert payloads == [(b"x", b"y")] * 10_000


def test_resuming_an_id_wakes_lanes_at_once(store, pausing):
    push(store, "1", ("a", 1), perform_in=5.0)
    pausing.switch_ids(ONE, ["1"], paused=True)
    with listening(store) as heard:
        pausing.switch_ids(ONE, ["1"], paused=False)
        assert heard() == (SHARD, 5.0)


def test_pushes_of_a_paused_id_wake_nobody(store, pausing):
    pausing.switch_ids(ONE, ["1"], paused=True)
    with listening(store) as heard:
        push(store, "1", ("a", 1), perform_in=8e9)
        push(store, "2", ("b", 1), perform_in=9e9)
        assert heard() == (SHARD, 9e9)


# -- what people do with held jobs


def test_listings_show_held_jobs(store, pausing):
    store.push(TWO, [Call(f"{n:02d}", b"x", 1, 1000.0 + n) for n in range(40)])
    pausing.switch_ids(TWO, [f"{n:02d}" for n in range(0, 40, 2)], paused=True)
    queries = Queries(store.client)
    listed = []
    after = None
    while True:
        page = queries.jobs(TWO, Listing("perform_in", limit=7, after=after))
        listed += [(job.id, job.paused) for job in page.items]
        after = page.next
        if after is None:
            break
    assert listed == [(f"{n:02d}", n % 2 == 0) for n in range(40)]
    assert {job.id for job in queries.jobs(TWO, Listing(prefix="1", limit=100)).items} == {
        str(n) for n in range(10, 20)
    }
    assert queries.job(TWO, "04").waiting.paused
    assert not queries.job(TWO, "05").waiting.paused


def test_run_now_all_leaves_held_jobs_held(store, pausing, actions):
    push(store, "1", ("a", 1), perform_in=9e9)
    push(store, "2", ("b", 1), perform_in=9e9)
    pausing.switch_ids(ONE, ["1"], paused=True)
    assert actions.run_now_all(ONE) == 2
    lease = take(store)
    assert ids_of(claim(store, lease)) == ["2"]
    pausing.switch_ids(ONE, ["1"], paused=False)
    assert ids_of(claim(store, lease)) == ["1"]


def test_delete_and_kill_reach_held_jobs_and_leave_ids_paused(store, client, pausing, actions):
    lease = take(store)
    for job_id in ("failed", "fresh"):
        push(store, job_id, ("a", 1), perform_in=1.0)
    end(store, lease, claim(store, lease, 1), Disposition.RETRY, error=b"boom")
    pausing.switch_ids(ONE, ["failed", "fresh"], paused=True)
    assert actions.bury(ONE, FAILED, b"", only_failed=True) == 1
    assert actions.delete(ONE, ["fresh", "nobody"]) == 1
    assert (stats(store).length, stats(store).paused_jobs, stats(store).morgue_length) == (0, 0, 1)
    assert actions.requeue(ONE, DEAD) == 1
    assert held_ids(store) == {"failed"}
    actions.delete(ONE, ["failed"])
    pausing.switch_ids(ONE, ["failed", "fresh"], paused=False)
    kept = {name for name in SHARD_KEYS if client.exists(shard_keys(SHARD)[name])}
    assert kept <= {"lease", "meta", "senders"}


def test_held_jobs_stay_held_in_their_new_shards(store, pausing):
    pausing.switch_ids(TWO, ["1"], paused=True)
    push(store, "1", ("x", 1), queue=TWO)
    three = QueueSpec("two", shards=3)
    reshard(store.mover(TWO), TWO, 3)
    assert waiting(store, "1", three) == [("x", 1)]
    assert stats(store, three).paused_jobs == 1


def test_ids_stay_paused_when_an_empty_queue_gets_another_count(store, client, pausing):
    ids = [str(n) for n in range(2500)]
    push(store, "other", ("x", 1), queue=TWO)
    pausing.switch_ids(TWO, ids, paused=True)
    since = {paused.id: paused.since for paused in Queries(store.client).paused_ids(TWO, limit=1000).items}
    Actions(store.client).delete(TWO, ["other"])
    three = QueueSpec("two", shards=3)
    reshard(store.mover(TWO), TWO, 3)
    store.push(three, [Call(job_id, b"x") for job_id in ids])
    assert (stats(store, three).paused_jobs, Queries(store.client).paused(three).ids) == (2500, 2500)
    again = {paused.id: paused.since for paused in Queries(store.client).paused_ids(three, limit=1000).items}
    assert since.items() == again.items()
    assert pausing.switch_ids(three, ids, paused=False) == 2500
    assert not any(client.exists(shard_keys(shard)["paused"]) for shard in three.shard_refs())


def test_a_step_is_bounded(store, pausing):
    calls = []
    original = store.client.call
    store.client.call = lambda call: calls.append(call) or original(call)
    pausing.switch_ids(ONE, (str(n) for n in range(2500)), paused=True)
    pausing.switch_ids(ONE, (str(n) for n in range(2500)), paused=False)
    assert [len(call.values) for call in calls] == [3 + STEP] * (2 * 2500 // STEP)


def test_an_id_that_was_paused_after_its_job_was_laid_down_leaves_nothing_behind(store, client):
    """As when somebody pushes to a queue with a new count before its ids are paused there again."""
    push(store, "1", ("a", 1), ("b", 2), perform_in=5.0)
    client.zadd(shard_keys(SHARD)["paused"], {"1": 1})
    lease = take(store)
    end(store, lease, claim(store, lease))
    assert store.next_due([SHARD])[0].next_due is None
    assert not client.exists(shard_keys(SHARD)["due"])
