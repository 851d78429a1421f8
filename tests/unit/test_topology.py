"""What is found about masters, alone and together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.topology import SLOTS, Kind, Master, Server, Topology, check_topology, refusals
from celery_lowkiq.rules.views import ERROR, OK, WARNING

WELL = Server(
    version="7.0.15",
    policy="noeviction",
    aof=True,
    replicas=1,
    min_replicas=True,
    full_coverage=False,
    node_timeout=2.0,
)


def cluster(*servers, shards=16, **options):
    masters = [
        Master(f"m{n}:1", server, SLOTS // len(servers) + (n < SLOTS % len(servers)), {"orders": shards})
        for n, server in enumerate(servers)
    ]
    return replace(Topology(Kind.CLUSTER, tuple(masters), 10.0), **options)


def found(topology):
    """Findings by subject, but those that are well."""
    return {f.subject: f for f in check_topology(topology) if f.level != OK}


def changed(topology, number, **options):
    masters = list(topology.masters)
    masters[number] = replace(masters[number], **options)
    return replace(topology, masters=tuple(masters))


def test_all_is_well():
    assert found(cluster(WELL, WELL, WELL)) == {}
    texts = {f.subject: f.text for f in check_topology(cluster(WELL, WELL, WELL))}
    assert texts["server"] == "Redis 7.0.15"
    assert texts["masters"] == (
        "3 masters, 48 shards, the busiest has 1.00 times its share: m0:1 16, m1:1 16, m2:1 16"
    )
    assert texts["cluster-node-timeout"] == (
        "2 s, and a lease lasts 10 s: when a master fails, its shards wait about 4 s for its replica."
    )


def test_what_one_server_reports_has_no_word_of_a_cluster():
    alone = Topology(Kind.SERVER, (Master("redis:6379", replace(WELL, replicas=0)),), 10.0)
    subjects = [finding.subject for finding in check_topology(alone)]
    assert subjects == ["server", "maxmemory-policy", "persistence", "clock"]


def test_what_differs_names_its_masters():
    texts = [f.text for f in check_topology(cluster(WELL, replace(WELL, policy="allkeys-lru", maxmemory=1)))]
    assert "m1:1: allkeys-lru: a full Redis evicts jobs." in texts
    assert "m0:1: noeviction" in texts


def test_a_master_that_is_away():
    topology = changed(cluster(WELL, WELL), 1, unreachable="Redis is not available: refused", server=Server())
    finding = found(topology)["master m1:1"]
    assert (finding.level, finding.text) == (ERROR, "Redis is not available: refused. Its 16 shards wait.")
    assert set(found(topology)) == {"master m1:1"}


def test_a_master_that_refuses_the_login_needs_the_user():
    """The advice was to start it."""
    topology = changed(cluster(WELL, WELL), 1, unreachable="it refuses", login_refused=True)
    finding = found(topology)["master m1:1"]
    assert finding.advice.startswith("The server is up: `celery -A proj lowkiq acl --cluster` writes the ")


def test_a_master_that_refuses_all_scripts_is_not_away():
    topology = changed(cluster(WELL, replace(WELL, full_coverage=True)), 1, refuses="The cluster is down")
    finding = found(topology)["master m1:1"]
    assert (finding.level, finding.text) == (ERROR, "The cluster is down. Its 16 shards wait.")
    assert "Start it" not in finding.advice
    assert "cluster-require-full-coverage" in found(topology)
    assert not topology.is_whole


@pytest.mark.parametrize(
    "options, text",
    [
        (
            {"min_replicas_to_write": 2, "good_replicas": 1, "replicas": 2},
            "m1:1 refuses them: min-replicas-to-write is 2, and 1 of its 2 connected replicas are up to date "
            "(NOREPLICAS). No call is stored there, and no job of its shards runs.",
        ),
        # CONFIG GET is forbidden.
        (
            {"min_replicas_to_write": None, "good_replicas": 0, "replicas": 0},
            "m1:1 refuses them: min-replicas-to-write is set, and 0 of its 0 connected replicas are up to "
            "date (NOREPLICAS). No call is stored there, and no job of its shards runs.",
        ),
        ({"min_replicas_to_write": 1, "good_replicas": 1}, None),
        ({"min_replicas": False, "min_replicas_to_write": 1, "good_replicas": 0}, None),
        (
            {"maxmemory": 1024, "used_memory": 1024},
            "m1:1 refuses them: it uses 1.0 KiB, and maxmemory is 1.0 KiB (OOM). No call is stored there.",
        ),
        ({"maxmemory": 1025, "used_memory": 1024}, None),
        ({"maxmemory": 0, "used_memory": 1024}, None),
    ],
)
def test_a_master_that_refuses_writes_is_named(options, text):
    topology = changed(cluster(WELL, WELL), 1, server=replace(WELL, **options))
    finding = found(topology).get("writes")
    assert (finding and finding.text) == text
    assert topology.lacks_replicas == ("NOREPLICAS" in str(text))


def test_a_full_redis_needs_memory_before_any_restart():
    """A worker that starts cannot: kombu's writes are refused on the same server."""
    topology = changed(cluster(WELL, WELL), 1, server=replace(WELL, maxmemory=1024, used_memory=1024))
    assert found(topology)["writes"].advice.startswith("Raise maxmemory first, and restart no worker before")


def test_slots_without_a_master():
    topology = replace(changed(cluster(WELL, WELL), 1, slots=0, shards={}), homeless={"orders": 16})
    assert found(topology)["slots"].text == "8192 slots have no master, with shards of orders (16)."


@pytest.mark.parametrize(
    "shards, skew, text",
    [
        ((16, 16, 16), 1.0, None),
        ((4, 6, 2), 1.5, "orders (6 of 12, 1.5 times its share)"),
        ((0,) * 3, 1.0, None),
    ],
)
def test_shards_a_master(shards, skew, text):
    topology = cluster(WELL, WELL, WELL)
    for number, count in enumerate(shards):
        topology = changed(topology, number, shards={"orders": count} if count else {})
    assert topology.skew == skew
    finding = found(topology).get("shards a master")
    assert (finding is not None) == (text is not None)
    if finding:
        assert text in finding.text
        assert "reshard QUEUE 48" in finding.advice


def masters_text(topology):
    return next(f.text for f in check_topology(topology) if f.subject == "masters")


def test_the_share_of_the_busiest_master_is_told_where_there_are_enough_shards():
    """It was told of queues with few shards only."""
    topology = changed(cluster(WELL, WELL, WELL, shards=32), 1, shards={"orders": 80})
    assert found(topology) == {}
    assert masters_text(topology).startswith("3 masters, 144 shards, the busiest has 1.67 times its share: ")
    assert masters_text(cluster(WELL)) == "1 master, 16 shards: m0:1 16"
    assert masters_text(cluster(WELL, WELL, shards=0)) == "2 masters, 0 shards: m0:1 0, m1:1 0"


def test_a_node_timeout_that_is_not_told():
    """Nothing was said of it, so that it looked checked."""
    finding = found(cluster(*[replace(WELL, node_timeout=None)] * 2))["cluster-node-timeout"]
    assert (finding.level, finding.text, finding.advice) == (
        WARNING,
        "The masters do not tell it: CONFIG GET is forbidden.",
        "Look there. With a lease of 10 s, it should be 2667 (ms) at most.",
    )
    finding = found(cluster(replace(WELL, node_timeout=None), lease_seconds=3.0))["cluster-node-timeout"]
    assert finding.advice == "Look there. Set lowkiq_lease_seconds to 6 at least."


def test_a_node_timeout_that_one_master_does_not_tell():
    topology = cluster(WELL, replace(WELL, node_timeout=None))
    texts = [(f.level, f.text) for f in check_topology(topology) if f.subject == "cluster-node-timeout"]
    assert [level for level, _ in texts] == [WARNING, OK]
    assert texts[0][1] == "m1:1: The masters do not tell it: CONFIG GET is forbidden."


def test_one_master_of_a_cluster_needs_no_more_shards():
    assert found(cluster(WELL, shards=5)) == {}


@pytest.mark.parametrize(
    "changes, subject, level, text, advice",
    [
        ({"full_coverage": True}, "cluster-require-full-coverage", WARNING, "all masters refuse", "to no"),
        ({"full_coverage": None}, "cluster-require-full-coverage", WARNING, "CONFIG GET is forbidden", "no"),
        (
            {"node_timeout": 15.0},
            "cluster-node-timeout",
            WARNING,
            "15 s, and a lease lasts 10 s",
            "2667 (ms)",
        ),
        ({"node_timeout": 15.0}, "cluster-node-timeout", WARNING, "run out", "lowkiq_lease_seconds to 41"),
        ({"replicas": 0}, "replicas", WARNING, "m1:1: no replica is connected", "Add one"),
        ({"min_replicas": False}, "min-replicas-to-write", WARNING, "m1:1: a master that is cut off", "Set"),
        ({"ahead": 1.5}, "clocks of masters", WARNING, "differ by 2 s", "NTP"),
        ({"version": "6.0.9"}, "server", ERROR, "m1:1: Redis 6.0.9", "6.2"),
    ],
)
def test_one_master_that_is_set_otherwise(changes, subject, level, text, advice):
    finding = found(cluster(WELL, replace(WELL, **changes)))[subject]
    assert finding.level == level
    assert text in finding.text
    assert advice in finding.advice


def test_the_wait_for_a_failed_master_is_said_as_it_is():
    """It was ok, and half of the shards of a master waited 18 s in a trial."""
    finding = found(cluster(replace(WELL, node_timeout=4.0)))["cluster-node-timeout"]
    assert (finding.level, finding.text) == (
        WARNING,
        "4 s, and a lease lasts 10 s: when a master fails, its shards wait about 8 s for its replica, "
        "and up to 15 s more where leases run out meanwhile.",
    )
    assert finding.advice == (
        "Set cluster-node-timeout to 2667 (ms) at most, or lowkiq_lease_seconds to 14 at least."
    )
    assert found(cluster(replace(WELL, node_timeout=4.0), lease_seconds=14.0)) == {}


def test_a_short_lease_needs_no_node_timeout_that_is_too_short_for_a_slow_network():
    finding = found(cluster(WELL, lease_seconds=3.0))["cluster-node-timeout"]
    assert finding.advice == "Set lowkiq_lease_seconds to 9 at least."


@pytest.mark.parametrize("text", ["Redis is not available: refused", "Redis is not available: refused."])
def test_a_sentence_ends_once(text):
    topology = changed(cluster(WELL, WELL), 1, unreachable=text, server=Server())
    assert found(topology)["master m1:1"].text == "Redis is not available: refused. Its 16 shards wait."
    topology = changed(cluster(WELL), 0, refused={"TIME in scripts": text})
    assert "refused. No call can be stored" in found(topology)["commands"].text


def test_what_is_whole():
    assert cluster(WELL, WELL).is_whole
    assert not changed(cluster(WELL, WELL), 1, unreachable="gone").is_whole
    assert not changed(cluster(WELL, WELL), 1, slots=0).is_whole
    assert changed(cluster(WELL, WELL), 1, slots=0).unassigned == 8192
    assert Topology(Kind.SERVER, (Master("redis:6379", WELL),), 10.0).is_whole


def test_the_place_behind_sentinels_stands_beside_the_name():
    master = Master("mymaster db 0", replace(WELL, replicas=0), place="[::1]:6379")
    finding = found(Topology(Kind.SENTINEL, (master,), 10.0))["replicas"]
    assert finding.text.startswith("mymaster db 0 ([::1]:6379): ")


def test_clocks_that_were_measured_roughly_are_not_said_to_differ():
    slow = replace(WELL, ahead=1.5, give_or_take=1.0)
    assert "clocks of masters" not in found(cluster(WELL, slow))
    assert cluster(WELL, slow).clock_skew == 0.5


def test_behind_sentinels():
    master = Master("mymaster db 0", replace(WELL, replicas=2, min_replicas=False))
    topology = Topology(Kind.SENTINEL, (master,), 10.0)
    assert set(found(topology)) == {"min-replicas-to-write"}
    assert set(found(changed(topology, 0, server=replace(WELL, replicas=0)))) == {"replicas"}


def test_a_command_that_is_refused():
    topology = changed(cluster(WELL, WELL), 0, refused={"TIME in scripts": "ERR not allowed"})
    finding = found(topology)["commands"]
    assert finding.level == ERROR
    assert finding.text == (
        "m0:1: Redis refuses TIME in scripts: ERR not allowed. No call can be stored, and none runs."
    )
    (of_user,) = refusals({"EVALSHA": "Redis does not permit this (NOPERM): no permissions"})
    assert "No call can be stored" not in of_user.text
    assert of_user.advice.startswith("Look with the user of a reader")
    (weaker,) = refusals({"INFO in scripts": "NOPERM"})
    assert weaker.level == WARNING
