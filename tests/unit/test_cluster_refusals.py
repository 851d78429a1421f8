"""A master that answers and refuses: one line when that begins, and one when it ends."""

from __future__ import annotations

import re
import threading

import pytest

from celery_lowkiq.rules.errors import AccessDenied, LoginRefused, MasterDenies, StoreFull, StoreUnavailable
from celery_lowkiq.rules.topology import check_users
from celery_lowkiq.store import cluster_map
from celery_lowkiq.store import cluster_map as cluster_outages
from celery_lowkiq.store.cluster_map import parse_replicas
from celery_lowkiq.store.script import load
from tests.unit import test_cluster_client as others
from tests.unit.resp_nodes import NOT_HERE, number
from tests.unit.test_cluster_client import A, B, C, results
from tests.waiting import eventually

cluster, make_client, client = others.cluster, others.make_client, others.client


@pytest.fixture(autouse=True)
def only_outages(caplog):
    caplog.set_level("WARNING")


def refuse(node, text):
    node.answer = lambda words: b"-%s\r\n" % text


NOREPLICAS = b"NOREPLICAS Not enough good replicas to write."


@pytest.mark.parametrize(
    "reply, line, follows, end",
    [
        (NOREPLICAS, "refuses writes: NOREPLICAS Not enough good replicas to write.", "", "writes"),
        (
            NOREPLICAS + b" script: 0a1b, on @user_script:7.",
            "refuses writes: NOREPLICAS Not enough good replicas to write.",
            "",
            "writes",
        ),
        (
            b"ERR Error running script (call to f_1): @user_script:7: -NOREPLICAS Not enough.",
            "refuses writes: NOREPLICAS Not enough.",
            "",
            "writes",
        ),
        (b"MISCONF The disk is full", "refuses writes: MISCONF The disk is full.", "", "writes"),
        (b"READONLY You can't write.", "refuses writes: READONLY You can't write.", "", "writes"),
        (
            b"OOM command not allowed.",
            "refuses calls: OOM command not allowed.",
            "Jobs that it has stored run.",
            "calls",
        ),
        (
            b"CLUSTERDOWN The cluster is down",
            "refuses all commands: CLUSTERDOWN The cluster is down (a slot has no master, and "
            "cluster-require-full-coverage is yes, or most masters are unreachable).",
            "",
            "all commands",
        ),
    ],
)
def test_what_a_master_refuses_is_one_line_and_its_end(cluster, client, caplog, reply, line, follows, end):
    """Nothing was logged: its shards stood still."""
    client.cluster.waits_less = True
    node = cluster.nodes[0]
    refuse(node, reply)
    for _ in range(3):
        refused, answered = results(client, A, B)
        assert isinstance(refused, StoreUnavailable)
        assert answered == 1
    node.answer = lambda words: number(1)
    for _ in range(2):
        results(client, A, B)
    name = f"Redis {node.place.decode()}"
    begun, ended = caplog.messages
    assert begun == f"{name} {line} {follows or 'Its shards wait.'}"
    assert re.fullmatch(rf"{name} accepts {end} again after \d\.\d s\.", ended)


def test_another_command_that_is_executed_does_not_end_it(cluster, client, caplog):
    """What only reads is."""
    node = cluster.nodes[0]
    node.answer = lambda words: b"-%s\r\n" % NOREPLICAS if words[0] == b"EVALSHA" else number(1)
    results(client, A)
    client.commands([("HLEN", A)])
    results(client, A)
    assert len(caplog.messages) == 1


def test_a_master_that_denies_the_loading_of_scripts_holds_up_its_own_shards_only(cluster, client, caplog):
    """Each reply was lost, also that of a job that another master had settled; a worker renewed no lease."""
    client.cluster.waits_less = True
    node = cluster.nodes[0]
    denied = b"-NOPERM User app has no permissions to run the 'script|load' command\r\n"
    node.answer = lambda words: denied if words[0] == b"SCRIPT" else NOT_HERE
    for _ in range(2):
        refused, *answered = results(client, A, B, C)
        assert isinstance(refused, MasterDenies)
        assert answered == [1, 1]
    # Another process may load it.
    node.answer = lambda words: number(1)
    assert results(client, A) == [1]
    begun, ended = caplog.messages
    assert "script|load" in begun
    assert begun.endswith("Its shards wait.")
    assert f"{node.place.decode()} accepts the commands of this user again" in ended


def test_a_master_that_has_some_of_the_scripts_denies_the_loading_of_others_once(cluster, client, caplog):
    """Each one that it had ended the refusal in the log, and the next one that it lacked began another."""
    client.cluster.waits_less = True
    node, there = cluster.nodes[0], load("read_leases")
    denied = b"-NOPERM User app has no permissions to run the 'script|load' command\r\n"

    def answer(words):
        if words[0] == b"SCRIPT":
            return denied
        return number(1) if words[1].decode() == there.shas[True] else NOT_HERE

    node.answer = answer
    for _ in range(3):
        (refused,) = results(client, A)
        assert isinstance(refused, MasterDenies)
        assert client.calls([there.call_many([A])]) == [1]
    assert len(caplog.messages) == 1
    # Those of a worker are sent together once.
    loads = [words[2].decode() for words in node.heard if words[0] == b"SCRIPT"]
    assert len(loads) == len(set(loads)) + 2


def test_a_slot_that_is_not_served_is_no_refusal_of_all(cluster, client, caplog):
    client.cluster.waits_less = True
    refuse(cluster.nodes[0], b"CLUSTERDOWN Hash slot not served")
    results(client, A)
    assert caplog.messages == []


def test_a_map_from_before_a_failover_begins_no_other_one(cluster, client, monkeypatch, caplog):
    """The refusals of a master that was not in a late node's map were forgotten, and logged again."""
    node, outages = cluster.nodes[0], client.cluster.map.outages
    refuse(node, NOREPLICAS)
    results(client, A)
    current = list(client.cluster.map.slots())
    earlier = [None if master == node.address else master for master in current]
    for slots in (earlier, current):
        outages.found(slots)
    results(client, A)
    assert len(caplog.messages) == 1
    # Nothing is asked of a node that is no master: what it refuses is not kept.
    monkeypatch.setattr(cluster_outages, "UNWATCHED", -1.0)
    outages.found(current)
    assert outages.refusing
    outages.found(earlier)
    assert not outages.refusing


def test_a_refusal_from_before_its_end_begins_no_other_one(cluster, client, caplog):
    node = cluster.nodes[0]
    refuse(node, NOREPLICAS)
    results(client, A)
    (refusals,) = client.cluster.map.outages.refusing.values()
    command, sent_at = next(iter(refusals.commands)), refusals.since
    node.answer = lambda words: number(1)
    results(client, A)
    refused = cluster_outages.Refused(cluster_outages.WRITES, "late", sent_at)
    client.cluster.map.outages.refused(node.address, command, refused)
    assert len(caplog.messages) == 2


def test_a_login_that_one_master_refuses_names_it_and_what_to_do(cluster, make_client, caplog):
    """A promoted replica: Redis does not copy users. Nothing was logged, and the error blamed the URL."""
    client = make_client(username="app", password="secret")
    node, logins = cluster.nodes[0], []
    reply = node._reply

    def answer(words):
        if words[0] != b"AUTH":
            return reply(words)
        logins.append(words)
        return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"

    for other in cluster.nodes:
        other._reply = lambda words, of=other._reply: b"+OK\r\n" if words[0] == b"AUTH" else of(words)
    client.cluster.map.slots()
    node._reply = answer
    for _ in range(3):
        refused, answered = results(client, A, B)
        assert isinstance(refused, LoginRefused)
        assert answered == 1
    assert logins
    name = f"Redis {node.place.decode()}"
    assert str(refused).startswith(
        f"{name} refuses user or password (WRONGPASS): create the user there (`celery -A proj lowkiq acl "
        "--cluster` writes its rights) because Redis copies users neither to replicas nor to other masters"
    )
    assert caplog.messages == [f"{refused}. Its shards wait."]
    node._reply = lambda words: b"+OK\r\n" if words[0] == b"AUTH" else reply(words)
    results(client, A)
    results(client, A)
    assert re.fullmatch(rf"{name} accepts the login again after \d\.\d s\.", caplog.messages[1])
    assert len(caplog.messages) == 2
    assert "secret" not in caplog.text


def test_errors_of_a_full_master_and_of_missing_rights_name_it(cluster, client):
    node = cluster.nodes[0]
    name = node.place.decode()
    refuse(node, b"OOM command not allowed when used memory > 'maxmemory'.")
    (full,) = results(client, A)
    assert isinstance(full, StoreFull)
    assert str(full).startswith(
        f"Redis {name} is at its maxmemory: nothing was stored. Raise maxmemory first"
    )
    refuse(node, b"NOPERM this user has no permissions to run the 'evalsha' command")
    (denied,) = results(client, A)
    assert isinstance(denied, AccessDenied)
    assert str(denied).startswith(f"Redis {name} does not permit this (NOPERM): ")


@pytest.mark.parametrize(
    "command, refused, answered",
    [
        (b"CLUSTER", b"-NOPERM User app has no permissions to run the 'cluster|slots' command\r\n", int),
        (b"AUTH", b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", LoginRefused),
    ],
)
def test_a_silent_master_that_refuses_has_answered(
    cluster, make_client, monkeypatch, command, refused, answered
):
    """It was asked for the map only, which it refuses: its shards waited for ever, for one slow answer."""
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    client = make_client(socket_timeout=0.2, username="app", password="secret")
    for each in cluster.nodes:
        each._reply = lambda words, of=each._reply: b"+OK\r\n" if words[0] == b"AUTH" else of(words)
    node, late = cluster.nodes[0], threading.Event()
    client.cluster.map.slots()
    client.cluster.map._seeds[:] = [cluster.nodes[1].address]
    node.answer = lambda words: late.wait(10) and number(1)
    assert isinstance(results(client, A)[0], StoreUnavailable)
    assert node.address in client.cluster.map.outages.unresponsive
    reply = node._reply
    node._reply = lambda words: refused if words[0] == command else reply(words)
    late.set()
    eventually(lambda: isinstance(results(client, A)[0], answered))


def test_a_process_that_noticed_the_end_late_does_not_say_that_it_was_the_end(
    cluster, client, monkeypatch, caplog
):
    """The dashboard of a quiet night: "is back after 746.1 s", of an outage of 33 s."""
    monkeypatch.setattr(cluster_outages, "UNWATCHED", 0.0)
    node = cluster.nodes[0]
    node.answer = lambda words: None
    results(client, A)
    node.answer = lambda words: number(1)
    results(client, A)
    pattern = r"is back after \d\.\d s to \d\.\d s \(nothing was sent to it meanwhile\)\.$"
    assert re.search(pattern, caplog.messages[1])


def test_a_process_that_asks_all_the_time_knows_the_end(cluster, client, caplog):
    node = cluster.nodes[0]
    node.answer = lambda words: None
    results(client, A)
    address = node.address
    outage = client.cluster.map.outages.unreachable[address]
    # An hour of attempts.
    client.cluster.map.outages.unreachable[address] = outage._replace(since=outage.since - 3600.0)
    results(client, A)
    node.answer = lambda words: number(1)
    results(client, A)
    assert re.search(r"is back after 360\d\.\d s\.$", caplog.messages[1])


def test_the_replicas_of_all_masters_are_read():
    master = [b"a", 1, b"id", []]
    reply = [
        [0, 9, master, [b"b", 2, b"id", []], [b"", 3, b"id", []]],
        [10, 19, master],
        # Of Redis 6.2, and one whose place is forgotten.
        [20, 29, master, [b"b", 2, b"id"], [b"c", 0, b"id"]],
    ]
    assert parse_replicas(reply, ("asked", 1)) == {("b", 2), ("asked", 3)}


def test_only_replicas_that_refuse_the_login_are_named(cluster, make_client):
    client = make_client(username="app", password="secret")
    node = cluster.nodes[1]
    for each in cluster.nodes:
        each._reply = lambda words, of=each._reply: b"+OK\r\n" if words[0] == b"AUTH" else of(words)
    host, port = (text.encode() for text in map(str, node.address))
    replica = b"*2\r\n$%d\r\n%s\r\n:%s\r\n" % (len(host), host, port)
    slots = b"*1\r\n*4\r\n:0\r\n:16383\r\n%s%s" % (
        replica.replace(port, b"%d" % cluster.nodes[0].address[1]),
        replica,
    )
    cluster.nodes[0]._slots = lambda: slots
    assert client.cluster.refusing_replicas() == []
    node._reply = lambda words: b"-WRONGPASS invalid username-password pair.\r\n"
    assert client.cluster.refusing_replicas() == [node.place.decode()]
    node.stop()
    assert client.cluster.refusing_replicas() == []


def test_replicas_that_refuse_the_login_are_a_warning():
    assert list(check_users([])) == []
    (found,) = check_users(["a:1", "b:2"])
    assert (found.level, found.text[:8]) == ("warning", "a:1, b:2")
