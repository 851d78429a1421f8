"""A checkup of a real server."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from dataclasses import replace
from unittest import mock

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.health import check_health
from celery_lowkiq.rules.models import Disposition, QueueSpec
from celery_lowkiq.rules.topology import check_topology
from celery_lowkiq.rules.views import ERROR, OK, WARNING, NodeReport, NodeUpdate
from celery_lowkiq.store import health
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.health import read_state, read_topology
from celery_lowkiq.store.keys import queue_key
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Pausing
from tests.store.helpers import ONE, SHARD, claim, end, push, take


def found(store, *queues):
    """Texts by subject and level."""
    texts = defaultdict(list)
    topology = read_topology(store.client, queues, 10.0)
    for finding in check_health(read_state(store.client, queues, topology)):
        texts[finding.subject, finding.level].append(finding.text)
    return {key: " ".join(some) for key, some in texts.items()}


def serve(store, owner="me-1"):
    report = NodeReport("me", owner, 1, 10.0, False, False, (ONE.name,), ())
    store.beat([], owner, 1, 1, NodeUpdate(report, 3600.0))


def test_what_a_server_says_of_itself(store, client):
    answers = found(store)
    version = client.info("server")["redis_version"]
    assert answers["server", OK].split()[0] in ("Redis", "Valkey")
    if "Redis" in answers["server", OK]:
        assert answers["server", OK] == f"Redis {version}"
    assert answers["maxmemory-policy", OK] == "noeviction"
    assert ("clock", OK) in answers
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", 10**9)
    try:
        assert "evicts jobs" in found(store)["maxmemory-policy", ERROR]
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


def test_the_clocks_are_compared_to_half_of_a_round_trip(store, monkeypatch):
    now = store.client.commands([("TIME",)])[0]
    asked_and_answered = itertools.cycle([float(now[0]) - 3, float(now[0]) + 3])
    monkeypatch.setattr(health, "time", mock.Mock(time=asked_and_answered.__next__))
    server = read_topology(store.client, [], 10.0).masters[0].server
    assert server.give_or_take == 3
    assert server.ahead == pytest.approx(0, abs=60)


@pytest.mark.one_server
def test_what_a_worker_asks_about_memory_needs_no_config(store, client):
    """P1: managed servers forbid CONFIG; where INFO is forbidden as well, nothing is known."""
    client.execute_command("ACL", "SETUSER", "managed", "on", ">x", "~*", "+@all", "-config")
    client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-config", "-info")
    client.config_set("maxmemory-policy", "allkeys-lfu")
    client.config_set("maxmemory", 10**9)
    path = client.connection_pool.connection_kwargs["path"]
    try:
        found = {}
        for name in ("managed", "few"):
            user = connect({"path": path, "username": name, "password": "x"}, pool_size=2, pool_timeout=5)
            found[name] = RedisStore(user).masters([SHARD])[0].server
            user.connection_pool.disconnect()
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        client.execute_command("ACL", "DELUSER", "managed", "few")
    assert (found["managed"].policy, found["managed"].maxmemory) == ("allkeys-lfu", 10**9)
    assert (found["few"].policy, found["few"].maxmemory) == (None, 0)


def test_what_is_written_to_disk(store, client):
    (save,) = client.config_get("save").values()
    try:
        client.config_set("save", "")
        assert "loses all jobs" in found(store)["persistence", WARNING]
        client.config_set("save", "3600 1")
        assert "Snapshots only" in found(store)["persistence", WARNING]
    finally:
        client.config_set("save", save)


def test_a_clock_that_differs(store):
    now = time.time()
    with mock.patch.object(health.time, "time", return_value=now + 60):
        assert "behind this host's" in found(store)["clock", WARNING]


@pytest.mark.one_server
def test_what_the_user_may_not_read(store, client):
    client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-config", "-info")
    known = {"path": client.connection_pool.connection_kwargs["path"], "username": "few", "password": "x"}
    limited = connect(known, pool_size=2, pool_timeout=5)
    try:
        answers = found(RedisStore(limited))
        assert answers["server", OK] == "Redis of an unknown version"
        assert "does not show" in answers["maxmemory-policy", WARNING]
        assert "CONFIG GET is forbidden" in answers["persistence", WARNING]
    finally:
        limited.connection_pool.disconnect()
        client.execute_command("ACL", "DELUSER", "few")


def test_queues(store, client):
    assert found(store, ONE)["queue orders", OK].startswith("It is new: ")
    push(store, "1", ("a", 1))
    assert found(store, ONE)["queue orders", ERROR] == "No worker serves it; 1 job waits."
    lease = take(store, owner="me-1")
    serve(store)
    assert found(store, ONE)["queue orders", OK] == "1 job waits, 1 shard is served"
    claim(store, lease)
    serve(store, "other-1")
    store.forget_report("me-1")
    answers = found(store, ONE)
    assert "without a living owner (me)" in answers["queue orders", WARNING]
    Pausing(store.client).switch_queue(ONE, paused=True)
    assert "has been paused" in found(store, ONE)["queue orders", WARNING]
    more = QueueSpec("orders", shards=2)
    assert "It has 1 shards, the code declares 2" in found(store, more)["queue orders", WARNING]
    client.hset(queue_key("orders"), "format", 7)
    assert "stored in format 7" in found(store, ONE)["queue orders", ERROR]


def test_dead_jobs_and_poison_pills_are_found(store):
    poison = replace(ONE, poison_error=b"poison pill: alone")
    lease = take(store, owner="me-1")
    for number, error in enumerate((b"boom", poison.poison_error, b"boom")):
        push(store, str(number), ("a", 1))
        end(store, lease, claim(store, lease), Disposition.BURY, error=error)
    serve(store)
    assert found(store, poison)["queue orders", WARNING].startswith(
        "3 jobs are dead, and 1 is a poison pill: "
    )


def test_a_late_queue_is_found_with_its_cause(store):
    now = time.time()
    push(store, "1", ("a", 1), perform_in=now - 1134)
    take(store, owner="me-1")
    serve(store)
    text = found(store, ONE)["queue orders", WARNING]
    assert text.startswith("Jobs are 18 min 5")
    assert "1 due job of shard 0" in text


def test_a_server_that_is_not_there(tmp_path):
    away = RedisStore(connect({"path": str(tmp_path / "none")}, pool_size=1, pool_timeout=1))
    with pytest.raises(StoreUnavailable):
        read_topology(away.client, [ONE], 10.0)


@pytest.mark.one_server
@pytest.mark.parametrize("command", ["time", "info"])
def test_a_command_that_scripts_may_not_run_is_named(store, client, command):
    """Some managed services forbid TIME in scripts: nothing works there, and not each server says why."""
    client.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", f"-{command}")
    known = {"path": client.connection_pool.connection_kwargs["path"], "username": "few", "password": "x"}
    limited = RedisStore(connect(known, pool_size=2, pool_timeout=5))
    try:
        (master,) = limited.masters([SHARD])
        topology = read_topology(limited.client, [ONE], 10.0)
    finally:
        limited.close()
        client.execute_command("ACL", "DELUSER", "few")
    name = f"{command.upper()} in scripts"
    assert list(master.refused) == [name]
    (finding,) = (finding for finding in check_topology(topology) if finding.subject == "commands")
    assert finding.level == (ERROR if command == "time" else WARNING)
    assert f"Redis refuses {name}: " in finding.text
