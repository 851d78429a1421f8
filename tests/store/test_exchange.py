"""Tests of ``store/exchange.py``."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis import exceptions
from redis.client import Pipeline

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.store import exchange
from celery_lowkiq.store import exchange as keeping_pool
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Queries
from tests.outages import away
from tests.store.helpers import ONE, claim, push, take, waiting
from tests.waiting import Stopwatch, eventually

NAME = "keeping"
MANY = QueueSpec("many", shards=3)
JOBS = [Call(str(n), b"x" * 1000) for n in range(100)]


class OfAnotherPackage(redis.UnixDomainSocketConnection):
    """A connection class of the user's."""


class Stopped(BaseException):
    """Raised anywhere, as by a signal handler."""


@pytest.fixture
def make(redis_server):
    """Stores on an empty server, each with a pool of its own."""
    made = []

    def make(size=2, server=redis_server, **options):
        parameters = {"path": server.socket_path, "client_name": NAME, "socket_timeout": 5, **options}
        made.append(RedisStore(connect(parameters, pool_size=size, pool_timeout=1)))
        return made[-1]

    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
    yield make
    for store in made:
        store.close()


@pytest.fixture
def admin(redis_server):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        yield client


def connected(admin):
    return {entry["id"] for entry in admin.client_list() if entry["name"] == NAME}


def kept(store):
    return list(store.client.servers.redis.connection_pool._idle)


def test_one_connection_after_the_other_is_the_same(make, admin):
    store = make()
    push(store, "1", ("a", 1))
    first = connected(admin)
    push(store, "1", ("b", 2))
    assert connected(admin) == first
    assert (len(first), len(kept(store))) == (1, 1)


def test_a_command_gets_the_connection_that_was_kept(make, admin):
    """All of a pool of one."""
    store = make(size=1)
    push(store, "1", ("a", 1))
    assert store.client.servers.redis.ping()
    assert kept(store) == []
    assert waiting(store, "1") == [("a", 1)]
    assert len(connected(admin)) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_of_commands_are_those_of_redis_py(make, admin, protocol):
    client = make(protocol=protocol).client.servers.redis
    admin.zadd("z", {"a": 1, "b": 2.5})
    admin.hset("h", mapping={"x": "1"})
    reads = [
        ("HGET", "h", "x"),
        ("HMGET", "h", "x", "y"),
        ("HVALS", "h"),
        ("ZCARD", "z"),
        ("ZCOUNT", "z", 1, 2),
        ("ZMSCORE", "z", "a", "c"),
        ("ZREVRANGE", "z", 0, 9),
    ]
    assert exchange.exchange(client, reads) == [client.execute_command(*each) for each in reads]
    converted = [
        *reads,
        ("CONFIG GET", "maxmemory*"),
        ("HGETALL", "h"),
        ("INFO", "keyspace"),
        ("SCRIPT LOAD", "return 1"),
        ("ZRANGE", "z", 0, 9, "WITHSCORES"),
    ]
    assert exchange.exchange(client, converted) == [client.execute_command(*each) for each in converted]


def test_commands_get_connections_while_threads_push_without_a_pause(make):
    """More threads than connections: each has its turn. In redis-py's pool, two of four pushed nothing."""
    store, done = make(size=2), threading.Event()

    def pushes(number):
        pushed = 0
        while not done.is_set() or not pushed:
            push(store, str(number), ("a", pushed))
            pushed += 1
        return pushed

    with ThreadPoolExecutor(4) as threads:
        counts = [threads.submit(pushes, number) for number in range(4)]
        try:
            assert all(store.client.servers.redis.ping() for _ in range(500))
        finally:
            done.set()
        assert min(count.result(60) for count in counts) > 50


def test_a_forked_process_leaves_its_parents_connection_alone(make, admin):
    store = make()
    push(store, "1", ("a", 1))
    parents = connected(admin)
    told, tell = os.pipe()
    go_on, let_go_on = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Senders of a store are not for two processes.
            push(RedisStore(store.client.servers.redis), "2", ("b", 1))
            os.write(tell, b"1")
            os.read(go_on, 1)
        finally:
            os._exit(0)
    assert os.read(told, 1) == b"1"
    push(store, "3", ("c", 1))
    both = connected(admin)
    assert parents < both
    assert len(both) == 2
    os.write(let_go_on, b"1")
    os.waitpid(child, 0)
    push(store, "4", ("d", 1))
    assert parents <= connected(admin)
    assert [waiting(store, str(n)) for n in (1, 2, 3, 4)] == [[(x, 1)] for x in "abcd"]
    for end in (told, tell, go_on, let_go_on):
        os.close(end)


def test_a_connection_that_the_server_has_closed_is_opened_again(make, admin):
    """As after its timeout for idle clients."""
    store = make()
    push(store, "1", ("a", 1))
    (before,) = connected(admin)
    admin.client_kill_filter(_id=before)
    push(store, "1", ("b", 2))
    assert connected(admin).isdisjoint({before})
    assert waiting(store, "1") == [("a", 1), ("b", 2)]


def test_a_server_that_was_started_again(make):
    with EmbeddedServer(appendonly=True, config={"appendfsync": "always"}) as server:
        store = make(server=server)
        push(store, "1", ("a", 1))
        with away(server):
            pass
        push(store, "1", ("b", 2))
        assert waiting(store, "1") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("error", [exceptions.ConnectionError("lost"), exceptions.TimeoutError("late")])
def test_a_push_whose_reply_is_lost_is_repeated_and_recognised(make, monkeypatch, error):
    store = make()
    push(store, "0", ("a", 1))
    (one,) = kept(store)
    read, lost = one.connection.read_response, [error]

    def loses_one(*args, **kwargs):
        reply = read(*args, **kwargs)
        if lost:
            raise lost.pop()
        return reply

    monkeypatch.setattr(one.connection, "read_response", loses_one)
    push(store, "1", ("a", 1))
    assert lost == []
    assert Queries(store.client).stats(ONE).merged == 0
    assert waiting(store, "1") == [("a", 1)]


def test_a_reply_that_was_not_read_is_no_other_scripts(make, monkeypatch):
    """A signal handler raised while the reply was on its way."""
    store = make()
    push(store, "0", ("a", 1))
    (one,) = kept(store)

    def stops(*args, **kwargs):
        raise Stopped

    with monkeypatch.context() as stopping, pytest.raises(Stopped):
        stopping.setattr(one.connection, "read_response", stops)
        push(store, "1", ("a", 1))
    assert kept(store) == []
    lease = take(store)
    assert [job.id for job in claim(store, lease).jobs] == ["0", "1"]


def test_the_pool_looks_at_a_connection_again_after_a_while(make, monkeypatch):
    store = make()
    pool = store.client.servers.redis.connection_pool
    push(store, "1", ("a", 1))
    pool.release(pool.take_kept().connection)
    monkeypatch.setattr(keeping_pool, "KEPT_SECONDS", 0.0)
    taken = []
    take = pool.get_connection
    monkeypatch.setattr(pool, "get_connection", lambda *name: taken.append(take(*name)) or taken[-1])
    for n in range(3):
        push(store, "1", ("a", n))
    assert len(taken) == 3


def traced(method):
    calls = []

    def trace(self, *args, **options):
        calls.append(args)
        return method(self, *args, **options)

    return calls, trace


def test_a_tracer_of_commands_sees_the_scripts(make, monkeypatch):
    """Instrumentations of redis-py put their own function in the place of this one."""
    calls, trace = traced(redis.Redis.execute_command)
    monkeypatch.setattr(redis.Redis, "execute_command", trace)
    store = make()
    push(store, "1", ("a", 1))
    assert "EVALSHA" in [name for name, *_ in calls]
    assert kept(store) == []


def test_a_tracer_of_pipelines_sees_the_scripts(make, monkeypatch):
    calls, trace = traced(Pipeline.execute)
    monkeypatch.setattr(Pipeline, "execute", trace)
    store = make()
    store.push(MANY, JOBS)
    assert calls
    assert kept(store) == []


def test_redis_py_counts_the_scripts_where_its_metrics_are_on(make, monkeypatch):
    class Metrics:
        def get_provider_manager(self):
            return object()

    monkeypatch.setattr(exchange, "metrics", Metrics)
    store = make()
    push(store, "1", ("a", 1))
    assert kept(store) == []
    assert waiting(store, "1") == [("a", 1)]


def test_a_connection_class_of_another_package_gets_commands(make):
    store = make(connection_class=OfAnotherPackage)
    push(store, "1", ("a", 1))
    assert kept(store) == []
    assert waiting(store, "1") == [("a", 1)]


def test_without_hiredis(make, monkeypatch):
    monkeypatch.setattr(exchange, "pack_command", None)
    store = make()
    store.push(MANY, JOBS)
    assert Queries(store.client).stats(MANY).length == len(JOBS)


def test_a_thread_that_waits_gets_the_place_before_one_that_gives_it_back(make):
    pool = make(size=1).client.servers.redis.connection_pool
    taken, served = pool.take_new(), []

    def serve(name):
        connection = pool.get_connection(*keeping_pool.NAME)
        served.append(name)
        pool.release(connection)

    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(serve, "waited")
        eventually(pool._turn.locked)
        pool.keep(taken)
        serve("gave back")
        waits.result(30)
    assert served == ["waited", "gave back"]


def test_a_wait_ends_after_the_timeout_for_all_who_wait(make):
    """In one line: the timeout of the second is not that of the first and its own."""
    pool = make(size=1).client.servers.redis.connection_pool
    taken = pool.take_new()
    with ThreadPoolExecutor(4) as threads, Stopwatch() as watch:
        waits = [threads.submit(pool.take_new) for _ in range(4)]
        assert all(isinstance(wait.exception(30), keeping_pool.NoFreeConnection) for wait in waits)
    assert watch.seconds < 2 * pool.timeout
    pool.release(taken.connection)
    assert pool.take_new().connection is taken.connection


def test_thousands_of_short_threads_use_the_same_connections(make, admin):
    """A thread that has ended has no connection."""
    store = make(size=2)
    for _ in range(500):
        with ThreadPoolExecutor(4) as threads:
            assert all(
                threads.map(lambda _: store.client.commands([("HGET", "none", "x")]) == [None], range(4))
            )
    assert len(connected(admin)) <= 2
    assert store.client.servers.redis.connection_pool.pool.qsize() + len(kept(store)) == 2


def test_a_pool_without_a_timeout_waits_until_a_connection_is_free(make):
    store = make(size=1)
    pool = store.client.servers.redis.connection_pool
    pool.timeout = None
    taken = pool.take_new()
    with ThreadPoolExecutor(1) as threads:
        pushed = threads.submit(push, store, "1", ("a", 1))
        eventually(lambda: pool._turn.locked())
        pool.keep(taken)
        pushed.result(30)
    assert waiting(store, "1") == [("a", 1)]


def test_a_signal_in_the_wait_for_a_connection_costs_no_place(make):
    """As that of Celery's soft time limit, whose handler raises."""
    store = make(size=1)
    pool = store.client.servers.redis.connection_pool
    taken = pool.take_new()

    def stop(*_):
        raise Stopped

    def send_when_it_waits():
        eventually(lambda: pool._turn.locked())
        os.kill(os.getpid(), signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, stop)
    try:
        with ThreadPoolExecutor(1) as threads, pytest.raises(Stopped):
            threads.submit(send_when_it_waits)
            pool.take_new()
    finally:
        signal.signal(signal.SIGUSR1, former)
    pool.keep(taken)
    push(store, "1", ("a", 1))
    assert waiting(store, "1") == [("a", 1)]
