"""What is found, and what to do about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.errors import (
    AccessDenied,
    ClusterNode,
    LoginRefused,
    SentinelAddress,
    StoreUnavailable,
)
from celery_lowkiq.rules.health import QueueState, SystemState, check_health, unreachable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.topology import Kind, Master, Server, Topology
from celery_lowkiq.rules.views import (
    ERROR,
    OK,
    WARNING,
    IdCalls,
    LaneReport,
    NodeReport,
    Paused,
    ShardReport,
    Stats,
    Wait,
)

NOW = 1_795_000_000.0
WELL = Server("Redis", "7.0.15", "noeviction", 0, True, "everysec", "", True, 0.2, 0.1)


def node(name="a@host", queues=("orders",), **options):
    options = {"started_at": NOW - 3600, "seen_at": NOW - 1, "silent": 1.0, **options}
    quiet = options.pop("quiet", False)
    return NodeReport(name, f"{name}-1", 1, 10.0, quiet, False, queues, (), **options)


def shard(index=0, owner="a@host", since=NOW - 3600, alive=True, silent=1.0, **stats):
    return ShardReport(index, Stats(**stats), owner, 5, since, alive, silent, None, None)


def queue(*shards, **options):
    found = shards or (shard(0), shard(1))
    clocks = dict.fromkeys(range(len(found)), NOW)
    state = QueueState("orders", len(found), len(found), "4", found, now=NOW, clocks=clocks)
    return replace(state, **options)


def findings(server=WELL, nodes=None, queues=None):
    masters = Topology(Kind.SERVER, (Master("redis:6379", server),), 10.0)
    state = SystemState(
        "4", masters, [node()] if nodes is None else nodes, [queue()] if queues is None else queues
    )
    return check_health(state)


def levels(found):
    return {(finding.level, finding.subject) for finding in found if finding.level != OK}


def test_all_is_well():
    found = findings()
    assert levels(found) == set()
    assert [finding.subject for finding in found] == [
        "connection",
        "server",
        "maxmemory-policy",
        "persistence",
        "clock",
        "nodes",
        "queue orders",
    ]
    assert not any(finding.advice for finding in found)


@pytest.mark.parametrize(
    "changed, level, subject, text",
    [
        ({"version": "6.0.16"}, ERROR, "server", "Redis 6.0.16"),
        ({"version": "6.2.0"}, OK, "server", "Redis 6.2.0"),
        ({"name": "Valkey", "version": "8.1"}, OK, "server", "Valkey 8.1"),
        ({"version": ""}, OK, "server", "Redis of an unknown version"),
        ({"policy": "allkeys-lru"}, WARNING, "maxmemory-policy", "harmless while no maxmemory"),
        ({"policy": "allkeys-lru", "maxmemory": 5}, ERROR, "maxmemory-policy", "evicts jobs"),
        ({"policy": "volatile-ttl", "maxmemory": 5}, ERROR, "maxmemory-policy", "what drop_stale knows"),
        ({"policy": "volatile-lru"}, WARNING, "maxmemory-policy", "harmless while no maxmemory"),
        ({"policy": None}, WARNING, "maxmemory-policy", "does not show"),
        ({"appendfsync": "always"}, OK, "persistence", "loses nothing"),
        ({"appendfsync": None}, OK, "persistence", "loses the last second or two"),
        ({"appendfsync": "no"}, OK, "persistence", "loses what the operating system"),
        ({"written": False}, ERROR, "persistence", "last write to disk failed"),
        ({"aof": False, "save": ""}, WARNING, "persistence", "loses all jobs"),
        ({"aof": False, "save": "3600 1"}, WARNING, "persistence", "since the last one"),
        ({"aof": False, "save": None}, WARNING, "persistence", "CONFIG GET is forbidden"),
        ({"aof": None}, WARNING, "persistence", "No append-only file is known"),
        ({"ahead": -1.05}, OK, "clock", "differ by 1 s at most"),
        ({"ahead": 125.0}, WARNING, "clock", "Redis's clock is 2 min 5 s ahead of this host's"),
        ({"ahead": -5.0}, WARNING, "clock", "Redis's clock is 5 s behind this host's"),
    ],
)
def test_the_server(changed, level, subject, text):
    (found,) = [f for f in findings(replace(WELL, **changed)) if f.subject == subject]
    assert found.level == level
    assert text in found.text
    assert bool(found.advice) == (level != OK)


def test_a_server_that_is_not_there():
    found = unreachable(StoreUnavailable("Redis is not available: refused"), "lowkiq_url")
    assert (found.level, found.subject, "Is the server up" in found.advice) == (ERROR, "connection", True)


@pytest.mark.parametrize(
    "setting, how",
    [("lowkiq_url", "percent-encode"), ("broker_url", "set lowkiq_url"), ("lowkiq_redis_options", "replace")],
)
def test_a_login_that_is_refused_names_the_setting_and_a_way_to_try_it(setting, how):
    found = unreachable(LoginRefused("Redis refuses user or password (WRONGPASS)"), setting)
    assert "Is the server up" not in found.advice
    assert all(word in found.advice for word in (setting, how, "redis-cli --user USER --askpass PING"))


def test_rights_that_lack_are_no_question_of_the_network():
    assert "Is the server up" not in unreachable(AccessDenied("NOPERM"), "lowkiq_url").advice


@pytest.mark.parametrize(
    "error, advice",
    [
        (ClusterNode(), ""),
        (SentinelAddress("HGET"), ""),
        (StoreUnavailable("Redis is not available: no master has a slot"), "redis-cli --cluster create"),
        (StoreUnavailable("Redis is not available: No master found for 'my'"), "SENTINEL MASTERS"),
        (
            StoreUnavailable(
                "Redis is not available: No master found for 'my': no sentinel answers: a:1 (x)"
            ),
            "Are they up",
        ),
    ],
)
def test_the_general_advice_is_for_what_nothing_better_is_known_of(error, advice):
    found = unreachable(error, "lowkiq_url")
    assert found.text == str(error)
    assert advice in found.advice
    assert bool(found.advice) == bool(advice)
    assert "Is the server up" not in found.advice


@pytest.mark.parametrize("text", ["Connection closed by server.", "(104, 'Connection reset by peer')"])
def test_a_port_with_tls_is_named_as_a_possibility(text):
    """A port with TLS closes a connection without it, as a server does that stops."""
    advice = unreachable(StoreUnavailable(f"Redis is not available: {text}"), "lowkiq_url").advice
    assert advice.startswith(
        "Is the server up? If so, this may be a port with TLS: the URL begins with rediss"
    )


def test_nodes_that_died_or_are_quiet():
    found = findings(nodes=[node(), node("b@host", silent=300.0), node("c@host", (), quiet=True)])
    assert levels(found) == {(WARNING, "node b@host"), (WARNING, "node c@host")}
    texts = {finding.subject: finding.text for finding in found}
    assert texts["nodes"] == "1 at work: a@host"
    assert "last heard of 5 min ago" in texts["node b@host"]


@pytest.mark.parametrize(
    "found, level, text",
    [
        (queue(stored=5), WARNING, "It has 5 shards, the code declares 2; the stored number applies"),
        (queue(stored=5, former=4), WARNING, "It is moving from 4 to 5 shards."),
        (queue(stored=5, former=4, migration_paused=True), WARNING, "and the move is paused"),
        (queue(format="2"), ERROR, "in format 2; this release reads format 4 only"),
        (queue(format=""), ERROR, "It is stored without the number of its format"),
        (queue(stored=None, format=None), OK, "0 jobs wait, 2 shards are served"),
        (queue(shard(0, length=1), declared=1, stored=1), OK, "1 job waits, 1 shard is served"),
        (queue(paused=Paused(None, {}, 1)), WARNING, "1 id is paused"),
        (queue(paused=Paused(NOW - 60, {}, 0)), WARNING, "paused since 2026-11-18 11:05:40 UTC (1 min ago)"),
        (queue(paused=Paused(None, {3: NOW - 60, 5: NOW}, 0)), WARNING, "Shards paused by themselves: 3, 5"),
        (queue(paused=Paused(None, {}, 7)), WARNING, "7 ids are paused"),
        (
            queue(shard(0), shard(1, None, NOW - 31, alive=False)),
            ERROR,
            "No node takes shard 1, though nodes",
        ),
        (queue(shard(0, None, None, alive=False)), ERROR, "No node takes shard 0"),
        (queue(*(shard(n, None, None, alive=False) for n in range(12))), ERROR, "8, 9 and 2 more"),
        # It changes hands.
        (queue(shard(0, None, NOW - 29, alive=False)), OK, "shard is served"),
        (queue(shard(0, "dead", alive=False, silent=29.0)), OK, "shard is served"),
        (queue(shard(0, "dead", alive=False, silent=31.0)), ERROR, "No node takes shard 0"),
        (queue(shard(0, "dead", alive=False, silent=None)), ERROR, "No node takes shard 0"),
        (
            queue(shard(0, "dead", alive=False, silent=20.0, busy=3)),
            WARNING,
            "3 jobs are in processing in shard 0 without a living owner (dead)",
        ),
        (queue(shard(0, busy=3)), OK, "shard is served"),
    ],
)
def test_queues(found, level, text):
    (finding,) = [f for f in findings(queues=[found]) if f.subject == "queue orders"]
    assert (finding.level, bool(finding.advice)) == (level, level != OK)
    assert text in finding.text


@pytest.mark.parametrize(
    "nodes", [[], [node(silent=11.0)], [node(queues=("others",))], [node(queues=(), quiet=True)]]
)
def test_a_queue_that_nobody_serves(nodes):
    empty = queue(shard(0, None, None, alive=False, silent=None))
    waiting = queue(shard(0, None, None, alive=False, silent=None, length=2))
    assert (WARNING, "queue orders") in levels(findings(nodes=nodes, queues=[empty]))
    (found,) = [f for f in findings(nodes=nodes, queues=[waiting]) if f.subject == "queue orders"]
    assert (found.level, found.text) == (ERROR, "No worker serves it; 2 jobs wait.")


def test_a_queue_before_the_first_worker_is_no_problem():
    """``check --deploy`` warned of each queue before the first deployment."""
    empty = queue(shard(0, None, None, alive=False, silent=None), stored=None)
    (found,) = [f for f in findings(nodes=[], queues=[empty]) if f.subject == "queue orders"]
    assert (found.level, found.text) == (OK, "It is new: no call is stored, and no worker has served it yet.")
    waiting = queue(shard(0, None, None, alive=False, silent=None, length=2), stored=None)
    assert (ERROR, "queue orders") in levels(findings(nodes=[], queues=[waiting]))


def test_shards_that_are_late_while_lanes_are_free():
    late = shard(1, busy=1, due=9, lag=40.0)
    shards = [(ShardRef("orders", index),) for index in range(2)]
    lanes = tuple(LaneReport(f"lane-{number}", one, 1, None, number) for number, one in enumerate(shards))
    serving = [replace(node(), lanes=(*lanes, *(replace(lanes[0], shards=()),) * 2), seen_at=NOW)]
    found = findings(nodes=serving, queues=[queue(shard(0), late)])
    (finding,) = [one for one in found if one.level != OK]
    assert (finding.level, finding.subject) == (WARNING, "queue orders")
    assert "Ids wait for each other in orders/1" in finding.text
    assert finding.advice.endswith("celery -A proj lowkiq reshard orders 11")
    # A rate limit makes jobs late, too; a migration has begun; the queue was never stored.
    for other in ({"limited": True}, {"former": 1, "declared": 2}, {"stored": None}):
        found = findings(nodes=serving, queues=[queue(shard(0), late, **other)])
        assert not any("Ids wait" in one.text for one in found)


def test_a_node_that_has_just_started_takes_its_shards_soon():
    just = queue(shard(0, None, None, alive=False, silent=None))
    assert levels(findings(nodes=[node(started_at=NOW - 5)], queues=[just])) == set()


def test_x_shards_that_wait_out_a_lease_of_another_redis_are_named_with_the_time_left():
    """X: by the nodes that wait for them; what has an owner by now waits no more."""
    free = [shard(index, owner=None, since=NOW - 3, alive=False, silent=None) for index in range(3)]
    refs = [ShardRef("orders", index) for index in range(4)]
    nodes = [
        node(waits=(Wait((refs[0], refs[1], refs[3]), 8.0),)),
        node("b@host", waits=(Wait(tuple(refs), 6.0),)),
        node("dead@host", silent=60.0, waits=(Wait(tuple(refs), 70.0),)),
    ]
    (found,) = [f for f in findings(nodes=nodes, queues=[queue(*free, shard(3))]) if "free in" in f.text]
    assert (found.level, found.subject) == (WARNING, "queue orders")
    assert found.text == "Shards 0-2: Redis restarted, failed over or lost data; free in 5 s."
    assert found.advice


def test_after_a_flush_shards_that_nodes_wait_for_are_no_error():
    """Redis knows of no former owner then: "No node takes shards" stood beside "Wait for it"."""
    flushed = [shard(index, owner=None, since=None, alive=False, silent=None) for index in range(3)]
    waits = (Wait((ShardRef("orders", 0), ShardRef("orders", 1)), 8.0),)
    found = [f for f in findings(nodes=[node(waits=waits)], queues=[queue(*flushed)]) if f.level != OK]
    assert [(f.level, f.text) for f in found] == [
        (ERROR, "No node takes shard 2, though nodes serve the queue."),
        (WARNING, "Shards 0-1: Redis restarted, failed over or lost data; free in 7 s."),
    ]


def test_ids_with_a_backlog_are_named_with_their_calls():
    busiest = (IdCalls("orders", "42", 100_000), IdCalls("orders", "7", 1001), IdCalls("orders", "8", 1000))
    crowded = shard(0, length=5, calls=102_003, oldest_call=720.0, busiest=busiest)
    (found,) = [f for f in findings(queues=[queue(crowded, shard(1))]) if f.level != OK]
    assert (found.level, found.subject) == (WARNING, "queue orders")
    assert found.text == (
        "Of 102,003 waiting calls, the oldest for 12 min, 100,000 of id 42, 1,001 of id 7 wait."
    )
    assert "why orders 42" in found.advice


def test_a_queue_that_is_well_shows_jobs_and_calls():
    (found,) = [f for f in findings(queues=[queue(shard(0, length=2, calls=9))]) if "orders" in f.subject]
    assert "2 jobs with 9 calls wait" in found.text
