"""What a store asks of several masters in turn, against nodes of a cluster that answer as they are told."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.claims import Claim, ClaimRequest, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import Call, Disposition, Lease, QueueSpec, Settlement, ShardRef
from celery_lowkiq.rules.text import shard_names
from celery_lowkiq.rules.tracking import State, TrackerUpdate
from celery_lowkiq.store import durability
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.durability import Durability, Level
from celery_lowkiq.store.keys import TrackerKeys, shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from tests.unit import test_cluster_client as others
from tests.unit.resp_nodes import number

cluster, make_client = others.cluster, others.make_client

QUEUE = QueueSpec("orders", shards=12, batch_size=10)


def node_of(key):
    """The number of the node of three that has a key."""
    return slot_of(key) * 3 // 16384


SHARDS = [
    [shard for shard in QUEUE.shard_refs() if node_of(shard_keys(shard)["meta"]) == node] for node in range(3)
]


def bulk(*parts):
    """A reply: an array of texts and numbers."""
    made = [number(p) if isinstance(p, int) else b"$%d\r\n%s\r\n" % (len(p), p) for p in parts]
    return b"*%d\r\n%s" % (len(made), b"".join(made))


SETTLED = bulk(b"5", b"", 1)
CLAIMED = bulk(b"5", b"", b"0", 0)
#: Its shard and its tracker lie on the first two nodes.
SETTLED_SHARD, OTHER_SHARD = SHARDS[0][0], SHARDS[2][0]
TRACKER = next(each for each in map(str, range(60)) if node_of(TrackerKeys(each)["meta"]) == 1)


def lease(shard):
    return Lease(shard, "me", 1, 1)


def settle(tracker=TRACKER):
    news = (TrackerUpdate(tracker, "call", State.FINISHED),) if tracker else ()
    settlement = Settlement("1", 1, Disposition.DONE, news=news)
    return SettleRequest(QUEUE, lease(SETTLED_SHARD), (settlement,))


def claim(shard):
    return ClaimRequest(QUEUE, lease(shard), 1)


def cuts(words):
    """Close the connection."""


@pytest.fixture
def store(cluster, make_client):
    """Its first node settles, the second one has the tracker, and the third one gives nothing to do."""
    client = make_client()
    cluster.nodes[0].answer = lambda words: SETTLED
    cluster.nodes[2].answer = lambda words: CLAIMED
    return RedisStore(client.cluster.map)


def counts(cluster):
    return [len(node.keys()) for node in cluster.nodes]


def test_nothing_is_settled_before_its_tracker_has_been_told(cluster, store):
    """The settle would end the job, and its call would be pending in the tracker for ever."""
    cluster.nodes[1].answer = cuts
    settled, _ = store.exchange(settle(), None)
    assert isinstance(settled, StoreUnavailable)
    # A cut connection is tried once more.
    assert counts(cluster) == [0, 2, 0]
    cluster.nodes[1].answer = lambda words: number(1)
    settled, _ = store.exchange(settle(), None)
    assert settled == SettleReply(frozenset({"1"}), 5.0, None)
    assert counts(cluster) == [1, 3, 0]


def test_a_tracker_that_is_away_holds_up_no_claim_of_another_shard(cluster, store):
    cluster.nodes[1].answer = cuts
    settled, claimed = store.exchange(settle(), claim(OTHER_SHARD))
    assert isinstance(settled, StoreUnavailable)
    assert isinstance(claimed, Claim)
    assert counts(cluster) == [0, 2, 1]


def test_a_claim_of_the_same_shard_does_not_overtake_its_settle(cluster, store):
    cluster.nodes[1].answer = cuts
    settled, claimed = store.exchange(settle(), claim(SETTLED_SHARD))
    assert isinstance(settled, StoreUnavailable)
    assert isinstance(claimed, StoreUnavailable)
    assert counts(cluster) == [0, 2, 0]


def test_a_claim_whose_master_is_away_holds_up_no_settle(cluster, store):
    cluster.nodes[2].answer = cuts
    settled, claimed = store.exchange(settle(), claim(OTHER_SHARD))
    assert isinstance(settled, SettleReply)
    assert isinstance(claimed, StoreUnavailable)


def test_without_a_tracker_settle_and_claim_are_sent_together(cluster, store):
    rounds, servers = [], store.client.servers
    send, servers.send = servers.send, lambda commands: (rounds.append(1), send(commands))[1]
    settled, claimed = store.exchange(settle(None), claim(OTHER_SHARD))
    assert isinstance(settled, SettleReply)
    assert isinstance(claimed, Claim)
    assert len(rounds) == 1


# -- pushes whose masters do not all confirm them


def ids(shards, count):
    found = [str(n) for n in range(500) if QUEUE.shard_of(str(n)) in shards]
    assert len(found) >= count
    return found[:count]


def job_of(shard):
    return Call(ids([shard], 1)[0], b"x", 1.0)


JOBS = [job_of(shard) for shards in SHARDS for shard in shards]


class Master:
    """Answers as a master that has a push, which ``replicas`` of its ``connected`` ones confirm."""

    def __init__(self, replicas, connected=1):
        self.replicas = replicas
        self.connected = connected
        self.confirmations = 0
        self.sent = b"$6\r\n9999 0\r\n"

    def __call__(self, words):
        if words[0] == b"WAIT":
            self.confirmations += 1
            return None if self.replicas is None else number(self.replicas)
        if words[0] == b"HGET":
            return self.sent
        if words[0] == b"INFO":
            about = b"# Replication\r\nconnected_slaves:%d\r\n" % self.connected
            return b"$%d\r\n%s\r\n" % (len(about), about)
        return number(1)


@pytest.fixture
def careful(cluster, make_client, monkeypatch):
    monkeypatch.setattr(durability, "CONFIRM_SECONDS", 0.05)
    return RedisStore(make_client().cluster.map, Durability(Level.REPLICATED))


def masters(cluster, *made):
    for node, master in zip(cluster.nodes, made, strict=True):
        node.answer = master
    return made


def names(cluster, *numbers):
    return ", ".join(sorted(cluster.nodes[n].place.decode() for n in numbers))


def error_of(store, jobs=JOBS):
    with pytest.raises(StoreUnavailable) as raised:
        store.push(QUEUE, jobs)
    return str(raised.value)


def in_shards(*parts):
    shards = [shard for part in parts for shard in part]
    return f"in shards {shard_names(shards)} ({len(shards)} of 12)"


def test_a_push_that_all_masters_confirm(cluster, careful):
    made = masters(cluster, Master(1), Master(1), Master(1))
    careful.push(QUEUE, JOBS)
    assert [master.confirmations for master in made] == [1, 1, 1]


def test_the_shards_of_the_one_master_without_a_replica_are_named(cluster, careful):
    masters(cluster, Master(1), Master(0, connected=0), Master(1))
    assert error_of(careful) == (
        f"it was stored, but not confirmed as replicated within 0 s {in_shards(SHARDS[1])}: "
        f"Redis {names(cluster, 1)} has no replica, start one or connect it again; to call again may run it "
        "twice"
    )


def test_masters_whose_replicas_lag_stand_apart_from_those_without(cluster, careful):
    masters(cluster, Master(0), Master(0, connected=0), Master(1))
    assert (
        f"{in_shards(*SHARDS[:2])}: Redis {names(cluster, 1)} has no replica, start one or connect it again; "
        f"fewer than 1 replicas of Redis {names(cluster, 0)} have it, look at their lag; to call again"
    ) in error_of(careful)


def test_a_master_that_is_lost_after_it_has_confirmed_is_not_named(cluster, careful):
    confirming, *_ = masters(cluster, Master(1), Master(0, connected=0), Master(1))
    reads = iter([confirming.sent] * len(SHARDS[0]))
    cluster.nodes[0].answer = lambda words: next(reads, None) if words[0] == b"HGET" else confirming(words)
    assert f"within 0 s {in_shards(SHARDS[1])}: Redis {names(cluster, 1)} has no replica" in error_of(careful)


def test_the_shards_of_a_master_that_is_lost_before_it_confirms_are_named(cluster, careful):
    """It hid that the others had confirmed, or had not."""
    masters(cluster, Master(1), Master(None), Master(0, connected=0))
    text = error_of(careful)
    assert f"within 0 s {in_shards(*SHARDS[1:])}: Redis {names(cluster, 2)} has no replica" in text
    assert f"; Redis {names(cluster, 1)} did not confirm: Redis is not available: " in text


def test_masters_that_confirm_are_waited_for_when_another_one_is_lost(cluster, careful, monkeypatch):
    monkeypatch.setattr(durability, "CONFIRM_SECONDS", 10.0)
    late, lost, _ = masters(cluster, Master(0), Master(None), Master(1))

    def confirm(words):
        late.replicas = int(late.confirmations >= 2)
        return late(words)

    cluster.nodes[0].answer = confirm
    text = error_of(careful)
    assert f"not confirmed as replicated {in_shards(SHARDS[1])}: Redis {names(cluster, 1)} did not" in text
    assert late.confirmations == 3
    # Nothing more is asked of it.
    assert lost.confirmations == 1
    asked = [words for words in cluster.nodes[1].heard if words[0] == b"HGET"]
    assert len(asked) == len(SHARDS[1])


def test_a_write_that_is_refused_is_not_confirmed_by_a_wait(cluster, careful):
    made, *_ = masters(cluster, Master(1), Master(1), Master(1))
    refusal = b"-NOREPLICAS Not enough good replicas to write.\r\n"
    cluster.nodes[0].answer = lambda words: refusal if words[0] == b"HINCRBY" else made(words)
    assert f"not confirmed as replicated {in_shards(SHARDS[0])}: " in error_of(careful)


def test_the_shards_that_a_failover_has_lost_are_named(cluster, careful):
    master, *_ = masters(cluster, Master(1), Master(1), Master(1))
    master.sent = b"$-1\r\n"
    assert f"before it was replicated {in_shards(SHARDS[0])}; call again" in error_of(careful)


def test_a_call_of_one_shard_names_no_part(cluster, careful):
    masters(cluster, *[Master(0, connected=0)] * 3)
    assert "not confirmed as replicated within 0 s: Redis " in error_of(careful, JOBS[:1])


def test_the_shards_are_named_that_lack_their_part_of_a_bulk_call(cluster, make_client):
    store = RedisStore(make_client().cluster.map)
    cluster.nodes[1].answer = cuts
    part = in_shards(SHARDS[1])
    assert error_of(store).startswith(f"calls may not be stored {part}, the others are: Redis is not ")
    assert error_of(store, [job_of(SHARDS[1][0])]).startswith("Redis is not available: ")


def test_many_shards_are_shortened():
    shards = [ShardRef("orders", 2 * n) for n in range(2000)]
    text = durability.part_of(shards, 4096)
    assert text.endswith("... (2000 of 4096)")
    assert len(text) < 250
