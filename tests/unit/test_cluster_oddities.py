"""The client of a cluster whose nodes have lost what they knew, moved house, or answer nonsense."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_lowkiq.rules.errors import AccessDenied, StoreUnavailable
from celery_lowkiq.store import cluster_map
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.cluster_client import ClusterClient
from celery_lowkiq.store.cluster_map import parse_slots, slot_of
from celery_lowkiq.store.connect import connect_cluster
from tests.unit import test_cluster_client as others
from tests.unit.resp_nodes import number
from tests.unit.test_cluster_client import A, B, C, call, once, results
from tests.waiting import Stopwatch, eventually

cluster, make_client, client = others.cluster, others.make_client, others.client


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
def test_a_node_without_a_hostname_is_where_the_other_one_is(cluster, client, word):
    """``cluster-preferred-endpoint-type hostname``, and no hostname: Redis names the host ``?``."""
    once(cluster.nodes[0], b"-%s %d ?:%d\r\n" % (word.encode(), slot_of(A), cluster.nodes[1].address[1]))
    assert results(client, A) == [1]
    assert cluster.nodes[1].keys() == [A]


def test_the_address_beside_an_unknown_hostname_is_used():
    assert master_of_slot_0(b"?", 7000, [b"ip", b"10.0.0.2"]) == ("10.0.0.2", 7000)
    assert master_of_slot_0(b"?", 7000) == (ASKED, 7000)


#: The host of the node that is asked for the map in these tests.
ASKED = "asked.example"


def master_of_slot_0(host, port, *fields):
    """What a map says whose reply of CLUSTER SLOTS has one range of slots, 0 to 1."""
    master = [host, port, b"id of the node", *fields]
    return parse_slots([[0, 1, master]], (ASKED, 6379))[0]


#: Below two timeouts, in timeouts: more may be a second one.
ONE_TIMEOUT = 1.9


def test_several_silent_masters_cost_one_timeout(cluster, make_client):
    client = make_client(socket_timeout=0.75)
    results(client, A, B, C)
    thaw = threading.Event()
    for node in cluster.nodes[:2]:
        node.answer = lambda words: thaw.wait(10) and number(1)
    with Stopwatch() as watch:
        answers = results(client, A, B, C)
    assert watch.seconds < 0.75 * ONE_TIMEOUT
    assert answers[2] == 1
    assert all(isinstance(answer, StoreUnavailable) for answer in answers[:2])
    assert client.cluster.map.outages.unresponsive == {node.address for node in cluster.nodes[:2]}
    thaw.set()


def test_threads_that_wait_for_connections_to_silent_masters_wait_for_one_timeout(cluster, make_client):
    """A thread that got one asked its master, too, and then waited for one to the next master."""
    client = make_client(pool_size=1, socket_timeout=1.0)
    results(client, A, B, C)
    thaw = threading.Event()
    for node in cluster.nodes[:2]:
        node._reply = lambda words: thaw.wait(10) and number(1)

    def work(keys):
        with Stopwatch() as watch:
            found = results(client, *keys)
        return watch.seconds, found[-1]

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(work, [(A, B, C)] * 6))
    thaw.set()
    assert [answer for _, answer in found] == [1] * 6
    assert max(seconds for seconds, _ in found) < ONE_TIMEOUT
    assert all(not pool._turn.locked() for pool in client.cluster.map._pools.values())


def test_a_redirection_to_a_silent_master_costs_no_other_timeout(cluster, make_client):
    """A lane waited for that after its first timeout, and with it the shards of healthy masters."""
    client = make_client(socket_timeout=0.75)
    client.cluster.waits_less = True
    results(client, A, B, C)
    silent, mover, _ = cluster.nodes
    thaw = threading.Event()
    silent.answer = lambda words: thaw.wait(10) and number(1)
    mover.answer = lambda words: b"-MOVED %d %s\r\n" % (slot_of(B), silent.place)
    with Stopwatch() as watch:
        *refused, answered = results(client, A, B, C)
    assert watch.seconds < 0.75 * ONE_TIMEOUT
    thaw.set()
    assert answered == 1
    assert all(isinstance(each, StoreUnavailable) for each in refused)


def test_threads_that_have_all_connections_are_no_outage(cluster, caplog):
    seeds = {"cluster": [cluster.nodes[0].address]}
    client = Client(ClusterClient(connect_cluster(seeds, pool_size=1, pool_timeout=0.5)))
    results(client, A)
    pool = client.cluster.map.pool(cluster.nodes[0].address)
    taken = pool.take_kept()
    with Stopwatch() as watch:
        refused, answered = results(client, A, B)
    assert watch.seconds < 0.5 * ONE_TIMEOUT
    assert isinstance(refused, StoreUnavailable)
    assert answered == 1
    assert not client.cluster.map.outages.unreachable
    assert not caplog.records
    pool.keep(taken)
    assert results(client, A) == [1]
    client.servers.close()


def test_connections_to_a_master_that_is_gone_are_closed(cluster, client, monkeypatch):
    """Where each start of a node has another address, as in Kubernetes, pools would remain for ever."""
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    results(client, A, B, C)
    gone = cluster.nodes[0]
    cluster.maps = {1: (0, 10922), 2: (10923, 16383)}
    gone.answer = lambda words: b"-MOVED %d %s\r\n" % (slot_of(A), cluster.nodes[1].place)
    assert results(client, A) == [1]
    eventually(lambda: gone.address not in client.cluster.map._pools)
    eventually(lambda: gone.open_now == 0)
    assert results(client, A, B, C) == [1, 1, 1]


def test_an_outage_has_the_name_of_the_node_that_was_asked(cluster, client, monkeypatch, caplog):
    """Another thread may have learned meanwhile which node took its place."""
    results(client, A)
    successor = cluster.nodes[1].address

    def answer(words):
        client.cluster.map.slots()[slot_of(A)] = successor
        client.cluster.map._next_reading = time.monotonic() + 60
        frozen.wait(10)

    frozen = threading.Event()
    cluster.nodes[0].answer = answer
    client.cluster.map.pool(cluster.nodes[0].address).disconnect()
    del client.cluster.map._pools[cluster.nodes[0].address]
    client.cluster.map.connection_kwargs["socket_timeout"] = 0.2
    assert isinstance(results(client, A)[0], StoreUnavailable)
    assert set(client.cluster.map.outages.unreachable) == {cluster.nodes[0].address}
    assert results(client, A) == [1]
    frozen.set()


def test_a_seed_that_has_lost_its_disk_hides_no_master(cluster, make_client):
    empty = cluster.nodes[0]
    empty._slots = lambda: b"*0\r\n"
    client = make_client([node.address for node in cluster.nodes])
    assert results(client, B, C) == [1, 1]


@pytest.fixture
def frozen(cluster, monkeypatch):
    """Have nodes accept connections and answer nothing until the end of the test, beyond all timeouts."""
    monkeypatch.setattr(cluster_map, "ASK_SECONDS", 60.0)
    monkeypatch.setattr(cluster_map, "FIRST_SECONDS", 60.0)
    monkeypatch.setattr(cluster_map, "STAGGER_SECONDS", 0.01)
    thawed = threading.Event()

    def freeze(*nodes):
        for node in nodes:
            node._slots = lambda: thawed.wait(60) and b"*0\r\n"

    yield freeze
    thawed.set()


def test_a_seed_that_says_nothing_does_not_hold_up_the_next_one(cluster, make_client, frozen):
    """The first call of a process took a second for each of them."""
    frozen(*cluster.nodes[:2])
    client = make_client([node.address for node in cluster.nodes])
    assert results(client, C) == [1]


def test_the_fullest_map_is_waited_for_beside_a_seed_that_says_nothing(cluster, make_client, frozen):
    silent, empty, whole = cluster.nodes
    frozen(silent)
    empty._slots = lambda: b"*0\r\n"
    client = make_client([silent.address, empty.address, whole.address])
    assert results(client, B, C) == [1, 1]
    assert client.cluster.map.masters() == [node.address for node in cluster.nodes]


def test_a_seed_that_answers_late_is_heard(cluster, make_client, monkeypatch):
    """It is not given up when the next one is asked, which knows nothing."""
    monkeypatch.setattr(cluster_map, "STAGGER_SECONDS", 0.01)
    late, empty, _ = cluster.nodes
    right = late._slots
    late._slots = lambda: eventually(lambda: empty.connections and not empty.open_now) and right()
    empty._slots = lambda: b"*0\r\n"
    client = make_client([late.address, empty.address])
    assert client.cluster.map.masters() == [node.address for node in cluster.nodes]


def test_a_map_is_read_at_the_limit_of_threads(cluster, make_client, monkeypatch):
    """Nodes are asked by the thread that reads the map then."""
    start = threading.Thread.start

    def limited(thread):
        if thread.name == "lowkiq-cluster-node":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert results(make_client([("127.0.0.1", 1), cluster.nodes[1].address]), C) == [1]


def test_a_master_that_has_lost_its_disk_hides_no_other_one(cluster, make_client, monkeypatch):
    """Whichever node is asked, the map stays the one of those that know it."""
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    first = lambda nodes: nodes.sort(key=lambda each: each != empty.address)  # noqa: E731
    monkeypatch.setattr(cluster_map.random, "shuffle", first)
    client = make_client()
    assert results(client, A, B, C) == [1, 1, 1]
    empty = cluster.nodes[0]
    empty._slots = lambda: b"*0\r\n"
    empty.answer = lambda words: b"-CLUSTERDOWN Hash slot not served\r\n"
    client.cluster.waits_less = True
    for _ in range(5):
        refused, *answers = results(client, A, B, C)
        assert isinstance(refused, StoreUnavailable)
        assert answers == [1, 1]
    eventually(lambda: not client.cluster.map._is_reading)
    assert results(client, B, C) == [1, 1]


def test_a_node_that_the_others_do_not_find_has_no_address():
    """After a CLUSTER RESET, Redis gives an empty host and port 0 for the former owner of the slots."""
    empty_host, no_port = b"", 0
    assert master_of_slot_0(empty_host, no_port, []) is None


@pytest.mark.parametrize(
    "reply", [b"-MOVED abc\r\n", b"-ASK 5\r\n", b"-MOVED x 127.0.0.1:1\r\n", b"-MOVED 5 a:b\r\n"]
)
def test_a_redirection_that_cannot_be_read_is_of_its_master_only(cluster, client, reply):
    cluster.nodes[0].answer = lambda words: reply
    refused, answered = results(client, A, B)
    assert isinstance(refused, StoreUnavailable)
    assert answered == 1


def test_a_redirection_with_a_foreign_slot_is_of_its_command(cluster, client):
    once(cluster.nodes[0], b"-MOVED 99999 %s\r\n" % cluster.nodes[1].place)
    assert results(client, A) == [1]
    assert cluster.nodes[1].keys() == [A]


def test_a_master_that_has_just_answered_is_not_away_again(cluster, client, caplog):
    """A thread that was told that it is silent notes that after another one has noted the answer."""
    results(client, A, B)
    client.cluster.map.outages.unresponsive.add(cluster.nodes[0].address)
    assert isinstance(results(client, A, B)[0], StoreUnavailable)
    assert not client.cluster.map.outages.unreachable
    assert not caplog.records
    eventually(lambda: results(client, A, B) == [1, 1])


@pytest.mark.parametrize(
    "text",
    [
        "this user has no permissions to run the 'cluster|slots' command",
        "this user has no permissions to run the 'cluster' command or its subcommand",
        "User poor has no permissions to run the 'cluster|slots' command",
    ],
    ids=["Redis 7", "Redis 6.2", "Valkey"],
)
def test_a_user_without_the_rights_for_a_cluster_hears_how_to_get_them(cluster, client, text):
    cluster.nodes[0]._slots = lambda: f"-NOPERM {text}\r\n".encode()
    with pytest.raises(AccessDenied, match="lowkiq acl --role ROLE --cluster"):
        results(client, A)


def test_a_user_without_the_right_to_asking_hears_it(cluster, client):
    """It heard that the slot moves, for ever."""
    first, second, _ = cluster.nodes
    once(first, b"-ASK %d %s\r\n" % (slot_of(A), second.place))
    reply = second._reply
    refusal = b"-NOPERM this user has no permissions to run the 'asking' command\r\n"
    second._reply = lambda words: refusal if words[0] == b"ASKING" else reply(words)
    second.answer = lambda words: b"-MOVED %d %s\r\n" % (slot_of(A), first.place)
    (refused,) = results(client, A)
    assert isinstance(refused, AccessDenied)
    assert "--cluster" in str(refused)


NOPERM = b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n"


def test_a_master_that_denies_its_workers_a_right_holds_up_only_its_own_shards(cluster, client, caplog):
    """Its answer was raised in place of those of the others, so that no lease was renewed."""
    client.cluster.waits_less = True
    cluster.nodes[0].answer = lambda words: NOPERM
    for _ in range(2):
        found, errors = client.each({"a": call(A), "b": call(B)})
        assert isinstance(errors["a"], StoreUnavailable)
        assert isinstance(errors["a"], AccessDenied)
        assert found == {"b": 1}
    (line,) = caplog.messages
    assert line.startswith(f"Redis {cluster.nodes[0].place.decode()} does not permit this (NOPERM)")
    assert line.endswith(" Its shards wait.")
    cluster.nodes[0].answer = lambda words: number(1)
    for _ in range(2):
        client.each({"a": call(A)})
    _, end = caplog.messages
    assert "accepts the commands of this user again after" in end


def test_a_master_that_refuses_the_password_of_its_workers_is_named_in_the_log(cluster, client, caplog):
    """Its shards stood still, and no line said so."""
    client.cluster.waits_less = True
    cluster.nodes[0].answer = lambda words: b"-NOAUTH Authentication required.\r\n"
    for _ in range(2):
        assert client.each({"a": call(A), "b": call(B)})[0] == {"b": 1}
    (line,) = caplog.messages
    assert line.startswith(f"Redis {cluster.nodes[0].place.decode()} asks for a password")


def test_a_caller_is_told_at_once_that_it_lacks_a_right(cluster, client):
    """It is no outage, which calls again."""
    cluster.nodes[0].answer = lambda words: NOPERM
    (refused,) = results(client, A)
    assert isinstance(refused, AccessDenied)
    assert not isinstance(refused, StoreUnavailable)
