"""On a cluster, all keys of a script lie in one slot."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Lease, QueueSpec, ShardRef
from celery_lowkiq.rules.views import Counters, NodeReport, NodeUpdate
from celery_lowkiq.store import keys
from celery_lowkiq.store.cluster_map import ClusterMap, slot_of
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import load
from tests.unit.test_layers import SCRIPTS

QUEUE = "orders"
SHARD = ShardRef(QUEUE, 3)
#: The keys by the names that headers use, by what has a tag of its own.
OF_SHARD = {name: keys.shard_keys(SHARD)[name] for name in keys.SHARD_KEYS}
TAGGED = {
    "shard": OF_SHARD | dict.fromkeys(("index", "records"), OF_SHARD["due"]),
    "queue": {
        "queue": keys.queue_key(QUEUE),
        "nodes": keys.nodes_key(QUEUE),
        "tokens": keys.tokens_key(QUEUE),
        "history": keys.history_key(QUEUE),
        "failures": keys.failures_key(QUEUE),
        "failure_ranks": keys.failure_ranks_key(QUEUE),
    },
    "nodes": {"report": keys.report_key("me"), "reports": keys.reports_key()},
    "tracker": {name: keys.TrackerKeys("t")[name] for name in keys.TRACKER_KEYS},
}


def test_the_names_are_those_of_all_keys():
    assert set().union(*TAGGED.values()) == keys.KEY_TYPES.keys()


@pytest.mark.parametrize("owner", TAGGED)
def test_the_keys_of_one_owner_have_one_slot(owner):
    assert len({slot_of(key) for key in TAGGED[owner].values()}) == 1


@pytest.mark.parametrize("name", [path.stem for path in SCRIPTS])
def test_a_script_touches_keys_of_one_owner(name):
    script = load(name)
    names = {*script.keys, *script.repeated_keys}
    assert [owner for owner, of_owner in TAGGED.items() if names <= of_owner.keys()]


class Sent(Exception):
    """Raised in place of sending."""


@pytest.fixture
def sent(monkeypatch):
    """The scripts that a store on a cluster sends in one batch."""
    store = RedisStore(ClusterMap([("nowhere", 1)], {}, 1, 1.0))
    calls = []

    def record(batch):
        calls.extend(batch)
        raise Sent

    monkeypatch.setattr(store.client, "calls", record)

    def sent(act):
        calls.clear()
        with pytest.raises(Sent):
            act(store)
        return list(calls)

    return sent


SHARDS = QueueSpec(QUEUE, shards=30).shard_refs()
LEASES = [Lease(shard, "me", 1, "") for shard in SHARDS]
NEWS = NodeUpdate(
    NodeReport("me", "me-1", 1, 10.0, False, False, (), ()),
    1.0,
    tuple((f"queue-{n}", Counters(1.0, (0,))) for n in range(30)),
    (QueueSpec(QUEUE, shards=30),),
)


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.observe(SHARDS),
        lambda store: store.renew(LEASES),
        lambda store: store.next_due(SHARDS, (), [True] * 30),
        lambda store: store.beat([f"queue-{n}" for n in range(30)], "me", 1, 1, NEWS),
    ],
    ids=["observe", "renew", "next_due", "beat"],
)
def test_a_script_that_packs_many_shards_or_queues_gets_one_at_a_time(sent, act):
    calls = sent(act)
    assert len(calls) >= 30
    assert all(len({slot_of(key) for key in call.keys}) == 1 for call in calls)
