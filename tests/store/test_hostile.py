"""Hostile ids, payloads and bytes through push, claim, listing and morgue."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Call, Disposition, PayloadRemoval, QueueSpec, Settlement, ShardRef
from celery_lowkiq.store.actions import DEAD, FAILED
from celery_lowkiq.store.claims import CLAIM_BYTES
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.records import UnexpectedReply
from tests.bound import Actions, Queries
from tests.store.helpers import ONE, SHARD, claim, end, push, take

IDS = [
    "{",
    "}",
    "{a}",
    ":",
    "a:b:0",
    "*",
    "[a-z]",
    "?",
    "é",
    "😀" * 64,
    "x" * 256,
    " ",
    "'\"\\",
    "<script>",
    "0",
    "-1",
]
DATA = [b"", b"\0", b"\xff\xfe", b"5 3 abc", b"S", b"-1 0 ", "😀".encode(), b"\r\n$5\r\n", b"x" * 70_000]


@pytest.mark.one_server
def test_a_reply_that_leaves_something_out_cannot_be_read(store, monkeypatch):
    """The thread of the leases pairs what it asked with the answers: it ended, and with it the worker."""
    monkeypatch.setattr(store.client, "calls", lambda calls: [[[]] for _ in calls])
    with pytest.raises(UnexpectedReply):
        store.beat(["orders", "payments"], "me 1", 1, 1)
    monkeypatch.setattr(store.client, "calls", lambda calls: [[b"server", []] for _ in calls])
    with pytest.raises(UnexpectedReply):
        store.observe([SHARD])


@pytest.mark.parametrize("job_id", IDS)
def test_any_allowed_id_goes_all_the_way(store, job_id):
    store.push(ONE, [Call(job_id, data, score, 1.0) for score, data in enumerate(DATA)])
    lease = take(store)
    claimed = claim(store, lease)
    assert [job.id for job in claimed.jobs] == [job_id]
    assert [p.data for p in claimed.jobs[0].payloads] == DATA
    assert [job.id for job in Queries(store.client).processing(ONE).items] == [job_id]
    end(store, lease, claimed, Disposition.BURY, error=b"boom")
    queries = Queries(store.client)
    (dead,) = queries.morgue(ONE, Listing(prefix=job_id[:3], payload_limit=100)).items
    assert [p.data for p in dead.payloads] == DATA
    assert Actions(store.client).requeue(ONE, [job_id]) == 1
    (waiting,) = queries.jobs(ONE, Listing(prefix=job_id[:3], payload_limit=100)).items
    assert [p.data for p in waiting.payloads] == DATA
    assert Actions(store.client).delete(ONE, [job_id]) == 1
    assert queries.stats(ONE).length == 0


@pytest.mark.parametrize("name", ["a:0", "a", "a:b", "queue:x", "pushed", "x" * 255, "~!@#$%^&*()"])
def test_queue_names_do_not_reach_each_others_keys(store, client, name):
    """L10: in Lowkiq a queue name with a colon could be another queue's key."""
    queues = [QueueSpec(one, shards=2) for one in dict.fromkeys((name, "a", "a:0", "a:1"))]
    keys = [key for queue in queues for shard in queue.shard_refs() for key in shard_keys(shard).all()]
    assert len(keys) == len(set(keys))
    for number, queue in enumerate(queues):
        push(store, "1", (f"of-{number}", 1), queue=queue)
    for number, queue in enumerate(queues):
        (job,) = Queries(store.client).jobs(queue).items
        assert [p.data for p in job.payloads] == [f"of-{number}".encode()]


def test_a_payload_of_one_mebibyte(store):
    data = bytes(range(256)) * 4096
    store.push(ONE, [Call("1", data, 1, 1.0), Call("1", b"small", 2, 1.0)])
    lease = take(store)
    claimed = claim(store, lease)
    assert [p.data for p in claimed.jobs[0].payloads] == [data]
    end(store, lease, claimed, Disposition.DIE, error=b"boom")
    (dead,) = Queries(store.client).morgue(ONE).items
    assert dead.payloads[0].data == data
    assert [p.data for p in claim(store, lease).jobs[0].payloads] == [b"small"]


@pytest.mark.full
def test_a_hundred_thousand_payloads_of_one_id(store):
    """A claim takes at most 1,000 of them, lowest scores first; the rest stays waiting."""
    count = 100_000
    store.push(ONE, [Call("1", b"%d" % number, float(count - number), 1.0) for number in range(count)])
    (job,) = Queries(store.client).jobs(ONE).items
    assert (job.payload_count, len(job.payloads)) == (count, 10)
    lease = take(store)
    scores = []
    for _ in range(3):
        claimed = claim(store, lease)
        scores += [p.score for p in claimed.jobs[0].payloads]
        end(store, lease, claimed)
    assert scores == [float(number) for number in range(1, 3001)]
    end(store, lease, claim(store, lease), Disposition.RETRY)
    assert Actions(store.client).bury(ONE, FAILED, b"", only_failed=True) == 1
    (dead,) = Queries(store.client).morgue(ONE).items
    assert dead.payload_count == count - 3000
    assert Actions(store.client).requeue(ONE, DEAD) == 1
    assert Actions(store.client).delete(ONE, ["1"]) == 1
    assert Queries(store.client).stats(ONE).length == 0


def test_a_claim_is_bounded_over_all_its_ids(store):
    queue = QueueSpec("wide", shards=1, batch_size=100)
    jobs = [Call(str(i), b"%d" % n + b"x" * 100, n, 1.0) for i in range(20) for n in range(200)]
    store.push(queue, jobs)
    claimed = claim(store, take(store, queue), 100)
    assert 1000 <= sum(len(job.payloads) for job in claimed.jobs) < 2000


def test_bad_payloads_go_to_the_morgue_and_the_others_are_settled(store):
    push(store, "1", ("good", 1), ("bad", 2), ("also good", 3), perform_in=1.0)
    lease = take(store)
    end(store, lease, claim(store, lease), bad=(PayloadRemoval(1, b"undecodable"),))
    (dead,) = Queries(store.client).morgue(ONE).items
    assert ([p.data for p in dead.payloads], dead.error) == ([b"bad"], b"undecodable")
    assert Queries(store.client).stats(ONE).length == 0


def test_bytes_planted_in_redis_are_handed_out_as_payloads(store, client):
    """Whoever decodes them sends them to the morgue; no script fails on them."""
    keys = shard_keys(SHARD)
    push(store, "0", ("registers", 1), perform_in=9e9)
    planted = {
        b"a": b"garbage",
        b"b": b"",
        b"c": b"1 99999999999999 x",
        b"d": b"nan-ish 1 x",
        b"\xff": b"\xff\xfe\0",
    }
    for job_id, record in planted.items():
        client.hset(keys["jobs"], job_id, record)
        client.zadd(keys["due"], {job_id: 1.0})
    client.zadd(keys["due"], {b"without record": 1.0})
    assert len(Queries(store.client).jobs(ONE).items) == 7
    lease = take(store)
    seen = {}
    for _ in range(3):
        claimed = claim(store, lease)
        seen.update({job.id: [p.data for p in job.payloads] for job in claimed.jobs})
        end(store, lease, claimed, Disposition.BURY, error=b"boom")
    assert seen["a"] == [b"garbage"]
    assert seen["d"] == [b"nan-ish 1 x"]
    assert seen["\udcff"] == [b"\xff\xfe\0"]
    assert store.next_due([ShardRef("orders", 0)])[0].next_due == 9e9
    assert Queries(store.client).stats(ONE).morgue_length >= 3


LARGE = 50 * 1024 * 1024


def plant_packed(client, keys, data):
    client.hset(keys["jobs"], "large", b"1 %d %s2 1 x" % (len(data), data))


def plant_spilled(client, keys, data):
    place = b"bff0000000000000" + b"800000000000" + b"1\0"
    client.hset(keys["jobs"], "large", b"S")
    client.hset(keys["spill"], b"large\0" + data, place)
    client.zadd(keys["spill_order"], {b"large\0" + place + data: 0.0})


# Of a master of a cluster, a busy machine would need longer than its timeout for 50 MB.
@pytest.mark.one_server
@pytest.mark.parametrize("plant", [plant_packed, plant_spilled])
def test_p8_a_claim_tells_little_of_a_payload_that_no_call_could_have_stored(store, client, plant):
    """P8: all 50 MB went through the worker, and ran."""
    data = b'"%s"' % (b"x" * LARGE)
    push(store, "small", ('"y"', 1))
    plant(client, shard_keys(SHARD), data)
    client.zadd(shard_keys(SHARD)["due"], {"large": 1})
    lease = take(store)
    claimed = claim(store, lease)
    (large,) = (job for job in claimed.jobs if job.id == "large")
    assert large.payloads[0].data == data[: CLAIM_BYTES + 1]
    assert large.payloads[0].score == 1.0
    bad = (PayloadRemoval(0, b"too large"),)
    store.settle(ONE, lease, [Settlement("large", claimed.number, Disposition.DONE, bad=bad)])
    (dead,) = Queries(store.client).morgue(ONE).items
    assert (dead.id, dead.error) == ("large", b"too large")
    # Whole, with its score and its length, though a listing does not read it.
    record = client.hget(shard_keys(SHARD)["dead_jobs"], "large")
    assert record == b"1 %d %b" % (len(data), data)
    assert (dead.payloads[0].data, dead.payloads[0].cut_from) == (b"", len(record))
    if plant is plant_packed:
        # What lies beside it has its turn.
        (rest,) = (job for job in claim(store, lease).jobs if job.id == "large")
        assert [payload.data for payload in rest.payloads] == [b"x"]


def test_a_payload_of_the_largest_size_comes_whole(store):
    data = b"x" * CLAIM_BYTES
    store.push(ONE, [Call("1", data, 1.0), Call("1", b"y", 2.0)])
    lease = take(store)
    (job,) = claim(store, lease).jobs
    assert job.payloads[0].data == data
