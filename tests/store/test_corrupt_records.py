"""R13: whatever bytes are planted into a shard's own keys, it is listed, taken over, pushed to and worked."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_lowkiq.rules.models import Disposition
from celery_lowkiq.store.actions import DEAD, FAILED
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.keys import SHARD_KEYS, shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions, Queries
from tests.marks import examples
from tests.store.helpers import ONE, SHARD, claim, end, push, take

KEYS = shard_keys(SHARD)
IDS = [b"a", b"b", b"\xff", b"", b"a\0b"]
#: What the scripts write themselves.
VALID = [
    b'1 3 "a"2.5 3 "b"',
    b'1795000000.123456  "a"',
    b"S",
    b'3 1795000000.123456 0 5 error1 3 "a"',
    b'3 1795000000.123456 -1 0 1 R "a"',
    b"c00400000000000080000000000a2.5\0",
    b'2 1795000000:1795000000000\n"a"',
    b"7 1795000000",
]
ODD = [b"nan", b"-inf", b"inf", b"1e400", b"0x10", b"9" * 5000, b"-", b" ", b"\0", b"1_0", b"\xff\xfe\0"]


@st.composite
def mutated(draw):
    """Something valid with a part of it replaced."""
    valid = draw(st.sampled_from(VALID))
    words = valid.split(b" ")
    if draw(st.booleans()):
        words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(ODD) | st.binary(max_size=6))
        return b" ".join(words)
    start = draw(st.integers(0, len(valid)))
    stop = draw(st.integers(start, len(valid)))
    return valid[:start] + draw(st.sampled_from(ODD) | st.binary(max_size=6)) + valid[stop:]


data = mutated() | st.binary(max_size=40) | st.sampled_from(VALID)
scores = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 1e9, 1e300, float("inf"), float("-inf")])
ids = st.sampled_from(IDS)
hashes = sorted(name for name, type_ in SHARD_KEYS.items() if type_ == "hash" and name not in ("meta",))
zsets = sorted(name for name, type_ in SHARD_KEYS.items() if type_ == "zset")
lease_fields = st.sampled_from(["owner", "epoch", "counter", "stopping", "server"])


@st.composite
def plants(draw):
    """Key, field or member, and value or score."""
    name = draw(st.sampled_from(hashes + zsets))
    if name == "lease":
        return name, draw(lease_fields), draw(data)
    field = draw(ids)
    if name in ("spill", "dead_spill"):
        field += b"\0" + draw(st.just(b'"a"') | data)
    if name in ("spill_order", "dead_spill_order"):
        return name, field + b"\0" + draw(data), draw(st.just(0.0) | scores)
    return name, field, draw(data if name in hashes else scores)


def plant(client, name, field, value):
    if name in zsets:
        client.zadd(KEYS[name], {field: value})
    else:
        client.hset(KEYS[name], field, value)


def list_everything(store):
    queries = Queries(store.client)
    for by in ("id", "perform_in", "retry_count"):
        queries.jobs(ONE, Listing(by))
    for by in ("id", "updated_at"):
        queries.morgue(ONE, Listing(by))
    queries.processing(ONE)
    queries.stats(ONE)
    for job_id in ("a", "b", "\udcff", "", "a\0b"):
        queries.job(ONE, job_id)


def work_until_idle(store, lease):
    """Ids that were claimed; each kind of end is met."""
    worked = set()
    fates = [Disposition.RETRY, Disposition.RETURN, Disposition.DIE, Disposition.BURY]
    for _ in range(100):
        claimed = claim(store, lease)
        if not claimed.jobs:
            return worked
        worked |= {job.id for job in claimed.jobs}
        end(store, lease, claimed, fates.pop(0) if fates else Disposition.DONE, error=b"boom")
    raise AssertionError("there is no end to it")


@pytest.fixture(scope="module")
def client(redis_server):
    client = connect({"path": redis_server.socket_path}, pool_size=4, pool_timeout=5)
    yield client
    client.connection_pool.disconnect()


@given(st.lists(plants(), min_size=1, max_size=8))
@example([("jobs", b"a", b'0x10 3 "a"')])
@example([("processing", b"a", b'1 3 nan 3 "a"'), ("claimed", b"a", 0.0)])
@example([("processing", b"a", b'1 nan 0 0 1 3 "a"'), ("claimed", b"a", 0.0)])
@example([("processing", b"a", b'1 3 -1 0 1.2.3 3 "a"'), ("claimed", b"a", 0.0)])
@example([("processing", b"a", b'1 3.3.3 -1 0 1 3 "a"'), ("claimed", b"a", 0.0)])
@example([("failed", b"a", float("inf"))])
@example([("claimed", b"a", 1.0)])
@example([("lease", "epoch", b"x")])
@example([("lease", "epoch", b""), ("claimed", b"a", 0.0)])
@example([("senders", b"a", b"x")])
@example([("jobs", b"a", b"S"), ("spill", b'a\0"a"', b"x")])
@example([("spill", b'\0\xe1"a"', b"c004000000000000\xea80000000000a2.5\0")])
@pytest.mark.random
@examples(300)
def test_a_corrupt_record_bricks_nothing(client, planted):
    client.flushall()
    store = RedisStore(client)
    push(store, "a", ("x", 1), perform_in=1.0)
    push(store, "good", ("y", 1), perform_in=2.0)
    take(store, owner="dies")
    for name, field, value in planted:
        plant(client, name, field, value)
    list_everything(store)
    lease = take(store, owner="next")
    for job_id in ("a", "b"):
        push(store, job_id, ('"a"', 1), ("z", 2), perform_in=1.0)
    assert "good" in work_until_idle(store, lease)
    list_everything(store)
    Actions(store.client).requeue(ONE, DEAD)
    Actions(store.client).bury(ONE, FAILED, b"", only_failed=True)
    work_until_idle(store, lease)
    Actions(store.client).delete_dead(ONE, DEAD)
    assert store.release(lease) in (True, False)
