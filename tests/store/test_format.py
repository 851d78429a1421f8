"""The storage format: of a queue, of its shards, and of a packed record (docs/adr/0020-storage-format.md)."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.errors import FormatMismatch, StoreError
from celery_lowkiq.rules.models import Disposition
from celery_lowkiq.store import registry
from celery_lowkiq.store.keys import queue_key, shard_keys
from celery_lowkiq.store.script import load
from tests.bound import Pausing
from tests.store.helpers import ONE, SHARD, claim, contents, end, push, take, waiting

KEYS = shard_keys(SHARD)
#: Formats of earlier and later releases, and none.
OTHERS = ["1", "2", "3", "5", "40", None]
ADVICE = "drain it with the release that wrote it, or start on an empty key prefix"


def write_format(client, key, written):
    if written is None:
        client.hdel(key, "format")
    else:
        client.hset(key, "format", written)


def dumped(client):
    return {key: client.dump(key) for key in client.scan_iter()}


def reason(subject, written):
    stored = "without the number of its format" if written is None else f"in format {written}"
    return f"{subject} is stored {stored}, this release reads format 4 only: {ADVICE}"


@pytest.mark.parametrize("written", OTHERS)
def test_a_shard_in_another_format_is_refused_whole(store, client, written):
    push(store, "1", ("a", 1.0))
    lease = take(store)
    write_format(client, KEYS["meta"], written)
    before = dumped(client)
    set_shard_count = load("set_shard_count").call(shard_keys(SHARD), shards=1, pause=9, since="")
    for step in (
        lambda: push(store, "2", ("a", 1.0)),
        lambda: claim(store, lease),
        lambda: take(store, owner="other"),
        lambda: store.client.call(set_shard_count),
    ):
        with pytest.raises(StoreError, match=reason("the shard", written)):
            step()
    assert dumped(client) == before


@pytest.mark.parametrize("written", OTHERS)
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_queue_in_another_format_is_refused_whole(store, client, written, is_lost):
    """Also one whose own key is lost: its shards tell."""
    push(store, "1", ("a", 1.0))
    write_format(client, queue_key("orders"), written)
    write_format(client, KEYS["meta"], written)
    if is_lost:
        client.delete(queue_key("orders"))
    before = dumped(client)
    steps = [lambda: registry.registered(store.client, ONE)]
    if not is_lost:
        steps += [lambda: registry.at_rest(store.client, ONE), lambda: store.mover(ONE).turn()]
        steps += [
            lambda: Pausing(store.client).switch_queue(registry.at_rest(store.client, ONE), paused=True)
        ]
    for step in steps:
        with pytest.raises(FormatMismatch, match=reason("queue 'orders'", written)):
            step()
    assert dumped(client) == before


def test_the_payload_of_a_new_job_has_no_length(store):
    push(store, "1", ("a", 1.0))
    assert store.client.servers.redis.hget(KEYS["jobs"], "1") == b"1  a"
    push(store, "1", ("b", 2.0))
    assert store.client.servers.redis.hget(KEYS["jobs"], "1") == b"1 1 a2 1 b"
    assert contents(claim(store, take(store))) == {"1": [("a", 1.0), ("b", 2.0)]}


@pytest.mark.parametrize("payload", ["", " ", "1 a", " 1 a", "r x", "1  a"])
def test_a_payload_may_look_like_the_beginning_of_a_record(store, payload):
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


def test_a_shard_that_lost_its_meta_is_begun_anew(store, client):
    push(store, "1", ("a", 1.0))
    client.delete(KEYS["meta"])
    push(store, "2", ("a", 1.0))
    assert client.hget(KEYS["meta"], "format") == b"4"
