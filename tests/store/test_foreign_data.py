"""Data of somebody else in our keys: what reads it goes on, or raises an error of the package."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.errors import FormatMismatch, InvalidCall, StoreError
from celery_lowkiq.rules.models import Call
from celery_lowkiq.store.actions import repair_queue
from celery_lowkiq.store.call_records import CallReader, digest
from celery_lowkiq.store.claims import CLAIM_BYTES
from celery_lowkiq.store.keys import TrackerKeys, queue_key, shard_keys
from celery_lowkiq.store.records import UnexpectedReply, read_or_error, reads_replies
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.trackers import TrackerStore
from tests.bound import Queries
from tests.store.helpers import ONE, SHARD, claim, push, take
from tests.store.test_tries import fail

pytestmark = pytest.mark.one_server
KEYS = shard_keys(SHARD)


def test_a_call_without_a_number_is_skipped_and_the_others_are_read(store, client):
    """Its ValueError ended the worker's lane, and the worker with it."""
    store.push(ONE, [Call("1", b"x", 1.0, 1.0, record=b"of a call")])
    for foreign in (b"1\0" + digest(b"x") + b"(.+)+$ no number", b"1\0" + digest(b"x"), b"1\0"):
        client.zadd(KEYS["calls"], {foreign: 0.0})
    (job,) = claim(store, take(store)).jobs
    (records,) = CallReader(store.client).pages(SHARD, job)
    assert [record.data for record in records] == [b"of a call"]


def test_of_a_record_with_very_many_payloads_the_first_are_read(store, client):
    """20 million of them stopped Redis, and so all lanes, for more than a minute."""
    push(store, "1", ("x", 1), perform_in=1.0)
    client.hset(KEYS["jobs"], "1", b"1 1 x" * 1_000_000)
    (shown,) = Queries(store.client).jobs(ONE).items
    assert shown.payload_count == 2049
    (job,) = claim(store, take(store)).jobs
    assert {payload.data for payload in job.payloads} == {b"x"}


def test_of_a_record_that_is_too_large_a_listing_reads_nothing(store, client):
    """One of 100 MB stopped Redis for half a second on each page that showed it."""
    push(store, "1", ("x", 1), perform_in=1.0)
    client.hset(KEYS["jobs"], "1", b"1  " + b"x" * 20_000_000)
    (shown,) = Queries(store.client).jobs(ONE).items
    assert [(each.data, each.cut_from) for each in shown.payloads] == [(b"", 20_000_003)]


def test_a_claim_reads_a_record_that_is_too_large_once(store, client):
    """Each of three reads of 100 MB stopped Redis for about half a second."""

    def reads():
        counts = client.info("commandstats")
        return sum(counts.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hget", "hmget"))

    push(store, "1", ("x", 1), perform_in=1.0)
    client.hset(KEYS["jobs"], "1", b"1  " + b"x" * 5_000_000)
    lease = take(store)
    before = reads()
    request = 1_000_000
    first = store.claim(ONE, lease, request)
    # Three of the lease and the shard's own numbers, and one of the record.
    assert reads() - before == 4
    assert [payload.data for payload in first.jobs[0].payloads] == [b"x" * (CLAIM_BYTES + 1)]
    # A claim that is sent again returns the same.
    assert store.claim(ONE, lease, request).jobs == first.jobs


def test_a_record_without_spaces_is_one_payload(store, client):
    push(store, "1", ("x", 1), perform_in=1.0)
    client.hset(KEYS["jobs"], "1", b"x" * 5_000_000)
    (job,) = claim(store, take(store)).jobs
    assert [payload.data for payload in job.payloads] == [b"x" * (CLAIM_BYTES + 1)]


def test_of_an_error_that_is_too_long_the_beginning_is_read(store, client):
    push(store, "1", ("x", 1), perform_in=1.0)
    client.zadd(KEYS["failed"], {"1": 0})
    client.hset(KEYS["errors"], "1", b"e" * 5_000_000)
    (shown,) = Queries(store.client).jobs(ONE).items
    (job,) = claim(store, take(store)).jobs
    assert len(shown.error) == len(job.error) == 262_144
    assert [payload.data for payload in job.payloads] == [b"x"]


def test_of_a_log_of_tries_that_is_too_long_the_end_is_read(store, client):
    push(store, "1", ("x", 1), perform_in=1.0)
    client.hset(KEYS["tries"], "1", b"1.0\t1\tnode\terror\n" * 250_000)
    assert 0 < len(Queries(store.client).tries(ONE, "1")) < 5000
    lease = take(store)
    fail(store, lease, b"boom")
    assert len(Queries(store.client).tries(ONE, "1")) == 1


def test_a_mark_of_a_crash_that_is_too_long_marks_nothing_more_than_the_id(store, client):
    push(store, "1", ("x", 1), perform_in=1.0)
    client.hset(KEYS["crash_marks"], "1", b"2@" + b"1" * 5_000_000)
    (job,) = claim(store, take(store)).jobs
    assert [payload.data for payload in job.payloads] == [b"x"]


def test_counters_that_are_no_numbers_count_nothing(store, client):
    """The reply ended at the first of them: a ValueError in pages and metrics."""
    push(store, "1", ("x", 1))
    client.hset(KEYS["meta"], mapping={"processed": "x", "failed": "", "dropped": "1e", "merged": "7"})
    stats = Queries(store.client).stats(ONE)
    assert (stats.length, stats.processed, stats.failed, stats.merged) == (1, 0, 0, 7)


@pytest.mark.parametrize("field, shown", [("enqueued", True), ("error", True), ("opened", False)])
@pytest.mark.parametrize("value", ["", "x", "--1", "1e400", "9" * 5000, b"\xff"])
def test_a_tracker_with_foreign_fields_is_shown_or_missing(store, client, field, shown, value):
    trackers = TrackerStore(store.client)
    tracker = trackers.open("import", ttl=60)
    client.hset(TrackerKeys(tracker)["tracker"], field, value)
    assert (trackers.view(tracker) is not None) == shown
    assert len(trackers.recent(10, None).items) == shown


@pytest.mark.parametrize("stored", ["", "x", "1_0", "9" * 5000, "\x11"])
def test_a_format_that_is_no_number_is_another_format(store, client, stored):
    push(store, "1", ("x", 1))
    client.hset(queue_key("orders"), "format", stored)
    with pytest.raises(FormatMismatch):
        repair_queue(RedisStore(client).client, ONE)


def test_a_reply_that_cannot_be_read_is_an_error_of_the_package():
    @reads_replies
    class Reader:
        def number(self, reply):
            return int(reply)

        def numbers(self, replies):
            yield from map(int, replies)

        def checked(self, given):
            raise InvalidCall(given)

    reader = Reader()
    assert reader.number(b"7") == 7
    with pytest.raises(
        UnexpectedReply, match=r"cannot be read: ValueError\(.* \(test_foreign_data.py, line \d+\)"
    ):
        reader.number(b"x")
    numbers = reader.numbers([b"7", None])
    assert next(numbers) == 7
    with pytest.raises(StoreError):
        next(numbers)
    # A ValueError, too, but of the caller's.
    with pytest.raises(InvalidCall):
        reader.checked("x")
    assert isinstance(read_or_error(lambda: {}["x"]), UnexpectedReply)
