"""The log of a failing job: its last tries, for as long as the job is there."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Disposition, PayloadRemoval, Settlement
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.records import MAX_TRY_BYTES, try_text
from celery_lowkiq.store.repairs import Repairs
from tests.bound import Actions, Queries
from tests.store.helpers import ONE, SHARD, claim, push, take


def fail(store, lease, text, disposition=Disposition.RETRY, retry_count=0, bad=(), count=10):
    """Let what is due fail with that text in the log."""
    claimed = claim(store, lease, count)
    settlements = [
        Settlement(job.id, claimed.number, disposition, retry_count, 0.0, b"error", bad, try_text=text)
        for job in claimed.jobs
    ]
    store.settle(ONE, lease, settlements)


def texts(store, job_id="1"):
    return [one.error for one in Queries(store.client).tries(ONE, job_id)]


def is_forgotten(store):
    return not store.client.servers.redis.exists(shard_keys(SHARD)["tries"])


def test_each_try_is_logged_with_its_time_number_and_node(store):
    push(store, "1", ("a", 1))
    lease = take(store, owner="celery@host-1234-abcdef012345")
    for number in range(3):
        fail(store, lease, b"error %d" % number, retry_count=number)
    tries = Queries(store.client).tries(ONE, "1")
    assert [(one.retry_count, one.node, one.error) for one in tries] == [
        (number, "celery@host-1234", f"error {number}") for number in range(3)
    ]
    assert sorted(tries, key=lambda one: one.at) == list(tries)


def test_the_last_ten_are_kept(store):
    push(store, "1", ("a", 1))
    lease = take(store)
    for number in range(25):
        fail(store, lease, b"%d" % number, retry_count=number)
    assert texts(store) == [str(number) for number in range(15, 25)]


@pytest.mark.parametrize("together", [False, True])
def test_a_success_ends_the_log(store, together):
    push(store, "1", ("a", 1))
    lease = take(store)
    fail(store, lease, b"x")
    if together:
        push(store, "2", ("a", 1))
    claimed = claim(store, lease)
    store.settle(ONE, lease, [Settlement(job.id, claimed.number, Disposition.DONE) for job in claimed.jobs])
    assert is_forgotten(store)


def test_in_the_morgue_it_stays_until_the_job_is_deleted(store):
    push(store, "1", ("a", 1), ("b", 2))
    lease = take(store)
    fail(store, lease, b"x")
    fail(store, lease, b"y", Disposition.DIE)
    claimed = claim(store, lease)
    store.settle(ONE, lease, [Settlement("1", claimed.number, Disposition.DONE)])
    assert texts(store) == ["x", "y"]
    Actions(store.client).delete_dead(ONE, ["1"])
    assert is_forgotten(store)


def test_a_job_that_is_deleted_takes_it_along(store):
    push(store, "1", ("a", 1))
    fail(store, take(store), b"x")
    Actions(store.client).delete(ONE, ["1"])
    assert is_forgotten(store)


def test_a_job_without_its_last_payload_takes_it_along(store):
    push(store, "1", ("a", 1))
    fail(store, take(store), b"x")
    assert Actions(store.client).edit(ONE, "1", b"a", None)
    assert is_forgotten(store)


def test_a_job_of_which_nothing_is_left_has_none(store):
    push(store, "1", ("a", 1))
    fail(store, take(store), b"x", bad=(PayloadRemoval(0, None),))
    assert is_forgotten(store)


def test_what_was_planted_there_is_passed_by(store):
    log = b"\xff\n1.5\t0\tnode\tfine\nnonsense\n1e9\t0\tn\tx\n1\t2\t3\n"
    store.client.servers.redis.hset(shard_keys(SHARD)["tries"], "1", log)
    assert texts(store) == ["fine"]


@pytest.mark.parametrize(
    "error, kept",
    [
        (None, b""),
        ("", b""),
        ("Traceback\n  File x\nValueError: a\tb\n\n", b"ValueError: a b"),
        ("\ud800", b"\\ud800"),
        ("x" * 1000, b"x" * MAX_TRY_BYTES),
    ],
)
def test_the_last_line_of_an_error(error, kept):
    assert try_text(error) == kept


def test_of_a_dead_payload_it_stays_when_the_waiting_job_is_deleted_and_the_other_way_round(store):
    push(store, "1", ("a", 1), ("b", 2))
    lease = take(store)
    fail(store, lease, b"x")
    fail(store, lease, b"y", Disposition.DIE)
    actions = Actions(store.client)
    assert actions.delete(ONE, ["1"]) == 1
    assert texts(store) == ["x", "y"]
    push(store, "1", ("c", 3))
    assert actions.delete_dead(ONE, ["1"]) == 1
    assert texts(store) == ["x", "y"]
    assert actions.edit(ONE, "1", b"c", None)
    assert is_forgotten(store)


def test_of_a_running_job_it_stays_when_what_waits_behind_it_is_deleted(store):
    push(store, "1", ("a", 1))
    lease = take(store)
    fail(store, lease, b"x")
    claim(store, lease)
    push(store, "1", ("b", 2))
    assert Actions(store.client).delete(ONE, ["1"]) == 1
    assert texts(store) == ["x"]


def test_a_repair_reads_retry_count_and_error_from_the_log(store):
    push(store, "1", ("a", 1))
    lease = take(store)
    for number in range(3):
        fail(store, lease, b"error %d" % number, retry_count=number)
    keys = shard_keys(SHARD)
    for lost in ("failed", "errors"):
        store.client.servers.redis.delete(keys[lost])
        Repairs(store.client).mend(ONE, SHARD)
        (job,) = Queries(store.client).jobs(ONE, Listing("retry_count")).items
        assert (job.retry_count, job.error) == (2, b"error 2" if lost == "errors" else b"error")
