"""The place for versioned headers: of a shard, and of a job's record (docs/adr/0020-versioned-headers.md)."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import Disposition
from celery_lowkiq.store.admin.actions import Actions
from celery_lowkiq.store.inspect.queries import Queries
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import parse_items

from .helpers import ONE, SHARD, claim, contents, end, push, take, waiting
from .shard import Shard

KEYS = shard_keys(SHARD)
HEADER = b"!1 8 g=7 h=1 "


def test_a_header_of_unknown_fields_is_skipped():
    assert parse_items(HEADER + b"1 1 a") == parse_items(b"1 1 a")


@pytest.mark.parametrize("record", [b"!2 1 x1 1 a", b"!1 99 x", b"!1 x"])
def test_bytes_that_are_no_header_become_one_payload(record):
    (payload,) = parse_items(record)
    assert payload.data == record


def test_a_header_stays_with_its_job(store):
    client = store.client.redis
    push(store, "1", ("a", 1.0))
    client.hset(KEYS["jobs"], "1", HEADER + client.hget(KEYS["jobs"], "1"))
    push(store, "1", ("b", 2.0))
    assert client.hget(KEYS["jobs"], "1") == HEADER + b"1 1 a2 1 b"
    lease = take(store)
    claimed = claim(store, lease)
    assert [payload.data for payload in claimed.jobs[0].payloads] == [b"a", b"b"]
    assert HEADER in client.hget(KEYS["processing"], "1")
    end(store, lease, claimed, Disposition.RETURN)
    assert client.hget(KEYS["jobs"], "1") == HEADER + b"1 1 a2 1 b"
    end(store, lease, claim(store, lease), Disposition.BURY, error=b"boom")
    assert client.hget(KEYS["dead_jobs"], "1") == HEADER + b"1 1 a2 1 b"
    Actions(store).requeue_all(ONE)
    assert client.hget(KEYS["jobs"], "1") == HEADER + b"1 1 a2 1 b"
    assert Queries(store).job(ONE, "1").waiting.payload_count == 2


def test_a_header_goes_with_the_last_payload(store):
    client = store.client.redis
    push(store, "1", ("a", 1.0))
    client.hset(KEYS["jobs"], "1", HEADER + client.hget(KEYS["jobs"], "1"))
    assert Actions(store).edit(ONE, "1", b"a", None)
    assert not client.exists(KEYS["jobs"])


def test_a_header_stays_with_what_is_newer_than_the_last_run(store):
    shard, client = Shard(store, drop_stale=60), store.client.redis
    for score in (1.0, 2.0):
        shard.push("1", b"%d" % score, score)
    shard.run(Disposition.BURY, error=b"boom")
    client.hset(KEYS["dead_jobs"], "1", HEADER + client.hget(KEYS["dead_jobs"], "1"))
    client.hset(KEYS["done_scores"], "1", "1.5 9000000000")
    Actions(store).requeue(shard.spec, ["1"])
    assert client.hget(KEYS["jobs"], "1") == HEADER + b"2 1 2"


def test_a_shard_of_a_newer_version_is_refused(store):
    push(store, "1", ("a", 1.0))
    lease = take(store)
    store.client.redis.hset(KEYS["meta"], "format", "4 g=7")
    for step in (
        lambda: push(store, "2", ("a", 1.0)),
        lambda: claim(store, lease),
        lambda: take(store, owner="other"),
    ):
        with pytest.raises(StoreError, match="stored in format 4, this version reads 3"):
            step()


def test_unknown_fields_of_this_version_are_skipped(store):
    push(store, "1", ("a", 1.0))
    store.client.redis.hset(KEYS["meta"], "format", "2 g=7")
    assert claim(store, take(store)).jobs


def test_the_payload_of_a_new_job_has_no_length(store):
    push(store, "1", ("a", 1.0))
    assert store.client.redis.hget(KEYS["jobs"], "1") == b"1  a"
    push(store, "1", ("b", 2.0))
    assert store.client.redis.hget(KEYS["jobs"], "1") == b"1 1 a2 1 b"
    assert contents(claim(store, take(store))) == {"1": [("a", 1.0), ("b", 2.0)]}


@pytest.mark.parametrize("payload", ["", " ", "1 a", " 1 a", "r x", "1  a"])
@pytest.mark.parametrize("fields", [{}, {"format": "1 g=7"}, {"format": "2 g=7"}])
def test_a_payload_may_look_like_the_beginning_of_a_record(store, payload, fields):
    with_format(store, fields)
    push(store, "1", (payload, 1.5))
    push(store, "2", (payload, 1.5))
    push(store, "2", ("b", 2.0))
    expected = {"1": [(payload, 1.5)], "2": [(payload, 1.5), ("b", 2.0)]}
    assert {job_id: waiting(store, job_id) for job_id in expected} == expected
    lease = take(store)
    claimed = claim(store, lease)
    assert contents(claimed) == expected
    end(store, lease, claimed, Disposition.RETURN)
    assert contents(claim(store, lease)) == expected


def test_a_shard_that_an_earlier_version_opened_stays_readable_for_it(store):
    with_format(store, {})
    push(store, "1", ("a", 1.0))
    assert store.client.redis.hget(KEYS["jobs"], "1") == b"1 1 a"
    assert claim(store, take(store)).jobs
    assert store.client.redis.hget(KEYS["meta"], "format") is None


def test_a_shard_that_lost_its_meta_is_begun_anew(store):
    push(store, "1", ("a", 1.0))
    store.client.redis.delete(KEYS["meta"])
    push(store, "2", ("a", 1.0))
    assert store.client.redis.hget(KEYS["meta"], "format") == b"2"


def with_format(store, fields):
    """Open the shard as a version does that writes these fields."""
    push(store, "other", ("a", 1.0))
    client = store.client.redis
    client.hdel(KEYS["meta"], "format")
    if fields:
        client.hset(KEYS["meta"], mapping=fields)
    client.delete(KEYS["jobs"], KEYS["due"])
