"""Hostile ids, payloads and bytes through push, claim, listing and morgue."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import BadPayload, Fate, NewJob, QueueSpec, ShardRef
from celery_lowkiq.store.actions import Actions
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.queries import Queries

from .helpers import ONE, SHARD, claim, end, push, take

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


@pytest.mark.parametrize("job_id", IDS)
def test_any_allowed_id_goes_all_the_way(store, job_id):
    store.push(ONE, [NewJob(job_id, data, score, 1.0) for score, data in enumerate(DATA)])
    lease = take(store)
    claimed = claim(store, lease)
    assert [job.id for job in claimed.jobs] == [job_id]
    assert [p.data for p in claimed.jobs[0].payloads] == DATA
    assert [job.id for job in Queries(store).processing(ONE).items] == [job_id]
    end(store, lease, claimed, Fate.BURY, error=b"boom")
    queries = Queries(store)
    (dead,) = queries.morgue(ONE, prefix=job_id[:3], payload_limit=100).items
    assert [p.data for p in dead.payloads] == DATA
    assert Actions(store).morgue_queue_up(ONE, [job_id]) == 1
    (waiting,) = queries.jobs(ONE, prefix=job_id[:3], payload_limit=100).items
    assert [p.data for p in waiting.payloads] == DATA
    assert Actions(store).delete(ONE, [job_id]) == 1
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
        (job,) = Queries(store).jobs(queue).items
        assert [p.data for p in job.payloads] == [f"of-{number}".encode()]


def test_a_payload_of_one_mebibyte(store):
    data = bytes(range(256)) * 4096
    store.push(ONE, [NewJob("1", data, 1, 1.0), NewJob("1", b"small", 2, 1.0)])
    lease = take(store)
    claimed = claim(store, lease)
    assert [p.data for p in claimed.jobs[0].payloads] == [data]
    end(store, lease, claimed, Fate.DIE, error=b"boom")
    (dead,) = Queries(store).morgue(ONE).items
    assert dead.payloads[0].data == data
    assert [p.data for p in claim(store, lease).jobs[0].payloads] == [b"small"]


def test_a_hundred_thousand_payloads_of_one_id(store):
    """A claim takes at most 1,000 of them, lowest scores first; the rest stays waiting."""
    count = 100_000
    store.push(ONE, [NewJob("1", b"%d" % number, float(count - number), 1.0) for number in range(count)])
    (job,) = Queries(store).jobs(ONE).items
    assert (job.payload_count, len(job.payloads)) == (count, 10)
    lease = take(store)
    scores = []
    for _ in range(3):
        claimed = claim(store, lease)
        scores += [p.score for p in claimed.jobs[0].payloads]
        end(store, lease, claimed)
    assert scores == [float(number) for number in range(1, 3001)]
    end(store, lease, claim(store, lease), Fate.RETRY)
    assert Actions(store).kill_all_failed(ONE) == 1
    (dead,) = Queries(store).morgue(ONE).items
    assert dead.payload_count == count - 3000
    assert Actions(store).morgue_queue_up_all(ONE) == 1
    assert Actions(store).delete(ONE, ["1"]) == 1
    assert Queries(store).stats(ONE).length == 0


def test_a_claim_is_bounded_over_all_its_ids(store):
    queue = QueueSpec("wide", shards=1, batch_size=100)
    jobs = [NewJob(str(i), b"%d" % n + b"x" * 100, n, 1.0) for i in range(20) for n in range(200)]
    store.push(queue, jobs)
    claimed = claim(store, take(store, queue), 100)
    assert 1000 <= sum(len(job.payloads) for job in claimed.jobs) < 2000


def test_bad_payloads_go_to_the_morgue_and_the_others_are_settled(store):
    push(store, "1", ("good", 1), ("bad", 2), ("also good", 3), perform_in=1.0)
    lease = take(store)
    end(store, lease, claim(store, lease), bad=(BadPayload(1, b"undecodable"),))
    (dead,) = Queries(store).morgue(ONE).items
    assert ([p.data for p in dead.payloads], dead.error) == ([b"bad"], b"undecodable")
    assert Queries(store).stats(ONE).length == 0


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
    assert len(Queries(store).jobs(ONE).items) == 7
    lease = take(store)
    seen = {}
    for _ in range(3):
        claimed = claim(store, lease)
        seen.update({job.id: [p.data for p in job.payloads] for job in claimed.jobs})
        end(store, lease, claimed, Fate.BURY, error=b"boom")
    assert seen["a"] == [b"garbage"]
    assert seen["d"] == [b"nan-ish 1 x"]
    assert seen["\udcff"] == [b"\xff\xfe\0"]
    assert store.next_due([ShardRef("orders", 0)])[0].next_due == 9e9
    assert Queries(store).stats(ONE).morgue_length >= 3
