"""The client of a cluster against nodes that redirect, refuse and cut."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_lowkiq.rules.errors import NotClusterNode, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.tracking import NewCall
from celery_lowkiq.store import cluster_client, cluster_map
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.cluster_client import ClusterClient
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.connect import connect_cluster
from celery_lowkiq.store.keys import TrackerKeys
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import load
from celery_lowkiq.store.trackers import TrackerStore
from tests.unit.resp_nodes import NOT_HERE, fake_cluster, number
from tests.waiting import eventually

SCRIPT = load("find_jobs")
#: Keys by the node of three that has them.
KEYS = [
    [key for key in map("key-{}".format, range(60)) if slot_of(key) * 3 // 16384 == node] for node in range(3)
]
A, B, C = (keys[0] for keys in KEYS)


def call(key):
    return SCRIPT.call_many([key])


@pytest.fixture
def cluster():
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture
def make_client(cluster):
    clients = []

    def make_client(seeds=None, pool_size=4, **options):
        seeds = seeds or [cluster.nodes[0].address]
        made = connect_cluster({"cluster": seeds, **options}, pool_size=pool_size, pool_timeout=5.0)
        client = Client(ClusterClient(made))
        clients.append(client)
        return client

    yield make_client
    for client in clients:
        client.servers.close()


@pytest.fixture
def client(make_client):
    return make_client()


def results(client, *keys):
    return client.calls([call(key) for key in keys])


def test_an_unreachable_master_stands_apart_from_the_replies_of_the_others(cluster, client):
    """A reader took its error for a reply."""
    cluster.nodes[0].answer = lambda words: None
    found, errors = client.each({"a": call(A), "b": call(B)})
    assert found == {"b": 1}
    assert [*errors] == ["a"]
    assert isinstance(errors["a"], StoreUnavailable)
    found, errors = client.each_command({key: ("HGET", key, "x") for key in (A, B)})
    assert (found, [*errors]) == ({B: 1}, [A])
    found, errors = client.each_pair({key: ("HGET", key, "x") for key in (A, C)}, ("WAIT", 0, 0))
    assert (found, [*errors]) == ({C: (1, 1)}, [A])
    parts, lost = client.each_part([A, B, C], 100, SCRIPT.call_many)
    assert (parts, lost) == ([([B], 1), ([C], 1)], [A])


def test_a_refusal_is_raised_unless_it_is_wanted(cluster, client):
    cluster.nodes[0].answer = lambda words: b"-ERR no\r\n"
    with pytest.raises(StoreError, match="no"):
        client.each({"a": call(A), "b": call(B)})
    found, errors = client.each({"a": call(A), "b": call(B)}, StoreError)
    assert (found, [*errors]) == ({"b": 1}, ["a"])


def once(node, reply, then=None):
    """Have a node answer its next script with ``reply``, and further ones with 1, or with ``then``."""
    replies = iter([reply])
    node.answer = lambda words: next(replies, number(1) if then is None else then)


def without_scripts():
    """Answers 5 to scripts from the first SCRIPT LOAD on."""
    loaded = threading.Event()

    def answer(words):
        if words[0] == b"SCRIPT":
            loaded.set()
            return b"$2\r\nok\r\n"
        return number(5) if loaded.is_set() else NOT_HERE

    return answer


def test_each_command_goes_to_its_master_and_replies_keep_their_order(cluster, client):
    for n, node in enumerate(cluster.nodes):
        node.answer = lambda words, n=n: number(n)
    assert results(client, C, A, B, A) == [2, 0, 1, 0]
    assert [node.keys() for node in cluster.nodes] == [[A, A], [B], [C]]


def test_nothing_is_connected_before_the_first_command(cluster, make_client):
    client = make_client()
    assert cluster.nodes[0].connections == 0
    assert results(client, A) == [1]


def test_a_cluster_that_is_away_at_first_is_found_later(cluster, make_client, monkeypatch):
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    client = make_client([("127.0.0.1", 1)])
    with pytest.raises(StoreUnavailable):
        results(client, A)
    client.cluster.map._seeds.append(cluster.nodes[2].address)
    assert results(client, A) == [1]


def test_the_first_question_about_masters_that_are_away_is_an_outage(make_client):
    """A worker that started before its cluster ended by an error of redis-py."""
    with pytest.raises(StoreUnavailable):
        RedisStore(make_client([("127.0.0.1", 1)]).cluster.map).masters([ShardRef("q", 0)])


@pytest.mark.parametrize(
    "lie", [b"*1\r\n:1\r\n", b"+OK\r\n", b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n"]
)
def test_a_map_that_cannot_be_read_is_asked_for_again(cluster, client, monkeypatch, lie):
    """The thread that reads it ended, and no other one ever read it: a failover was not followed."""
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    right, cluster.nodes[0]._slots = cluster.nodes[0]._slots, lambda: lie
    with pytest.raises(StoreUnavailable, match="CLUSTER SLOTS cannot be read"):
        results(client, A)
    cluster.nodes[0]._slots = right
    assert results(client, A) == [1]


def test_a_map_is_asked_for_again_when_no_thread_could_start(client, monkeypatch):
    """As above, where the limit of threads was reached once."""
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    with monkeypatch.context() as at_limit:
        at_limit.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            results(client, A)
    assert results(client, A) == [1]


def no_thread(thread):
    raise RuntimeError("can't start new thread")


def test_one_dead_seed_is_enough_to_try_the_next(cluster, make_client):
    assert results(make_client([("127.0.0.1", 1), cluster.nodes[1].address]), A) == [1]


def test_a_server_without_cluster_mode_is_named(cluster, client):
    cluster.nodes[0]._slots = lambda: b"-ERR This instance has cluster support disabled\r\n"
    with pytest.raises(NotClusterNode, match="redis://host:port/db for one server"):
        results(client, A)


def test_moved_is_followed_and_remembered(cluster, client):
    first, second, _ = cluster.nodes
    results(client, A, B)
    once(first, b"-MOVED %d %s\r\n" % (slot_of(A), second.place))
    assert results(client, A, B) == [1, 1]
    assert second.keys() == [B, B, A]
    # What was answered was not repeated, and the map knows the new master.
    client.cluster.map.refresh = lambda: None
    assert results(client, A) == [1]
    assert second.keys()[-1] == A


def test_ask_is_followed_once_with_asking(cluster, client):
    first, second, _ = cluster.nodes
    once(first, b"-ASK %d %s\r\n" % (slot_of(A), second.place))
    assert results(client, A) == [1]
    assert [words[0] for words in second.heard] == [b"ASKING", b"EVALSHA"]
    results(client, A)
    assert first.keys() == [A, A]


def test_a_slot_that_is_split_is_asked_again_until_it_has_moved(cluster, client):
    first, second, _ = cluster.nodes
    replies = iter([b"-TRYAGAIN Multiple keys\r\n"] * 3 + [b"-MOVED %d %s\r\n" % (slot_of(A), second.place)])
    first.answer = lambda words: next(replies)
    assert results(client, A, B) == [1, 1]
    assert first.keys() == [A] * 4
    assert second.keys() == [B, A]


def test_a_master_that_was_replaced_is_waited_for(cluster, client):
    first = cluster.nodes[0]
    replies = iter([b"-CLUSTERDOWN Hash slot not served\r\n"] * 3)
    first.answer = lambda words: next(replies, number(7))
    assert results(client, A, C) == [7, 1]
    assert cluster.nodes[2].keys() == [C]


@pytest.mark.parametrize("refusal", [b"-CLUSTERDOWN no\r\n", b"-TRYAGAIN no\r\n", b"-ASK {slot} {place}\r\n"])
def test_after_a_second_only_the_refused_command_is_unavailable(cluster, client, refusal, monkeypatch):
    monkeypatch.setattr(cluster_client, "PATIENCE", 0.2)
    first, second, _ = cluster.nodes
    text = refusal.replace(b"{slot}", b"%d" % slot_of(A)).replace(b"{place}", second.place)
    first.answer = lambda words: text
    second.answer = lambda words: b"-TRYAGAIN no\r\n" if words[3] == A.encode() else number(1)
    began = time.monotonic()
    refused, answered = results(client, A, B)
    assert time.monotonic() - began >= 0.2
    assert isinstance(refused, StoreUnavailable)
    assert answered == 1
    assert second.keys().count(B) == 1


def test_the_time_of_patience_is_a_second():
    assert cluster_client.PATIENCE == 1.0


def test_a_worker_leaves_a_slot_that_moves_sooner(cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_client, "PATIENCE", 30.0)
    cluster.nodes[0].answer = lambda words: b"-TRYAGAIN no\r\n"
    client.cluster.waits_less = True
    began = time.monotonic()
    refused, answered = results(client, A, B)
    assert time.monotonic() - began < 15
    assert isinstance(refused, StoreUnavailable)
    assert answered == 1


def test_masters_that_name_each_other_are_not_flooded(cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_client, "PATIENCE", 0.3)
    first, second, _ = cluster.nodes
    first.answer = lambda words: b"-MOVED %d %s\r\n" % (slot_of(A), second.place)
    second.answer = lambda words: b"-MOVED %d %s\r\n" % (slot_of(A), first.place)
    (refused,) = results(client, A)
    assert isinstance(refused, StoreUnavailable)
    assert len(first.keys()) + len(second.keys()) < 25


def test_a_dead_master_takes_no_answer_from_others(cluster, client):
    results(client, A, B, C)
    cluster.nodes[1].stop()
    answers = results(client, A, B, C, B)
    assert [answers[0], answers[2]] == [1, 1]
    assert all(isinstance(answers[n], StoreUnavailable) for n in (1, 3))
    assert cluster.nodes[2].keys() == [C, C]


def test_the_outage_of_a_master_is_logged_once_and_its_end(cluster, client, caplog):
    node = cluster.nodes[0]
    node.answer = lambda words: None
    for _ in range(3):
        results(client, A, B)
    node.answer = lambda words: number(1)
    results(client, A, B)
    host, port = node.address
    away, back = [record.getMessage() for record in caplog.records]
    assert away.startswith(f"Redis {host}:{port} is unreachable: ")
    assert away.endswith(" Its shards wait.")
    assert back.startswith(f"Redis {host}:{port} is back after ")


def test_a_master_that_is_silent_is_asked_by_the_thread_of_the_map_alone(cluster, make_client, monkeypatch):
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    monkeypatch.setattr(cluster_map, "ASK_SECONDS", 0.1)
    client = make_client(socket_timeout=0.3)
    results(client, A, B)
    node, frozen = cluster.nodes[0], threading.Event()
    slots, node._slots = node._slots, lambda: frozen.wait(10) and slots()
    node.answer = lambda words: frozen.wait(10) and number(1)
    assert isinstance(results(client, A, B)[0], StoreUnavailable)
    asked = len(node.heard)
    for _ in range(20):
        refused, answered = results(client, A, B)
        assert isinstance(refused, StoreUnavailable)
        assert answered == 1
    assert len(node.heard) == asked
    frozen.set()
    eventually(lambda: results(client, A, B) == [1, 1], 10)
    assert not client.cluster.map.outages.unreachable


def test_a_dead_master_that_was_replaced_is_away_no_more(cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    results(client, A)
    cluster.nodes[0].stop()
    results(client, A)
    assert client.cluster.map.outages.unreachable
    cluster.maps = {1: (0, 10922), 2: (10923, 16383)}
    eventually(lambda: results(client, A) == [1] and not client.cluster.map.outages.unreachable, 10)


def test_a_connection_that_is_cut_after_the_write_is_replaced_once(cluster, client):
    node = cluster.nodes[0]
    cuts = iter([None])
    node.answer = lambda words: next(cuts, number(1))
    assert results(client, A, B) == [1, 1]
    assert node.keys() == [A, A]
    assert cluster.nodes[1].keys() == [B]


def test_what_was_answered_before_a_cut_is_not_repeated(cluster, client):
    node = cluster.nodes[0]
    first, second = KEYS[0][:2]
    replies = iter([number(1), None])
    node.answer = lambda words: next(replies, number(2))
    assert results(client, first, second) == [1, 2]
    assert node.keys() == [first, second, second]


def test_a_master_that_cuts_always_is_unavailable_after_two_attempts(cluster, client):
    node = cluster.nodes[0]
    node.answer = lambda words: None
    refused, answered = results(client, A, B)
    assert isinstance(refused, StoreUnavailable)
    assert answered == 1
    assert node.keys() == [A, A]


def test_a_script_is_loaded_where_it_is_missing(cluster, client):
    node = cluster.nodes[1]
    node.answer = without_scripts()
    assert results(client, A, B, C) == [1, 5, 1]
    assert [words[0] for words in node.heard] == [b"EVALSHA", b"SCRIPT", b"EVALSHA"]
    assert not any(words[0] == b"SCRIPT" for other in (0, 2) for words in cluster.nodes[other].heard)


def test_a_script_that_is_missing_where_a_slot_moves_is_loaded_there(cluster, client):
    first, second, _ = cluster.nodes
    first.answer = lambda words: b"-ASK %d %s\r\n" % (slot_of(A), second.place)
    second.answer = without_scripts()
    assert results(client, A) == [5]


def test_commands_of_a_slot_keep_their_order(cluster, client):
    """Of three, the first one is redirected by ASK, the others must wait at the source."""
    first, second, _ = cluster.nodes
    heard = []
    asks = iter([b"-ASK %d %s\r\n" % (slot_of(A), second.place), *[b"-TRYAGAIN no\r\n"] * 2])

    def at(node, reply):
        def answer(words):
            heard.append((node, words[-1]))
            return reply()

        return answer

    first.answer = at("source", lambda: next(asks, number(1)))
    second.answer = at("target", lambda: number(1))
    replies = client.calls([SCRIPT.call_many([A], [n]) for n in range(3)])
    assert replies == [1, 1, 1]
    assert heard[3:] == [("target", b"0"), ("source", b"1"), ("source", b"2")]


def test_a_question_about_a_refused_write_is_asked_with_it_again(cluster, client):
    first, second, _ = cluster.nodes
    once(first, b"-MOVED %d %s\r\n" % (slot_of(A), second.place), then=number(0))
    second.answer = lambda words: number(2 if words[0] == b"WAIT" else 1)
    assert client.commands([("HINCRBY", A, "field", 0), ("WAIT", 1, 100)]) == [1, 2]
    assert names(second) == [b"HINCRBY", b"WAIT"]


def test_a_wait_that_was_cut_is_not_repeated_without_its_write(cluster, client):
    """Another connection has written nothing: a server would answer at once."""
    first, *_ = cluster.nodes
    first.answer = lambda words: (
        None if words[0] == b"WAIT" and names(first).count(b"WAIT") == 1 else number(1)
    )
    with pytest.raises(StoreUnavailable):
        client.commands([("HINCRBY", A, "field", 0), ("WAIT", 1, 100)])
    assert names(first) == [b"HINCRBY", b"WAIT"]


def names(node):
    return [words[0] for words in node.heard]


def test_a_question_goes_where_its_neighbour_goes(cluster, client):
    client.commands([("PING",), ("HLEN", B), ("WAIT", 1, 0), ("HLEN", C), ("WAIT", 1, 0)])
    assert list(map(names, cluster.nodes)) == [[], [b"PING", b"HLEN", b"WAIT"], [b"HLEN", b"WAIT"]]


def test_threads_over_small_pools_do_not_wait_for_each_other_for_ever(cluster, make_client):
    client = make_client(pool_size=1)
    orders = ([A, B, C], [C, B, A], [B, A, C], [C, A], [B, C], [A, C], [C, A, B], [B, A])

    def work(keys):
        return [results(client, *keys) for _ in range(40)]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(work, orders))
    assert all(each == [1] * len(keys) for keys, all_of in zip(orders, found, strict=True) for each in all_of)
    # One for the commands; the map is read over another one.
    assert all(node.connections <= 2 for node in cluster.nodes)


def test_nodes_that_do_not_answer_delay_nobody_who_knows_his_master(cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_map, "ASK_SECONDS", 10.0)
    frozen = threading.Event()
    results(client, A, C)
    for node in cluster.nodes:
        node._slots = lambda: (frozen.wait(30), b"")[1]
    client.cluster.map._next_reading = 0.0
    client.cluster.map.refresh()
    assert results(client, A, C) == [1, 1]
    assert client.cluster.map._is_reading
    frozen.set()


def test_the_map_is_read_again_after_a_redirection(cluster, client):
    first, second, _ = cluster.nodes
    results(client, A)
    client.cluster.map._next_reading = 0.0
    cluster.maps = {1: (0, 10922), 2: (10923, 16383)}
    once(first, b"-MOVED %d %s\r\n" % (slot_of(A), second.place))
    results(client, A)
    others = KEYS[0][1:4]
    eventually(lambda: client.cluster.map.slots()[slot_of(others[0])] == second.address, 5)
    assert results(client, *others) == [1, 1, 1]
    assert first.keys() == [A, A]


def test_an_error_of_a_script_is_not_repeated(cluster, client):
    node = cluster.nodes[0]
    node.answer = lambda words: b"-ERR wrong\r\n"
    refused, answered = results(client, A, B)
    assert type(refused) is StoreError
    assert answered == 1
    assert node.keys() == [A]


def test_an_error_of_login_is_not_an_outage(cluster, make_client):
    client = make_client(password="secret")
    for node in cluster.nodes:
        node._reply = lambda words: b"-WRONGPASS invalid username-password pair\r\n"
    with pytest.raises(StoreError, match="WRONGPASS"):
        results(client, A)


def test_masters_are_those_of_now_without_other_traffic(cluster, client):
    """After a failover that no command had met, the old master was shown as up."""
    before = [asked.address for asked in client.servers.masters()]
    assert len(before) == 3
    (first, _), (_, last) = cluster.maps[1], cluster.maps[2]
    cluster.maps = {0: cluster.maps[0], 1: (first, last)}
    gone = cluster.nodes[2].place.decode()
    assert [asked.address for asked in client.servers.masters()] == [one for one in before if one != gone]


def test_masters_are_shown_when_no_node_tells_the_map_in_time(cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_map, "ASK_SECONDS", 10.0)
    before = [asked.address for asked in client.servers.masters()]
    monkeypatch.setattr(cluster_map, "NEW_SECONDS", 0.05)
    hangs = threading.Event()
    for node in cluster.nodes:
        node._slots = lambda: (hangs.wait(30), b"")[1]
    try:
        assert [asked.address for asked in client.servers.masters()] == before
        assert client.cluster.map._is_reading
    finally:
        hangs.set()


def test_an_address_of_ipv6_stands_in_brackets(make_client):
    client = make_client([("::1", 6379)])
    client.cluster.map._slots = [("::1", 7000)] * 16384
    client.cluster.map.refresh = lambda at_once: None
    assert client.servers.address() == "cluster [::1]:6379"
    assert [asked.address for asked in client.servers.masters()] == ["[::1]:7000"]
    assert client.servers.master_of(ShardRef("q", 0)) == "[::1]:7000"


def test_calls_are_added_to_a_tracker_again_whose_master_was_away(cluster, client):
    """The calls themselves were repeated; the error of the tracker before them was raised at once."""
    (node,) = {cluster.of_slot(slot_of(TrackerKeys("t")[name])) for name in load("track_add").keys}
    once(node, b"-LOADING Redis is loading the dataset in memory\r\n")
    call = NewCall("task", "orders", "1", b"payload")
    with pytest.raises(StoreUnavailable):
        TrackerStore(client).add("t", [call])
    once(node, b"-LOADING Redis is loading the dataset in memory\r\n")
    assert TrackerStore(client).add("t", [call], pauses=[0.01])
