"""Redis gone in the middle of every call: one clear error, and all goes on when it is back."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis
from redis import exceptions

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.errors import (
    AccessDenied,
    LoginRefused,
    LowkiqError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from celery_lowkiq.rules.models import Call, StoredRecord
from celery_lowkiq.store import registry
from celery_lowkiq.store.actions import DEAD, FAILED
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.connect import RETRIES, connect
from celery_lowkiq.store.errors import store_error
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.resharding import Migrations
from tests.bound import Actions, Queries
from tests.outages import Front, away
from tests.store.helpers import ONE, SHARD, claim, end, push, take, waiting
from tests.waiting import eventually

SECRET, WRONG = "the-right-one", "the-wrong-one"

CALLS = {
    "push": lambda s, lease, c: push(s, "2", ("b", 1)),
    "observe": lambda s, lease, c: s.observe([SHARD]),
    "acquire": lambda s, lease, c: s.acquire(ONE, SHARD, "x", s.observe([SHARD])[0], 0),
    "renew": lambda s, lease, c: s.renew([lease]),
    "release": lambda s, lease, c: s.release(lease),
    "claim": lambda s, lease, c: claim(s, lease),
    "settle": lambda s, lease, c: end(s, lease, c),
    "next_due": lambda s, lease, c: s.next_due([SHARD]),
    "subscribe": lambda s, lease, c: s.subscribe([ONE]),
    "jobs": lambda s, lease, c: Queries(s.client).jobs(ONE),
    "morgue": lambda s, lease, c: Queries(s.client).morgue(ONE),
    "processing": lambda s, lease, c: Queries(s.client).processing(ONE),
    "job": lambda s, lease, c: Queries(s.client).job(ONE, "1"),
    "stats": lambda s, lease, c: Queries(s.client).stats(ONE),
    "run_now_all": lambda s, lease, c: Actions(s.client).run_now_all(ONE),
    "delete": lambda s, lease, c: Actions(s.client).delete(ONE, ["1"]),
    "bury_failed": lambda s, lease, c: Actions(s.client).bury(ONE, FAILED, b"", only_failed=True),
    "requeue_all": lambda s, lease, c: Actions(s.client).requeue(ONE, DEAD),
    "replace_call_records": lambda s, lease, c: CallReader(s.client).start(
        lease, [(StoredRecord(b"k", 0, b"x"), b"y")]
    ),
    "as_stored": lambda s, lease, c: registry.as_stored(s.client, [ONE]),
    "begin": lambda s, lease, c: Migrations(s.client, "orders").begin(2),
    "move": lambda s, lease, c: s.mover(ONE).turn(),
}


@pytest.fixture(scope="module")
def mortal():
    with EmbeddedServer(appendonly=True, config={"appendfsync": "always"}) as server:
        yield server


@pytest.mark.parametrize("name", CALLS)
def test_every_call_says_that_the_store_is_unavailable(mortal, name):
    client = connect({"path": mortal.socket_path, "socket_timeout": 2}, pool_size=2, pool_timeout=1)
    client.flushall()
    store = RedisStore(client)
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    with away(mortal), pytest.raises(StoreUnavailable, match="Redis is not available"):
        CALLS[name](store, lease, claimed)
    CALLS[name](store, lease, claimed)


RIGHTS = ["on", ">" + SECRET, "~lowkiq:*", "resetchannels", "-@all", "+@connection", "+info"]


@pytest.fixture(params=["here", "6.2"])
def guarded(request):
    """A server that asks for a password, and has users who may do too little."""
    name = "redis_server" if request.param == "here" else "redis_62_server"
    path = request.getfixturevalue(name).socket_path
    with redis.Redis(unix_socket_path=path) as admin:
        admin.flushall()
        admin.execute_command("ACL", "SETUSER", "poor", *RIGHTS, "+eval", "+evalsha", "+script")
        admin.execute_command("ACL", "SETUSER", "deaf", *RIGHTS, "+@all")
        admin.config_set("requirepass", SECRET)
        try:
            yield path
        finally:
            admin.config_set("requirepass", "")
            admin.execute_command("ACL", "DELUSER", "poor", "deaf")


@pytest.mark.parametrize("call", ["push", "observe", "subscribe"])
@pytest.mark.parametrize(
    "login, code, error",
    [
        ({}, "NOAUTH", LoginRefused),
        ({"password": WRONG}, "WRONGPASS", LoginRefused),
        ({"username": "nobody", "password": WRONG}, "WRONGPASS", LoginRefused),
        ({"username": "poor", "password": SECRET}, "NOPERM", AccessDenied),
    ],
)
def test_a_user_who_may_not_is_told_so_by_the_name_that_redis_has_for_it(guarded, login, code, error, call):
    """P3: a wrong password looked like an outage. No error has a password in it."""
    store = RedisStore(connect({"path": guarded, **login}, pool_size=2, pool_timeout=1))
    with pytest.raises(error, match=rf"\({code}\)") as caught:
        CALLS[call](store, None, None)
    if error is AccessDenied:
        assert "lowkiq acl --role ROLE` writes those of a caller" in str(caught.value)
    assert isinstance(caught.value, StoreUnavailable) == (error is LoginRefused)
    assert SECRET not in str(caught.value)
    assert WRONG not in str(caught.value)


def test_a_user_who_may_not_listen_is_told_when_he_begins_to(guarded):
    """P3: he was told with each look at what he had subscribed to, an outage each."""
    client = connect({"path": guarded, "username": "deaf", "password": SECRET}, pool_size=2, pool_timeout=1)
    with pytest.raises(AccessDenied, match="channel"):
        RedisStore(client).subscribe([ONE])


def test_a_password_that_is_not_wanted(mortal):
    """P3"""
    store = RedisStore(connect({"path": mortal.socket_path, "password": WRONG}, pool_size=2, pool_timeout=1))
    with pytest.raises(LoginRefused, match=r"\(AUTH\)") as caught:
        store.observe([SHARD])
    assert WRONG not in str(caught.value)


def test_a_subscription_ends_with_its_server(mortal):
    store = RedisStore(connect({"path": mortal.socket_path}, pool_size=2, pool_timeout=1))
    subscription = store.subscribe([ONE])
    with away(mortal), pytest.raises(StoreUnavailable):
        for _ in range(3):
            subscription.wait_pushed(2)


def test_subscriptions_give_their_connections_back_whoever_keeps_the_error(mortal):
    """A log handler that keeps records does; connections ran out after as many outages as there are."""
    client = connect({"path": mortal.socket_path}, pool_size=2, pool_timeout=0.1)
    store = RedisStore(client)
    kept = []

    def fails(action):
        with pytest.raises(StoreUnavailable, match="onnect") as raised:
            action()
        kept.append(raised.value)

    for _ in range(3):
        subscription = store.subscribe([ONE])
        assert subscription.wait_pushed(0.01) is None
        with away(mortal):
            fails(partial(subscription.wait_pushed, 2))
            fails(partial(store.subscribe, [ONE]))
        subscription.close()
        subscription.close()
    retries = {connection.retry._retries for connection in client.connection_pool._connections}
    assert retries == {RETRIES}
    assert client.connection_pool.pool.qsize() == 2


def test_a_redis_that_is_loading_has_no_subscription(redis_server, monkeypatch):
    """It would take one, and that would look as if it were back."""
    client = connect({"path": redis_server.socket_path}, pool_size=2, pool_timeout=1)

    def loading():
        raise exceptions.BusyLoadingError("Redis is loading the dataset in memory")

    monkeypatch.setattr(client, "ping", loading)
    with pytest.raises(StoreUnavailable, match="loading"):
        RedisStore(client).subscribe([ONE])


def test_a_subscription_that_is_closed_from_another_thread_ends(redis_server):
    store = RedisStore(connect({"path": redis_server.socket_path}, pool_size=2, pool_timeout=1))
    subscription = store.subscribe([ONE])
    ended = threading.Event()

    def listen():
        try:
            while True:
                subscription.wait_pushed(1)
        except StoreUnavailable:
            ended.set()

    threading.Thread(target=listen, daemon=True).start()
    subscription.close()
    assert ended.wait(5)


def test_a_silent_redis_is_an_error_and_not_a_hang():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        parameters = {"host": "127.0.0.1", "port": deaf.getsockname()[1], "socket_timeout": 0.2}
        store = RedisStore(connect(parameters, pool_size=1, pool_timeout=1))
        with pytest.raises(StoreUnavailable):
            store.push(ONE, [Call("1", b"x")])


def test_a_pool_without_a_free_connection_is_an_error_and_not_a_hang(redis_server):
    client = connect({"path": redis_server.socket_path}, pool_size=1, pool_timeout=0.1)
    store = RedisStore(client)
    taken = client.connection_pool.get_connection("PING")  # redis-py 5 asks for a name
    with pytest.raises(StoreUnavailable):
        store.push(ONE, [Call("1", b"x")])
    client.connection_pool.release(taken)
    store.push(ONE, [Call("1", b"x")])


def test_no_password_is_in_any_error():
    with EmbeddedServer(port=0, config={"requirepass": "hunter2"}) as server:
        for password in ("wrong-hunter3", None):
            parameters = {"host": "127.0.0.1", "port": server.port, "password": password}
            store = RedisStore(connect(parameters, pool_size=1, pool_timeout=1))
            with pytest.raises(LowkiqError) as raised:
                store.push(ONE, [Call("1", b"x")])
            assert "hunter" not in f"{raised.value!r} {raised.value} {store!r} {vars(store)}"
        right = {"host": "127.0.0.1", "port": server.port, "password": "hunter2"}
        store = RedisStore(connect(right, pool_size=1, pool_timeout=1))
        push(store, "1", ("a", 1))
        assert waiting(store, "1") == [("a", 1)]


def test_a_key_of_another_type_is_an_error_that_names_it(store, client):
    from celery_lowkiq.store.keys import shard_keys

    push(store, "0", ("registers", 1))
    client.delete(shard_keys(SHARD)["due"])
    client.set(shard_keys(SHARD)["due"], "planted")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        push(store, "1", ("a", 1))


def test_behind_sentinels(redis_server, tmp_path):
    """The master is found through a real sentinel."""
    import subprocess

    from celery_lowkiq.embedded import find_server
    from tests.waiting import eventually

    with EmbeddedServer(port=0) as master, EmbeddedServer(port=0) as probe:
        port = probe.port
        probe.stop()
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
            f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
        )
        sentinel = subprocess.Popen(
            [str(find_server()), str(config), "--sentinel"], stdout=subprocess.DEVNULL
        )
        try:
            parameters = {"sentinels": [("127.0.0.1", port)], "master_name": "mymaster", "socket_timeout": 2}
            store = RedisStore(connect(parameters, pool_size=2, pool_timeout=1))

            def reached():
                try:
                    push(store, "1", ("a", 1))
                except StoreUnavailable:
                    return False
                return True

            eventually(reached)
            assert waiting(store, "1") == [("a", 1)]
        finally:
            sentinel.kill()
            sentinel.wait()


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ReadOnlyError("You can't write against a read only replica."),
        exceptions.MasterDownError("Link with MASTER is down"),
        exceptions.ClusterDownError("The cluster is down"),
        exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        exceptions.NoScriptError("No matching script. Please use EVAL."),
    ],
)
def test_a_server_that_cannot_write_for_now_is_an_outage(error):
    assert isinstance(store_error(error), StoreUnavailable)


def test_an_error_of_a_node_of_a_cluster_names_the_node():
    error = exceptions.ResponseError("NOREPLICAS Not enough good replicas to write.")
    error.node = ("::1", 7000)
    assert str(store_error(error)).endswith("NOREPLICAS Not enough good replicas to write ([::1]:7000)")
    error = exceptions.ConnectionError("Error 111 connecting to a:7000. Connection refused.")
    error.node = ("a", 7000)
    assert str(store_error(error)).count("a:7000") == 1


@pytest.mark.one_server
def test_what_is_no_reply_is_an_outage(empty_redis, tmp_path):
    """A lane ended for it."""
    with Front(empty_redis, tmp_path) as front:
        store = RedisStore(connect({"path": front.path}, pool_size=2, pool_timeout=5))
        push(store, "1", ("a", 1))
        front.change = lambda data: b"no reply\r\n" + data
        with pytest.raises(StoreUnavailable):
            push(store, "2", ("b", 1))
        front.change = lambda data: data
        push(store, "3", ("c", 1))
        assert waiting(store, "3") == [("c", 1.0)]


@pytest.mark.one_server
def test_a_read_only_replica_is_an_outage(store, client):
    push(store, "1", ("a", 1))
    client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(StoreUnavailable):
            push(store, "2", ("a", 1))
    finally:
        client.replicaof("NO", "ONE")


def test_one_refused_load_does_not_switch_flags_off(store, client, monkeypatch):
    """A busy server refused the script; it still knows flags, and has to drain when it is full."""
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    fresh = RedisStore(client)
    client.script_flush()
    send, refused = fresh.client.servers.send, []

    def busy_once(commands):
        if commands[0][0] == "SCRIPT LOAD" and not refused:
            refused.append(1)
            return [exceptions.ResponseError("BUSY Redis is busy running a script.")]
        return send(commands)

    monkeypatch.setattr(fresh.client.servers, "send", busy_once)
    with pytest.raises(StoreUnavailable):
        claim(fresh, lease)
    if int(client.info("server")["redis_version"].split(".")[0]) < 7:
        return
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            push(fresh, "2", ("b", 1))
        assert [job.id for job in claim(fresh, lease).jobs] == ["1"]
    finally:
        client.config_set("maxmemory", 0)


def test_a_subscription_that_redis_cuts_says_so(store, client):
    """Else what is announced while redis-py connects again is missed."""
    subscription = store.subscribe([ONE])
    failed = threading.Event()

    def listen():
        try:
            while True:
                subscription.wait_pushed(0.2)
        except StoreUnavailable:
            failed.set()

    threading.Thread(target=listen, daemon=True).start()
    eventually(lambda: client.execute_command("CLIENT", "KILL", "TYPE", "pubsub"))
    assert failed.wait(10)


def test_two_threads_find_out_at_once_that_a_server_knows_no_script_flags(client):
    """Redis 6.2: the second one saw that the first had found out, and took its own refusal for an error."""
    store = RedisStore(client)
    send, together = store.client.servers.send, threading.Barrier(2)

    def sent_together(commands):
        replies = send(commands)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(2)
        return replies

    store.client.servers.send = sent_together
    client.script_flush()
    with ThreadPoolExecutor() as pool:
        assert len(list(pool.map(lambda node: store.beat(["orders"], node, 1, 1), ("a", "b")))) == 2
