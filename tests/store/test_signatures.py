"""Signatures lie beside their payloads: through merges, spills, edits, dumps and moves to other shards."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from celery_lowkiq.rules.dump_format import Header, entry_line, read_line
from celery_lowkiq.rules.models import Call, Disposition, Merge, QueueSpec, ShardRef
from celery_lowkiq.rules.signatures import KeyRing, split_record
from celery_lowkiq.store.actions import Signed
from celery_lowkiq.store.call_records import digest, jobs_with_calls
from celery_lowkiq.store.dump_load import dump_entries, load_entries
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.records import id_bytes
from tests.bound import Actions, Queries
from tests.store.helpers import ONE, SHARD, claim, end, take
from tests.store.resharding import resharded, someone

OLD, NEW = KeyRing({"old": b"o" * 16}), KeyRing({"new": b"n" * 16})
KEYS = shard_keys(SHARD)


def push(store, signer, *jobs, queue=ONE):
    store.pusher.signer = signer
    store.push(queue, [Call(job_id, data, score, 1.0, record=record) for job_id, data, score, record in jobs])


def pushed(store, signer, data, score, queue=ONE):
    push(store, signer, ("1", data, score, None), queue=queue)


def found(store, queue=ONE, job_id="1"):
    """Payload, score, and which ring has signed it."""
    job = Queries(store.client).job(queue, job_id, 1000).waiting
    return [(p.data, p.score, signed_by(p, queue, job_id)) for p in job.payloads]


def signed_by(payload, queue=ONE, job_id="1"):
    if not payload.signature:
        return None
    checked = queue.name, id_bytes(job_id), payload.data, payload.score, payload.signature
    return next((ring for ring in (OLD, NEW) if ring.payload_fault(*checked) is None), "wrong")


@pytest.fixture(params=[0, 100], ids=["packed", "spilled"])
def others(request, store):
    """How many other payloads the id has."""
    for n in range(request.param):
        pushed(store, OLD, b"other %d" % n, 1000.0 + n)
    return request.param


def first(store, queue=ONE):
    return found(store, queue)[0]


RINGS = {"nobody": None, "old": OLD, "new": NEW}


@pytest.mark.parametrize("names", [*itertools.permutations(RINGS)], ids="-".join)
def test_equal_payloads_merge_whoever_signed_them_and_the_newest_signature_stays(store, others, names):
    order = [RINGS[name] for name in names]
    for signer in order:
        pushed(store, signer, b"a", None)
    assert len(found(store)) == others + 1
    by = {data: ring for data, _, ring in found(store)}
    assert by[b"a"] is [ring for ring in order if ring][-1]


@pytest.mark.parametrize("merge, score", [(Merge.MIN, 3.0), (Merge.MAX, 5.0)])
def test_of_two_signed_scores_the_merge_decides(store, others, merge, score):
    queue = QueueSpec("orders", shards=1, batch_size=10, merge=merge)
    for each in (5.0, 3.0):
        pushed(store, OLD, b"a", each, queue)
    assert first(store, queue) == (b"a", score, OLD)


@pytest.mark.parametrize("first_signed", [True, False])
def test_a_signed_score_stays_before_one_that_nobody_signed(store, others, first_signed):
    calls = [(OLD, 7.0), (None, 5.0)]
    for signer, score in calls if first_signed else calls[::-1]:
        pushed(store, signer, b"a", score)
    assert first(store) == (b"a", 7.0, OLD)


def test_a_failed_job_and_a_requeued_one_keep_their_signatures(store, others):
    pushed(store, OLD, b"a", 1.0)
    lease = take(store)
    claimed = claim(store, lease)
    end(store, lease, claimed, Disposition.RETRY)
    assert first(store) == (b"a", 1.0, OLD)
    lease = take(store)
    end(store, lease, claim(store, lease), Disposition.BURY)
    dead = Queries(store.client).job(ONE, "1", 1000).dead
    assert signed_by(dead.payloads[0]) is OLD
    Actions(store.client).requeue(ONE, ["1"])
    assert first(store) == (b"a", 1.0, OLD)
    assert len(found(store)) == others + 1


def test_a_claim_hands_signatures_out_and_a_repeated_one_the_same(store, others):
    pushed(store, OLD, b"a", 1.0)
    push(store, NEW, ("2", b"b", None, None))
    (one, two) = claim(store, take(store)).jobs
    assert {signed_by(p) for p in one.payloads} == {OLD}
    assert signed_by(two.payloads[0], job_id="2") is NEW


def test_records_are_signed_for_their_payloads(store):
    push(store, OLD, ("1", b"a", None, b'["call"]'))
    claimed = claim(store, take(store))
    ((stored,),) = [job.calls.records for job in claimed.jobs]
    assert split_record(stored.data)[1] == b'["call"]'
    assert OLD.record_fault("orders", b"1", digest(b"a"), stored.data) is None
    assert jobs_with_calls(claimed.jobs, []) == list(claimed.jobs)


def signature(data, score, ring=NEW, records=()):
    texts = ring.sign_payload("orders", b"1", data) + ring.sign_payload("orders", b"1", data, score)
    return Signed(texts, score, records)


@pytest.mark.parametrize("score", [None, 5.0])
def test_an_edit_binds_the_score_if_the_old_payload_did(store, others, score):
    pushed(store, OLD, b"a", score)
    (known,) = [each for each in found(store) if each[0] == b"a"]
    assert Actions(store.client).edit(ONE, "1", b"a", b"b", signature(b"b", known[1]))
    job = Queries(store.client).job(ONE, "1", 1000).waiting
    (payload,) = [p for p in job.payloads if p.data == b"b"]
    assert (payload.score, signed_by(payload)) == (known[1], NEW)
    assert payload.signature[:1] == (b"s" if score is None else b"S")


def test_an_edit_of_a_payload_whose_score_has_changed_binds_none(store, others):
    pushed(store, OLD, b"a", 5.0)
    assert Actions(store.client).edit(ONE, "1", b"a", b"b", signature(b"b", 6.0))
    assert first(store) == (b"b", 5.0, NEW)


def test_an_edit_without_a_key_leaves_no_signature(store, others):
    pushed(store, OLD, b"a", 5.0)
    assert Actions(store.client).edit(ONE, "1", b"a", b"b")
    assert first(store) == (b"b", 5.0, None)


def test_dead_payloads_are_signed_as_they_are(store, others):
    pushed(store, None, b"a", 5.0)
    Actions(store.client).bury(ONE, ["1"], b"why")
    assert Actions(store.client).edit_dead(ONE, "1", b"a", b"a", signature(b"a", 5.0))
    dead = Queries(store.client).job(ONE, "1", 1000).dead
    assert (dead.payload_count, signed_by(dead.payloads[0])) == (others + 1, NEW)


def test_a_dump_and_its_lines_keep_signatures(store, client, others):
    pushed(store, OLD, b"a", 1.0)
    pushed(store, None, b"b", 2.0)
    push(store, OLD, ("1", b"c", 3.0, b'["call"]'))
    before, entries = found(store), list(dump_entries(store, ONE))
    lines = [entry_line(number, entry) for number, entry in enumerate(entries, 1)]
    client.flushdb()
    header = Header("0" * 32, "orders", 1, "json", 0)
    load_entries(store, ONE, header, [read_line(line) for line in lines])
    assert found(store) == before
    claimed = claim(store, take(store))
    (stored,) = claimed.jobs[0].calls.records
    assert OLD.record_fault("orders", b"1", digest(b"c"), stored.data) is None


def test_a_move_to_other_shards_keeps_signatures_and_the_format(store, client):
    job_id = someone(2, home=1)
    payloads = [b"x" * 100 + b"%d" % n for n in range(30)]
    push(store, OLD, *((job_id, data, float(n), None) for n, data in enumerate(payloads)))
    moved = resharded(store, ONE, 2)
    assert found(store, moved, job_id) == [(data, float(n), OLD) for n, data in enumerate(payloads)]
    assert client.hget(shard_keys(ShardRef("orders", 1))["meta"], "format") == b"4 signed"


def test_a_shard_is_marked_with_its_first_signature(store):
    client = store.client.servers.redis
    pushed(store, None, b"a", 1.0)
    assert client.hget(KEYS["meta"], "format") == b"4"
    pushed(store, OLD, b"b", 1.0)
    assert client.hget(KEYS["meta"], "format") == b"4 signed"
    pushed(store, None, b"c", 1.0)
    assert client.hget(KEYS["meta"], "format") == b"4 signed"


@pytest.mark.parametrize("how", ["edit", "edit_dead", "load"])
def test_whatever_brings_the_first_signature_marks_the_shard(store, how):
    pushed(store, None, b"a", 1.0)
    if how == "edit":
        Actions(store.client).edit(ONE, "1", b"a", b"b", signature(b"b", 1.0))
    elif how == "edit_dead":
        Actions(store.client).bury(ONE, ["1"], b"why")
        Actions(store.client).edit_dead(ONE, "1", b"a", b"b", signature(b"b", 1.0))
    else:
        (entry,) = dump_entries(store, ONE)
        signed = entry.payloads[0]._replace(signature=OLD.sign_payload("orders", b"1", b"a", 1.0))
        header = Header("0" * 32, "orders", 1, "json", 0)
        load_entries(store, ONE, header, [(1, replace(entry, payloads=(signed,)))])
    assert store.client.servers.redis.hget(KEYS["meta"], "format") == b"4 signed"


def test_a_signed_job_takes_the_short_way_of_a_claim(store):
    """Its record moves as it is."""
    pushed(store, OLD, b"a", None)
    record = store.client.servers.redis.hget(KEYS["jobs"], "1")
    claim(store, take(store))
    assert store.client.servers.redis.hget(KEYS["processing"], "1").endswith(b" -1 0 " + record)


def test_a_signature_takes_24_bytes(store):
    pushed(store, None, b"a", 1.0)
    plain = store.client.servers.redis.hget(KEYS["jobs"], "1")
    Actions(store.client).delete(ONE, ["1"])
    pushed(store, OLD, b"a", 1.0)
    assert len(store.client.servers.redis.hget(KEYS["jobs"], "1")) == len(plain) + 24
