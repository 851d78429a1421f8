"""The user of docs/operations.md may do all that is needed, and nothing beside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.dump_format import Header
from celery_lowkiq.rules.models import Call, Disposition, PayloadRemoval, QueueSpec, Settlement
from celery_lowkiq.rules.policies import TokenRequest
from celery_lowkiq.rules.views import NodeReport, NodeUpdate, UpdateReply
from celery_lowkiq.store import node_reports
from celery_lowkiq.store.actions import DEAD, FAILED
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.dump_load import dump_entries, load_entries
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions, Diagnosis, Pausing, Queries

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
STORE = ROOT / "celery_lowkiq" / "store"
#: Only with lowkiq_push_durability = "fsynced", or on a cluster, as the page says; by the clock of tests; to
#: a result backend; of @connection; an error.
OTHERS = {"WAITAOF", "ASKING", "INCRBY", "FLUSHALL", "MULTI", "EXEC", "PING", "TRYAGAIN", "WRONGTYPE"}
QUEUE = QueueSpec("orders", shards=2, batch_size=100)


@pytest.fixture(params=["here", "6.2"])
def restricted(request):
    """A client with the rights that the page gives."""
    name = "redis_server" if request.param == "here" else "redis_62_server"
    server: EmbeddedServer = request.getfixturevalue(name)
    (line,) = re.findall(r"^user (lowkiq on .*)$", PAGE, re.MULTILINE)
    if request.param == "6.2":
        line = line.replace("+script|load", "+script")
    with redis.Redis(unix_socket_path=server.socket_path) as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", *line.split())
        parameters = {"path": server.socket_path, "username": "lowkiq", "password": "password"}
        client = connect(parameters, pool_size=3, pool_timeout=5)
        yield client
        client.connection_pool.disconnect()
        admin.execute_command("ACL", "DELUSER", "lowkiq")


def test_every_command_is_among_its_rights():
    scripts = "".join(path.read_text() for path in STORE.rglob("*.lua"))
    calls = "".join(path.read_text() for path in STORE.rglob("*.py"))
    sent = {
        *re.findall(r"redis\.call\('([A-Z]+)'", scripts),
        *re.findall(r'[\[( ]\("([A-Z]{3,})"[,)]', calls),
    }
    rights = {word[1:].partition("|")[0].upper() for word in PAGE.split() if re.fullmatch(r"\+[a-z|]+", word)}
    assert {"HMGET", "ZREVRANGEBYSCORE"} < sent
    assert sent - OTHERS <= rights


def test_its_rights_are_enough(restricted):
    store = RedisStore(restricted)
    long = [Call("long", b"%d" % n + b"x" * 50, float(n), 1.0) for n in range(100)]
    store.push(QUEUE, [*long, *(Call(str(n), b"x") for n in range(20))])
    report = NodeReport("me", "me", 1, 10.0, False, False, ("orders",), ())
    told = store.beat(["orders"], "me", 4, 1, NodeUpdate(report, 1.0, counted=(QUEUE,))).reply
    assert isinstance(told, UpdateReply), told
    assert isinstance(store.beat([], "me", 4, 1, NodeUpdate(report, 1.0, told.samples)).reply, UpdateReply)
    store.tokens(TokenRequest("orders", "me", 1, 5.0, 1))
    subscription = store.subscribe([QUEUE])
    for shard in QUEUE.shard_refs():
        lease = store.acquire(QUEUE, shard, "me", store.observe([shard])[0], 0)
        assert store.renew([lease]) == [lease]
        claim = store.claim(QUEUE, lease, 1)
        fates = (Disposition.DONE, Disposition.RETRY, Disposition.DIE, Disposition.BURY, Disposition.RETURN)
        store.settle(
            QUEUE,
            lease,
            [
                Settlement(
                    job.id,
                    claim.number,
                    fates[n % 5],
                    1,
                    60.0,
                    b"boom",
                    (PayloadRemoval(0, b"bad"),) if n % 2 else (),
                )
                for n, job in enumerate(claim.jobs)
            ],
        )
        store.claim(QUEUE, lease, 2)
        heir = store.acquire(QUEUE, shard, "heir", store.observe([shard])[0], 0)
        store.retract_crashes(heir)
        store.release(heir)
    queries, actions = Queries(store.client), Actions(store.client)
    pausing = Pausing(store.client)
    pausing.switch_queue(QUEUE, paused=True)
    pausing.switch_shard(QUEUE, 0, paused=True)
    pausing.switch_ids(QUEUE, ["long", "1"], paused=True)
    store.push(QUEUE, [Call("1", b"held")])
    queries.paused(QUEUE)
    queries.paused_ids(QUEUE)
    pausing.switch_ids(QUEUE, ["long", "1"], paused=False)
    pausing.switch_shard(QUEUE, 0, paused=False)
    pausing.switch_queue(QUEUE, paused=False)
    for by in ("id", "perform_in", "retry_count"):
        queries.jobs(QUEUE, Listing(by))
    for by in ("id", "updated_at"):
        queries.morgue(QUEUE, Listing(by))
    queries.processing(QUEUE)
    queries.job(QUEUE, "1")
    assert queries.stats(QUEUE).length > 0
    dumped = list(enumerate(dump_entries(store, QUEUE), 1))
    load_entries(store, QUEUE, Header("0" * 32, "orders", 2, "json", 0), dumped)
    actions.run_now_all(QUEUE)
    actions.bury(QUEUE, FAILED, b"", only_failed=True)
    actions.requeue(QUEUE, ["1"])
    actions.delete_dead(QUEUE, DEAD)
    actions.delete(QUEUE, [str(n) for n in range(20)] + ["long"])
    actions.delete(QUEUE, FAILED, only_failed=True)
    assert store.next_due(QUEUE.shard_refs())[0].next_due is None
    assert store.take("ticket", "me") == "me"
    diagnosis = Diagnosis(store.client)
    assert store.nodes()
    assert diagnosis.shards(QUEUE)
    diagnosis.facts(QUEUE, "1", rate=1.0, max_retries=1, read=lambda error: None)
    assert node_reports.histories(store.client, [QUEUE])[0][QUEUE.name]
    store.forget_report("me")
    store.forget_members("orders", [("me", 4)])
    subscription.wait_pushed(1)
    subscription.close()


def test_they_reach_no_other_key(restricted):
    for command in (
        ("SET", "lowkiq:x", "1"),
        ("GET", "celery"),
        ("HGET", "celery", "x"),
        ("FLUSHALL",),
        ("KEYS", "*"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            restricted.execute_command(*command)
