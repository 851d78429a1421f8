"""How many connections a process opens to Redis, and through which servers it finds Redis."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from celery import Celery

from celery_lowkiq import ordered_task, track
from celery_lowkiq.embedded import EmbeddedServer, find_server
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.errors import (
    ClusterNode,
    ConfigurationError,
    SentinelAddress,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.views import ERROR
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.errors import store_error
from celery_lowkiq.store.keys import shard_keys
from tests.clusters import running_cluster
from tests.ports import free_port
from tests.sentinels import PASSWORD, running_sentinels
from tests.tls import serving
from tests.waiting import eventually

CALLERS = 8


@pytest.fixture
def server(redis_server):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
    return redis_server


@contextlib.contextmanager
def made(url, **settings):
    """A task whose calls go to the URL."""
    app = Celery("connections", broker="memory://", set_as_current=False)
    app.conf.update(settings, lowkiq_url=url)

    @ordered_task(app=app, shared=False, name="sync")
    def sync(payloads_by_id):
        """Never run here."""

    try:
        yield sync
    finally:
        context_of(app).store.close()


def named(client):
    return [entry for entry in client.client_list() if entry["name"] == "ours"]


@pytest.mark.parametrize("size", [1, 3])
def test_p8_a_process_opens_as_many_connections_as_the_setting_says(server, size):
    """P8: with lowkiq_client_pool_size=1 there were 4."""
    options = {"lowkiq_client_pool_size": size, "lowkiq_redis_options": {"client_name": "ours"}}
    begin = threading.Barrier(CALLERS)

    def call(number):
        begin.wait(30)
        for _ in range(20):
            sync.delay(number, "x")

    with made(server.url, **options) as sync, ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(call, range(CALLERS)))
        with redis.Redis(unix_socket_path=server.socket_path) as client:
            assert len(named(client)) == size


def test_p8_who_waits_for_a_tracker_takes_no_connection_from_callers(server):
    """P8: a single connection was kept by the one who waited, and asked for by the same."""
    options = {"lowkiq_client_pool_size": 1, "lowkiq_pool_timeout": 0.5, "lowkiq_poll_interval": 0.05}
    options["lowkiq_redis_options"] = {"client_name": "ours"}
    with made(server.url, **options) as sync:
        with track("waits", sync._get_app()) as tracker:
            sync.perform_async([{"id": 1, "payload": 1}], tracker=tracker)
        assert not tracker.wait(0.3)
        with redis.Redis(unix_socket_path=server.socket_path) as client:
            eventually(lambda: len(named(client)) == 1)


def test_p8_a_node_of_a_cluster_is_named_as_such(cluster):
    """P8: the error said "Redis refused a command: 10988 127.0.0.1:24712"."""
    with made(cluster.servers[0].url) as sync:
        with pytest.raises(ConfigurationError, match=r"lowkiq_url.* is a node of a Redis Cluster") as raised:
            for number in range(50):
                sync.delay(number, "x")
        assert isinstance(raised.value, StoreError)
        assert "redis+cluster://host:port" in str(raised.value)
        with pytest.raises(ConfigurationError, match="is a node of a Redis Cluster"):
            sync.ordered_queue.stats()


def test_doctor_names_the_url_of_a_node_of_a_cluster_and_no_rights(cluster):
    """It said "Permit it" where a shard's slot was elsewhere, which no right changes."""
    with made(cluster.servers[0].url) as sync:
        (found,) = Inspector(sync._get_app()).doctor()
        assert (found.level, found.advice) == (ERROR, "")
        assert "redis+cluster://host:port" in found.text
        store, shards = context_of(sync._get_app()).store, sync.queue_spec.shard_refs()
        elsewhere = [shard for shard in shards if cluster.owner(slot_of(shard_keys(shard)["meta"])) != 0]
        with pytest.raises(ClusterNode):
            store.masters(elsewhere[:1])


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_the_check_of_a_url_passes_what_does_not_answer(scheme):
    with made(f"{scheme}://127.0.0.1:{free_port()}/0") as sync:
        context_of(sync._get_app()).check_server([sync.queue_spec])


def test_a_node_that_has_all_slots_of_the_queues_is_used_as_one_server():
    with running_cluster(1) as cluster, made(cluster.servers[0].url) as sync:
        context_of(sync._get_app()).check_server([sync.queue_spec])
        sync.delay(1, "x")
        assert sync.ordered_queue.stats().length == 1


def test_a_database_of_a_node_of_a_cluster_is_named_as_such():
    """In Redis, the error was that of SELECT; Valkey may have databases in a cluster."""
    error = redis.ResponseError("SELECT is not allowed in cluster mode")
    assert isinstance(store_error(error), ClusterNode)


@pytest.mark.parametrize("command", ["HGET", "EVALSHA"])
def test_the_error_of_a_sentinel_names_the_url_of_sentinels(command):
    error = redis.ResponseError(f"unknown command '{command}', with args beginning with: 'a' 'b' ")
    assert isinstance(store_error(error), SentinelAddress)


def of_sentinel(sentinels):
    return f"redis://:{PASSWORD}@127.0.0.1:{sentinels.ports[0]}/0"


@pytest.mark.full
def test_a_sentinel_under_the_url_of_a_server_is_named_as_such(tmp_path):
    """The error was "unknown command 'HGET'"."""
    with running_sentinels(tmp_path) as sentinels, made(of_sentinel(sentinels)) as sync:
        for ask in (
            lambda: sync.delay(1, "x"),
            sync.ordered_queue.stats,
            lambda: context_of(sync._get_app()).check_server([sync.queue_spec]),
        ):
            with pytest.raises(SentinelAddress, match="sentinel://host:26379"):
                ask()


def test_calls_reach_a_cluster(cluster):
    cluster.flush()
    with made(cluster.url) as sync:
        for number in range(30):
            sync.delay(number, "x")
        asyncio.run(sync.adelay("a", "x"))
        assert sync.ordered_queue.stats().length == 31
    with made(cluster.url) as sync:
        sync.delay(0, "x")
        assert sync.ordered_queue.stats().length == 31


def test_a_server_without_cluster_mode_is_no_cluster():
    refused = pytest.raises(ConfigurationError, match=r"its server has no cluster mode.* redis://host")
    with EmbeddedServer(port=0) as one, made(f"redis+cluster://127.0.0.1:{one.port}") as sync, refused:
        sync.delay(1, "x")


@pytest.fixture
def sentinel(server, tmp_path):
    """A master behind a real sentinel with a password; URL of the sentinel, without the master's name."""
    port = free_port()
    with EmbeddedServer(port=0) as master:
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nrequirepass hunter2\n"
            f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
        )
        process = subprocess.Popen([str(find_server()), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
        try:
            yield f"sentinel://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def test_a_sentinel_that_does_not_answer_costs_one_timeout(sentinel):
    """Redis-py had no timeout there, and asked ten times again before it went to the next one."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"sentinel://127.0.0.1:{mute.getsockname()[1]};{sentinel}?master_name=mymaster"
        options = {"sentinel_kwargs": OF_SENTINELS, "socket_timeout": 0.5}
        with made(url, lowkiq_redis_options=options) as sync:
            began = time.monotonic()
            sync.delay("1", "x")
            asyncio.run(sync.adelay("1", "y"))
            assert time.monotonic() - began < 5


def test_sentinels_that_do_not_answer_are_named_once():
    """The error had all arguments of each connection, and with some releases of redis-py the passwords."""
    ports = [free_port() for _ in range(2)]
    url = ";".join(f"sentinel://127.0.0.1:{port}" for port in ports)
    options = {"lowkiq_redis_options": {"sentinel_kwargs": OF_SENTINELS, "password": "of-master"}}
    with made(f"{url}?master_name=mymaster", **options) as sync:
        task, policy = sync, {"retry": False}
        for call in (task.apply_async, lambda *a, **o: asyncio.run(task.aapply_async(*a, **o))):
            with pytest.raises(StoreUnavailable) as raised:
                call(("1", "x"), **policy)
            found = str(raised.value).partition("No master found")[2]
            assert found.startswith(
                f" for 'mymaster': no sentinel answers: 127.0.0.1:{min(ports)}, 127.0.0.1:"
            )
            assert found.count("127.0.0.1") == 2
            assert len(found) < 200


def test_sentinels_that_answer_stand_apart_from_those_that_do_not(sentinel):
    url = f"{sentinel};sentinel://127.0.0.1:1?master_name=other"
    with made(url, lowkiq_redis_options={"sentinel_kwargs": OF_SENTINELS}) as sync:
        with pytest.raises(StoreUnavailable) as raised:
            sync.ordered_queue.stats()
        assert "that answer do not name it, and others do not answer: 127.0.0.1:1 (" in str(raised.value)


@pytest.mark.parametrize(
    ("form", "options", "advice"),
    [
        ("rediss://127.0.0.1:{}", {"ssl_cert_reqs": "none"}, "write redis://"),
        ("rediss+cluster://127.0.0.1:{}", {"ssl_cert_reqs": "none"}, "write redis://"),
        (
            "sentinel://127.0.0.1:{}?master_name=mymaster",
            {"sentinel_kwargs": {"ssl": True, "ssl_cert_reqs": "none"}},
            "See ssl in sentinel_kwargs",
        ),
    ],
    ids=["server", "cluster", "sentinel"],
)
@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "answers"])
def test_a_port_without_tls_is_named(form, options, advice, is_silent):
    """ "Timeout connecting to server" named neither TLS nor what to write."""
    with (
        plain_server(is_silent) as port,
        made(
            form.format(port),
            lowkiq_redis_options={**options, "socket_timeout": 0.1, "socket_connect_timeout": 0.1},
        ) as sync,
    ):
        with pytest.raises(StoreUnavailable, match="answer with TLS: has") as raised:
            sync.ordered_queue.stats()
        assert advice in str(raised.value)


@contextlib.contextmanager
def plain_server(is_silent):
    """The port of a server without TLS. Redis is silent until a byte of the greeting ends a line."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(10_000)
            if not is_silent:
                self.request.sendall(b"-ERR Protocol error\r\n")
            self.request.recv(1)

    with serving(Answer) as port:
        yield port


OF_SENTINELS = {"password": "hunter2"}
NAME = {"master_name": "mymaster", "sentinel_kwargs": OF_SENTINELS}


@pytest.mark.parametrize(
    "end, settings",
    [
        ("", {"broker_url": "sentinel://h:1", "broker_transport_options": NAME}),
        ("", {"result_backend_transport_options": NAME}),
        ("", {"lowkiq_redis_options": NAME}),
        ("?master_name=mymaster", {"lowkiq_redis_options": {"sentinel_kwargs": OF_SENTINELS}}),
        (
            ";sentinel://127.0.0.1:1/0?master_name=mymaster",
            {"result_backend_transport_options": {"sentinel_kwargs": OF_SENTINELS}},
        ),
    ],
    ids=["broker", "result backend", "redis options", "url", "several"],
)
def test_p8_a_master_behind_sentinels_is_found_wherever_its_name_is_written(sentinel, end, settings):
    """P8: with lowkiq_url, the name in broker_transport_options was not read, and none in a URL."""
    with made(sentinel + end, **settings) as sync:
        pushed = []

        def reached():
            with contextlib.suppress(StoreUnavailable):
                pushed.append(sync.delay("1", "x"))
            return pushed

        eventually(reached, 60)
        assert sync.ordered_queue.stats().length == 1
        with track("waits", sync._get_app()) as tracker:
            """It listens through the sentinels, too."""
        assert tracker.wait(10)
        asyncio.run(sync.adelay("2", "from asyncio"))
        assert sync.ordered_queue.stats().length == 2
