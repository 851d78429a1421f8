"""What is stored is changed below a node that works: nothing innocent is late, and all can still be read."""

from __future__ import annotations

import contextlib

import pytest

from celery_lowkiq import track
from celery_lowkiq.integration.json_records import plain
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.keys import ID_KEYS, SHARD_KEYS, shard_keys
from tests.fuzz.conftest import BUSY, HANG, seconds_of
from tests.fuzz.mutators import ODD_BYTES, canaries, changed_bytes
from tests.fuzz.node import CALM, OPEN, PARTLY, POLL, VICTIMS, Node
from tests.waiting import eventually

#: Records that are changed before the innocent jobs are pushed, and rounds until what was changed is deleted.
AT_ONCE, ROUNDS = 50, 3
SCORES = (0.0, -1.0, 1.0, 1.5, 1e9, 1e15, 1e300, -1e300, float("inf"), float("-inf"), 2.0**53, 1e-300)
WRONG_TYPES = ("string", "list", "set", "stream", "other")


def fill(node):
    """Jobs in all places, so that there is something of everything to change."""
    for queue in ("orders", *VICTIMS):
        node.push(queue, node.ids(queue, count=2))
        node.push(queue, failing := node.ids(queue, count=2), "fails")
        eventually(lambda failing=failing: node.has_run(failing))
        node.push(queue, node.ids(queue, count=2), countdown=3600)
        ids = node.ids(queue)
        for number in range(60):
            node.push(
                queue, ids, number if queue == "calls" else {"n": number, "text": "x" * 30}, countdown=3600
            )
        with track("fuzz", node.app) as tracker:
            node.app.tasks[queue].apply_async((node.ids(queue)[0], "x"), countdown=3600, tracker=tracker)
        node.inspector.queue(queue).pause(job_id=ids[0])
    node.inspector.queue("limited").pause(shard=1)
    eventually(lambda: node.inspector.queue("orders").morgue().items)


def seeds_of(redis):
    """By type and last word of the key: entries, as they are stored. A claim was copied while it ran."""
    found = {}
    for key in redis.scan_iter("lowkiq:*"):
        if redis.type(key) == b"hash":
            found.setdefault((b"hash", _last(key)), []).extend(redis.hgetall(key).items())
        elif redis.type(key) == b"zset":
            found.setdefault((b"zset", _last(key)), []).extend(redis.zrange(key, 0, -1, withscores=True))
    found[b"hash", b"processing"] = [
        (b"a", b'7 1795000000 -1 0 1 3 "a"'),
        (b"b", b'7 3 1795000000.5 2 5 error1 R "a"'),
    ]
    found[b"zset", b"claimed"] = [(b"a", 7.0), (b"b", 7.0)]
    return found


def _last(key):
    """What a key is for, such as ``jobs``: the rest names its owner."""
    words = [word for word in key.split(b":") if b"{" not in word and b"}" not in word]
    return words[-1] if not words[-1].isdigit() else words[-2]


class Planter:
    """Changes what is stored."""

    def __init__(self, node, path):
        self._redis, self._seeds = node.redis, seeds_of(node.redis)
        self._canaries = canaries(path)
        self._odd = ODD_BYTES + 5 * self._canaries
        self._shards = [ShardRef("orders", index) for index in OPEN]
        self._shards += [shard for name in VICTIMS for shard in node.queues[name].shard_refs()]

    def plant(self, random):
        random.choice((self._in_shard, self._in_shard, self._in_shard, self._partly, self._of_queue))(random)

    def clear(self):
        """Delete what was changed, as an operator does."""
        keys = [key for shard in self._shards for key in shard_keys(shard).all()]
        keys += [shard_keys(ShardRef("orders", PARTLY))[name] for name in ID_KEYS]
        self._redis.delete(*keys, *(key for name in VICTIMS for key in self._of(name)))

    def _of(self, queue):
        return self._redis.keys(f"lowkiq:*{{{queue}}}*")

    def _in_shard(self, random):
        keys = shard_keys(random.choice(self._shards))
        name = random.choice(list(SHARD_KEYS))
        if random.random() < 0.1:
            self._wrong_type(random, keys[name])
        elif random.random() < 0.3:
            self._job(random, keys)
        else:
            self._entry(random, keys[name], SHARD_KEYS[name].encode(), name.encode())

    def _partly(self, random):
        """Entries of ids alone, none of which is innocent."""
        keys, name = shard_keys(ShardRef("orders", PARTLY)), random.choice(sorted(ID_KEYS))
        if random.random() < 0.3:
            self._job(random, keys)
        else:
            self._entry(random, keys[name], SHARD_KEYS[name].encode(), name.encode())

    def _of_queue(self, random):
        """Numbers of shards, heartbeats, history, failures of a victim; reports and trackers."""
        found = [key for name in VICTIMS for key in self._of(name) if b":0}" not in key and b":1}" not in key]
        found += self._redis.keys("lowkiq:*report*") + self._redis.keys("lowkiq:*tracker*")
        key = random.choice(sorted(found))
        if random.random() < 0.1:
            self._wrong_type(random, key)
        else:
            self._entry(random, key, self._redis.type(key), _last(key))

    def _entry(self, random, key, type_, name):
        """A changed entry: of this kind of key, or of any other one."""
        of_type = [seed for seed in self._seeds if seed[0] == type_]
        if not of_type:
            return
        kind = (
            (type_, name)
            if (type_, name) in self._seeds and random.random() < 0.8
            else random.choice(of_type)
        )
        field, value = random.choice(self._seeds[kind])
        if random.random() < 0.4:
            field = changed_bytes(random, field, self._odd)
        if self._redis.type(key) not in (type_, b"none"):
            self._redis.delete(key)
        if type_ == b"zset":
            self._redis.zadd(key, {field: random.choice((value, *SCORES))})
        else:
            self._redis.hset(key, field, changed_bytes(random, value, self._odd))

    def _job(self, random, keys):
        """A due job whose payload or call means harm, in a record that is well-formed."""
        data = changed_bytes(random, random.choice((b'{"a":[1,"x"]}', *self._canaries)), self._odd)
        job_id = changed_bytes(random, b"bad", self._odd)
        if not all(self._is(keys[name]) for name in ("jobs", "due", "calls")):
            return
        flag = random.choice((b"", b"", b"R"))
        if flag:
            member, _ = random.choice(self._seeds[b"zset", b"calls"])
            self._redis.zadd(keys["calls"], {changed_bytes(random, member, self._odd): 0.0})
        self._redis.hset(keys["jobs"], job_id, b"1 %d%s %s" % (len(data), flag, data))
        self._redis.zadd(keys["due"], {job_id: random.choice((1.0, *SCORES))})

    def _wrong_type(self, random, key):
        self._redis.delete(key)
        type_ = random.choice(WRONG_TYPES)
        if type_ == "string":
            self._redis.set(key, random.choice(self._odd))
        elif type_ == "list":
            self._redis.rpush(key, b"x", random.choice(self._odd))
        elif type_ == "set":
            self._redis.sadd(key, b"x")
        elif type_ == "stream":
            self._redis.xadd(key, {b"a": b"b"})
        elif key.endswith((b"jobs", b"lease")) if isinstance(key, bytes) else key.endswith(("jobs", "lease")):
            self._redis.zadd(key, {b"a": 1.0})
        else:
            self._redis.hset(key, b"a", b"1")

    def _is(self, key):
        """Whether the key has its own type, or does not exist."""
        return self._redis.type(key) in (SHARD_KEYS[key.rpartition(":")[2]].encode(), b"none")


def reads(inspector, name):
    """All that pages, commands and metrics read of a queue."""
    queue = inspector.queue(name)
    yield from (
        inspector.overview,
        inspector.nodes,
        inspector.history,
        inspector.shard_states,
        inspector.doctor,
    )
    yield from (queue.stats, queue.shards, queue.paused, queue.paused_ids, queue.held_ids, queue.history)
    yield from (queue.processing, queue.failures, queue.migration, queue.damages)
    yield from (lambda by=by: queue.jobs(by) for by in ("id", "perform_in", "retry_count"))
    yield from (lambda by=by: queue.morgue(by) for by in ("id", "updated_at"))
    yield from (lambda read=read: read("bad") for read in (queue.job, queue.tries, queue.why))
    yield lambda: list(inspector.trackers().items)
    yield lambda: list(queue.dump())


def changes(inspector, name):
    queue = inspector.queue(name)
    yield from (queue.requeue_all, queue.bury_failed, queue.run_now_all, queue.repair, queue.delete_dead_all)
    yield from (
        lambda verb=verb: verb(["bad"]) for verb in (queue.bury, queue.requeue, queue.delete, queue.run_now)
    )
    yield lambda: queue.pause(job_id="bad")


def ask(read):
    """Only errors of the package come out, and what is read can be written as JSON."""

    def asked():
        with contextlib.suppress(LowkiqError):
            plain(read())

    seconds_of(asked)


@pytest.fixture
def node(empty_redis):
    node = Node(empty_redis, poll_interval=POLL)
    with node.engine:
        fill(node)
        yield node
    node.app.close()


@pytest.mark.random
def test_changed_records(node, fuzz, tmp_path, caplog):
    planter = Planter(node, str(tmp_path / "canary"))
    rounds = 0

    def attack(random):
        nonlocal rounds
        caplog.clear()
        for _ in range(AT_ONCE):
            planter.plant(random)
        innocent = node.ids("orders", (CALM, PARTLY)) + (calm := node.ids("calm"))
        with node.in_time(innocent):
            node.push("calm", calm)
            node.push("orders", innocent[:2])
        name = random.choice(("orders", *VICTIMS))
        for act in (
            *random.sample([*reads(node.inspector, name)], 4),
            *random.sample([*changes(node.inspector, name)], 1),
        ):
            ask(act)
        assert not node.engine.host.stops
        assert not (tmp_path / "canary").exists()
        ours = [one.getMessage() for one in caplog.records if one.name.startswith("celery_lowkiq")]
        assert not [line[:500] for line in ours if not line.isprintable()]
        rounds += 1
        if rounds % ROUNDS == 0:
            planter.clear()

    fuzz(attack, AT_ONCE, hang=BUSY + 6 * HANG)
    print(f"the latest innocent job ran after {node.latest:.3f} s")
    planter.clear()
    again = {name: node.ids(name) for name in ("orders", *VICTIMS)}
    for name, ids in again.items():
        node.inspector.queue(name).resume()
        node.push(name, ids)
    eventually(lambda: all(map(node.has_run, again.values())))
