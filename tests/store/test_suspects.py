"""Rule 8: who was in processing when an owner died runs alone, and only a payload's own deaths count."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest

from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Call, Disposition, Merge, Settlement
from celery_lowkiq.rules.policies import NOT_ISOLATED, Isolation
from celery_lowkiq.store.keys import shard_keys
from tests.bound import Actions, Queries
from tests.store.helpers import ONE, SHARD, claim, contents, dead, end, ids_of, push, take

OWNERS = (f"owner-{number}" for number in itertools.count())
MAX = replace(ONE, merge=Merge.MAX)


def die_with(store, count=1, limit=10):
    """An owner takes the shard, claims, and dies."""
    for _ in range(count):
        claim(store, take(store, owner=next(OWNERS)), limit)


def test_unsettled_ids_of_a_dead_owner_run_alone_in_the_order_of_their_claims(store):
    first = take(store, owner="first")
    for job_id in ("c", "a", "b"):
        push(store, job_id, (job_id, 1), perform_in=1.0)
        claim(store, first)
    lease = take(store, owner="second")
    push(store, "later", ("x", 1))
    batches = []
    while (claimed := claim(store, lease)).jobs:
        batches.append([job.id for job in claimed.jobs])
        end(store, lease, claimed)
    assert batches == [["c"], ["a"], ["b"], ["later"]]


def test_what_an_owner_gave_up_unsettled_runs_again_at_once_and_is_no_suspect(store):
    push(store, "1", ("x", 1))
    lease = take(store, owner="first")
    claim(store, lease)
    assert not store.release(lease)
    assert store.release(lease, unsettled=True)
    assert store.release(lease, unsettled=True)
    next_lease = take(store, owner="second")
    claimed = claim(store, next_lease)
    assert ([job.id for job in claimed.jobs], claimed.suspect) == (["1"], False)
    with pytest.raises(NotOwner):
        end(store, lease, claimed)


def test_a_suspect_is_never_taken_after_others_into_their_batch(store):
    push(store, "suspect", ("x", 1), perform_in=1.0)
    die_with(store)
    for job_id in ("old-1", "old-2"):
        push(store, job_id, ("x", 1), perform_in=2.0)
    lease = take(store, owner=next(OWNERS))
    assert [job.id for job in claim(store, lease).jobs] == ["old-1", "old-2"]
    assert [job.id for job in claim(store, lease).jobs] == ["suspect"]


def test_without_leave_no_suspect_is_taken(store):
    push(store, "1", ("x", 1), perform_in=1.0)
    die_with(store)
    lease = take(store, owner=next(OWNERS))
    refused = store.claim(ONE, lease, 1, suspects=False)
    assert (refused.jobs, refused.suspect_due) == ((), True)
    assert refused.next_due is not None
    push(store, "2", ("y", 1))
    passing = store.claim(ONE, lease, 2, suspects=False)
    assert ([job.id for job in passing.jobs], passing.suspect, passing.suspect_due) == (["2"], False, False)
    for _ in range(2):
        taken = store.claim(ONE, lease, 3, suspects=True)
        assert ([job.id for job in taken.jobs], taken.suspect, taken.suspect_due) == (["1"], True, False)


def test_a_killer_is_found_and_its_neighbours_never_buried(store):
    """It runs in a batch of four ids; whoever runs it dies."""
    for number in range(4):
        store.push(ONE, [Call(f"id-{number}", b"good %d" % n, n, 1.0) for n in range(3)])
    store.push(ONE, [Call("id-2", b"killer", 1.5, 1.0)])
    runs, deaths = [], 0
    lease = take(store, owner=next(OWNERS))
    while (claimed := claim(store, lease)).jobs:
        payloads = [p.data for job in claimed.jobs for p in job.payloads]
        if b"killer" in payloads:
            deaths += 1
            lease = take(store, owner=next(OWNERS))
            continue
        runs += payloads
        end(store, lease, claimed)
    assert deaths == 1 + 1 + ONE.max_crashes
    (buried,) = Queries(store.client).morgue(ONE).items
    assert ([p.data for p in buried.payloads], buried.error) == ([b"killer"], ONE.poison_error)
    assert sorted(runs) == sorted(b"good %d" % n for n in range(3) for _ in range(4))


def test_only_deaths_of_one_and_the_same_payload_count(store):
    push(store, "1", ("b", 2), perform_in=1.0)
    die_with(store, 1 + 2)
    push(store, "1", ("a", 1))
    die_with(store, 2)
    assert dead(store, "1") is None
    die_with(store, 1)
    take(store, owner=next(OWNERS))
    assert dead(store, "1") == [("a", 1)]


def test_each_payload_of_one_that_runs_payload_by_payload_has_its_own_retries(store):
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    die_with(store, 2)
    lease = take(store, owner=next(OWNERS))
    end(store, lease, claim(store, lease), Disposition.RETRY, error=b"boom")
    claimed = claim(store, lease)
    assert contents(claimed) == {"1": [("a", 1)]}
    end(store, lease, claimed, Disposition.DIE, error=b"boom")
    (rest,) = claim(store, lease).jobs
    assert ([p.data for p in rest.payloads], rest.retry_count, rest.error) == ([b"b"], -1, None)


def test_deaths_are_forgotten_after_72_hours(store, client):
    push(store, "1", ("a", 1), perform_in=1.0)
    die_with(store, 1 + 2)
    take(store, owner=next(OWNERS))
    mark = client.hget(shard_keys(SHARD)["crash_marks"], "1")
    assert mark.count(b":") == 2
    seconds = int(mark.split()[1].split(b":")[0])
    client.hset(
        shard_keys(SHARD)["crash_marks"], "1", mark.replace(b"%d" % seconds, b"%d" % (seconds - 72 * 3600))
    )
    die_with(store, 1)
    take(store, owner=next(OWNERS))
    assert dead(store, "1") is None


def test_a_node_that_returns_alive_takes_back_what_its_epochs_counted(store, client):
    push(store, "1", ("a", 1), perform_in=1.0)
    die_with(store, 1)
    for _ in range(10):
        cut_off = take(store, owner=next(OWNERS))
        claim(store, cut_off)
        take(store, owner=next(OWNERS))
        store.retract_crashes(cut_off)
    assert dead(store, "1") is None


def call_and_die(store, count):
    store.push(ONE, [Call("1", b"killer", 1, 1.0, record=b"call")])
    die_with(store, count)


def test_a_killer_with_recorded_calls_is_handed_out_to_be_buried(store):
    """Somebody has to write their results, which no script can."""
    call_and_die(store, 1 + ONE.max_crashes)
    push(store, "1", ("later", 2))
    lease = take(store, owner=next(OWNERS))
    assert dead(store, "1") is None
    claimed = claim(store, lease)
    (job,) = claimed.jobs
    assert (job.retry_count, [p.data for p in job.payloads]) == (POISON_PILL_RETRY_COUNT, [b"killer"])
    assert [record.data for record in job.calls.records] == [b"call"]
    end(store, lease, claimed, Disposition.BURY, error=ONE.poison_error)
    assert dead(store, "1") == [("killer", 1)]
    (rest,) = claim(store, lease).jobs
    assert (rest.retry_count, [p.data for p in rest.payloads]) == (-1, [b"later"])


def test_a_payload_before_a_killer_is_not_buried_for_it(store):
    """Its call arrived after the last death, with a smaller score."""
    call_and_die(store, 1 + ONE.max_crashes)
    lease = take(store, owner=next(OWNERS))
    push(store, "1", ("earlier", 0))
    for data, retry_count in ((b"earlier", -1), (b"killer", POISON_PILL_RETRY_COUNT)):
        claimed = claim(store, lease)
        (job,) = claimed.jobs
        assert (job.retry_count, [p.data for p in job.payloads]) == (retry_count, [data])
        end(store, lease, claimed)


def test_who_dies_over_burying_it_condemns_it_again(store):
    call_and_die(store, 1 + ONE.max_crashes)
    die_with(store)
    (job,) = claim(store, take(store, owner=next(OWNERS))).jobs
    assert job.retry_count == POISON_PILL_RETRY_COUNT


def test_a_killer_that_failed_before_is_handed_out_as_one_and_without_isolation(store):
    call_and_die(store, ONE.max_crashes)
    lease = take(store, owner=next(OWNERS))
    (job,) = claim(store, lease).jobs
    failed = Settlement(job.id, job.claim, Disposition.RETRY, retry_count=0, isolation=Isolation(1, 5))
    store.settle(ONE, lease, [failed])
    die_with(store)
    (job,) = claim(store, take(store, owner=next(OWNERS))).jobs
    assert (job.retry_count, job.isolation) == (POISON_PILL_RETRY_COUNT, NOT_ISOLATED)


def test_a_death_that_is_taken_back_condemns_nobody(store):
    call_and_die(store, ONE.max_crashes)
    cut_off = take(store, owner=next(OWNERS))
    claim(store, cut_off)
    lease = take(store, owner=next(OWNERS))
    store.retract_crashes(cut_off)
    (job,) = claim(store, lease).jobs
    assert job.retry_count == -1


@pytest.mark.parametrize("disposition", [Disposition.DONE, Disposition.BURY])
def test_a_suspect_that_has_ended_leaves_no_mark(store, client, disposition):
    push(store, "1", ("a", 1), perform_in=1.0)
    die_with(store, 2)
    lease = take(store, owner=next(OWNERS))
    end(store, lease, claim(store, lease), disposition)
    assert not client.exists(shard_keys(SHARD)["crash_marks"])


def test_a_suspect_that_returns_or_fails_stays_one(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    die_with(store)
    lease = take(store, owner=next(OWNERS))
    end(store, lease, claim(store, lease), Disposition.RETURN)
    push(store, "2", ("b", 1), perform_in=9.0)
    assert contents(claim(store, lease, 1)) == {"2": [("b", 1)]}
    assert contents(claim(store, lease)) == {"1": [("a", 1)]}


def run_behind(store, lease, number, disposition=Disposition.DONE):
    """Run what is due, and call id 1 meanwhile. Returns the number of payloads, and whether as a suspect."""
    claimed = claim(store, lease)
    push(store, "1", (f"later-{number}", 100 + number))
    end(store, lease, claimed, disposition, error=b"boom")
    (job,) = (job for job in claimed.jobs if job.id == "1")
    return len(job.payloads), claimed.suspect


@pytest.mark.parametrize("disposition", [Disposition.DONE, Disposition.DIE])
def test_calls_after_a_crash_run_together_again(store, client, disposition):
    """An id with a call at any time ran payload by payload for ever, slower than its calls came."""
    push(store, "1", ("a", 1), ("b", 2), ("c", 3), perform_in=1.0)
    die_with(store, 2)
    lease = take(store, owner=next(OWNERS))
    assert [run_behind(store, lease, n, disposition) for n in range(3)] == [(1, True)] * 3
    assert not client.exists(shard_keys(SHARD)["crash_marks"])
    assert run_behind(store, lease, 3) == (3, False)


def test_a_suspect_joins_batches_again_after_it_ran_alone(store):
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    die_with(store)
    lease = take(store, owner=next(OWNERS))
    assert run_behind(store, lease, 0) == (2, True)
    push(store, "2", ("x", 1))
    assert run_behind(store, lease, 1) == (1, False)


def test_calls_before_a_killer_do_not_end_its_suspicion(store):
    """It would be merged with them again, and crash two workers each time."""
    push(store, "1", ("a", 1), ("killer", 999), perform_in=1.0)
    die_with(store, 2)
    lease = take(store, owner=next(OWNERS))
    assert [run_behind(store, lease, n) for n in range(9)] == [(1, True)] * 9


class Workers:
    """Run id 1 of a queue with merge="max"; a run of payload "killer" crashes."""

    def __init__(self, store):
        self._store, self._scores = store, itertools.count()
        self._lease = take(store, MAX, owner=next(OWNERS))
        self.runs, self.crashed = [], []

    def call(self, *payloads):
        for data in payloads:
            push(self._store, "1", (data, next(self._scores)), queue=MAX, perform_in=1.0)

    def run(self, *meanwhile):
        """Run what is due; these payloads are called between its claim and its end."""
        claimed = claim(self._store, self._lease)
        payloads = [p.data.decode() for job in claimed.jobs for p in job.payloads]
        self.call(*meanwhile)
        if "killer" in payloads:
            self.crashed.append(payloads)
            self._lease = take(self._store, MAX, owner=next(OWNERS))
        else:
            self.runs.append(payloads)
            end(self._store, self._lease, claimed, queue=MAX)

    @property
    def buried(self):
        return [data for data, _ in dead(self._store, "1") or []]


@pytest.mark.parametrize("calls", [("other-{}", "killer"), ("killer", "other-{}"), ("killer",)])
def test_a_killer_is_found_that_is_called_again_and_again(store, calls):
    """With merge="max", calls move it behind others, with which it ran again when its suspicion ended."""
    workers = Workers(store)
    workers.call("first", "killer")
    for number in range(30):
        workers.run(*(data.format(number) for data in calls) if not workers.buried else ())
    assert workers.buried == ["killer"]
    assert workers.crashed[2:] == [["killer"]] * (len(workers.crashed) - 2)
    # Once more for each time that it was called before the burial: in its old place, and in the last one.
    assert len(workers.crashed) <= 2 + 3 * MAX.max_crashes
    runs = [data for run in workers.runs for data in run]
    assert sorted(set(runs)) == sorted(runs)
    assert not store.client.servers.redis.exists(shard_keys(SHARD)["crash_marks"])


@pytest.mark.parametrize("seed", range(20))
def test_killers_among_random_calls_are_found(store, seed):
    """Callers repeat payloads, before and after others."""
    chance, workers = random.Random(seed), Workers(store)
    workers.call("a", "killer")
    for _ in range(60):
        some = chance.choices(["a", "b", "c", "d", "killer"], k=chance.randrange(3))
        workers.run(*some if not workers.buried else ())
    assert workers.buried == ["killer"]
    together = [run for run in workers.crashed if run != ["killer"]]
    assert len(together) <= 2
    assert not store.client.servers.redis.exists(shard_keys(SHARD)["crash_marks"])


def test_a_payload_of_a_crash_that_is_called_again_and_again_ends_its_suspicion(store, client):
    """It ran alone in its old place; with its later call, it runs among others."""
    push(store, "1", ("a", -2), ("b", -1), queue=MAX, perform_in=1.0)
    die_with(store, 2)
    workers = Workers(store)
    for number in range(6):
        workers.run(f"x-{number}", f"y-{number}", "b")
    assert workers.runs[:3] == [["a"], ["b"], ["x-0", "y-0", "x-1", "y-1", "b"]]
    assert workers.runs[3:] == [[f"x-{n}", f"y-{n}", "b"] for n in (2, 3, 4)]
    assert not client.exists(shard_keys(SHARD)["crash_marks"])


def test_a_success_of_another_payload_clears_no_crash_count(store):
    workers = Workers(store)
    workers.call("killer")
    for number in range(1 + MAX.max_crashes):
        workers.run("killer", f"other-{number}")
        workers.run()
        push(store, "1", (f"earlier-{number}", -1 - number), queue=MAX, perform_in=1.0)
        workers.run()
    assert workers.buried == ["killer"]


def test_a_suspicion_ends_when_none_of_its_payloads_is_left(store, client):
    """The one with the largest score was deleted by hand; later calls have smaller ones."""
    push(store, "1", ("a", 1), ("killer", 999), perform_in=1.0)
    die_with(store, 2)
    lease = take(store, owner=next(OWNERS))
    assert run_behind(store, lease, 0) == (1, True)
    assert Actions(store.client).edit(ONE, "1", b"killer", None)
    push(store, "1", ("more", 5))
    assert run_behind(store, lease, 1) == (2, False)
    assert not client.exists(shard_keys(SHARD)["crash_marks"])


def test_retries_do_not_end_a_suspicion(store):
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    die_with(store, 2)
    lease = take(store, owner=next(OWNERS))
    assert [run_behind(store, lease, n, Disposition.RETRY) for n in range(3)] == [(1, True)] * 3


def test_a_payload_that_was_buried_is_one_less(store, client):
    push(store, "1", ("killer", 1), ("b", 2), perform_in=1.0)
    die_with(store, 2 + ONE.max_crashes)
    lease = take(store, owner=next(OWNERS))
    assert dead(store, "1") == [("killer", 1)]
    assert run_behind(store, lease, 0) == (1, True)
    assert run_behind(store, lease, 1) == (1, False)


def test_earlier_versions_read_a_mark(store, client):
    """They ignore words without a colon among the crashes."""
    push(store, "1", ("a", 1), perform_in=1.0)
    die_with(store, 2)
    take(store, owner=next(OWNERS))
    mark = client.hget(shard_keys(SHARD)["crash_marks"], "1")
    assert re.fullmatch(rb"2@1 \d+:\d+ =[0-9a-f]{10}\na", mark)


def test_planted_marks_do_not_break_a_claim(store, client):
    push(store, "1", ("a", 1), perform_in=1.0)
    push(store, "2", ("b", 1), perform_in=2.0)
    client.hset(shard_keys(SHARD)["crash_marks"], mapping={"1": b"\xff", "2": b"", "3": b"9 x:y\n"})
    lease = take(store)
    assert contents(claim(store, lease)) == {"1": [("a", 1)]}
    assert contents(claim(store, lease)) == {"2": [("b", 1)]}
    store.retract_crashes(lease)


@pytest.mark.parametrize(
    "end_it",
    [
        lambda actions: actions.delete(ONE, ["1"]),
        lambda actions: actions.bury(ONE, ["1"], b"by hand"),
        lambda actions: actions.edit(ONE, "1", b"x", None),
    ],
    ids=["delete", "kill", "edit"],
)
def test_a_suspect_that_somebody_takes_out_of_the_queue_leaves_no_mark(store, end_it):
    push(store, "1", ("x", 1))
    die_with(store)
    take(store, owner=next(OWNERS))
    marks = shard_keys(SHARD)["crash_marks"]
    assert store.client.servers.redis.exists(marks)
    assert end_it(Actions(store.client))
    assert not store.client.servers.redis.exists(marks)


def test_a_suspect_that_runs_keeps_its_mark_when_what_waits_behind_it_is_deleted(store):
    push(store, "1", ("x", 1))
    die_with(store)
    claim(store, take(store, owner=next(OWNERS)))
    push(store, "1", ("y", 2))
    assert Actions(store.client).delete(ONE, ["1"]) == 1
    assert store.client.servers.redis.hexists(shard_keys(SHARD)["crash_marks"], "1")


def test_a_job_that_kills_its_owners_is_not_delivered_for_ever(store):
    """Lowkiq's fault L3."""
    push(store, "1", ("killer", 1), perform_in=1.0)
    deliveries = 0
    for number in range(20):
        deliveries += len(claim(store, take(store, owner=f"owner-{number}")).jobs)
    assert deliveries == 1 + ONE.max_crashes
    assert dead(store, "1") == [("killer", 1)]


def crash(store, lease, claimed):
    """The process of the run died; the owner lives."""
    return end(store, lease, claimed, Disposition.CRASH, retry_count=ONE.max_crashes, error=ONE.poison_error)


def test_a_process_that_dies_counts_as_an_owner_that_does(store):
    """It runs in a batch of two ids; its owner goes on."""
    push(store, "good", ("x", 1), perform_in=1.0)
    push(store, "killer", ("y", 1), perform_in=1.0)
    lease, batches = take(store), []
    while (claimed := claim(store, lease)).jobs:
        batches.append((ids_of(claimed), claimed.suspect))
        if "killer" in ids_of(claimed):
            crash(store, lease, claimed)
        else:
            end(store, lease, claimed)
    alone = [(["killer"], True)] * ONE.max_crashes
    assert batches[0] == (["good", "killer"], False)
    assert sorted(batches[1:]) == [(["good"], True), *alone]
    assert dead(store, "killer") == [("y", 1)]


def test_crashes_of_processes_are_not_taken_back_with_those_of_their_owner(store):
    push(store, "1", ("x", 1), perform_in=1.0)
    lease = take(store)
    crash(store, lease, claim(store, lease))
    for _ in range(ONE.max_crashes):
        assert dead(store, "1") is None
        store.retract_crashes(lease)
        crash(store, lease, claim(store, lease))
    assert dead(store, "1") == [("x", 1)]
