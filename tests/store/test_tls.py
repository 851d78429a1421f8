"""TLS with certificates of both sides, and a user with few rights, on one server, sentinels and a cluster."""

from __future__ import annotations

import contextlib
import re
import ssl
from pathlib import Path

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.errors import LoginRefused, StoreUnavailable
from tests.clusters import running_cluster
from tests.ports import free_port
from tests.sentinels import NAME, PASSWORD, running_sentinels
from tests.store.test_connections import made
from tests.tls import Authority, find_tls_server, tls_files

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
RIGHTS = re.search(r"^user lowkiq (.*)$", PAGE, re.MULTILINE)[1].replace(">password", ">s/ecret").split()
LOGIN = "lowkiq:s%2Fecret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def identity(authority):
    return authority.identity("client")


@contextlib.contextmanager
def one_server(executable, files, directory):
    port = free_port()
    config = {**files, "port": "0", "tls-port": str(port)}
    with EmbeddedServer(executable=executable, port=port, config=config) as server:
        yield [server], f"rediss://{LOGIN}@127.0.0.1:{port}/0?ssl_cert_reqs=required", {}


@contextlib.contextmanager
def behind_sentinels(executable, files, directory):
    with running_sentinels(directory, executable, files) as found:
        url = found.url.replace("://", f"://{LOGIN}@", 1)
        yield found.servers, f"{url}?master_name={NAME}", {"password": PASSWORD}


@contextlib.contextmanager
def over_cluster(executable, files, directory):
    with running_cluster(executable=executable, tls=files) as cluster:
        url = cluster.url.replace("redis+cluster://", f"rediss+cluster://{LOGIN}@")
        yield cluster.servers, f"{url}?ssl_cert_reqs=required", {}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, id=kind.__name__, marks=[] if kind is over_cluster else pytest.mark.full)
        for kind in (over_cluster, one_server, behind_sentinels)
    ],
)
def place(request, authority, tmp_path_factory):
    """URL, and what sentinels want of a client beside TLS."""
    executable, server = find_tls_server(authority), authority.identity("server")
    directory = tmp_path_factory.mktemp("servers")
    with request.param(executable, tls_files(authority, server), directory) as (servers, url, of_sentinels):
        for server in servers:
            with redis.Redis(unix_socket_path=server.socket_path) as admin:
                more = ["+asking", "+cluster|slots"] if request.param is over_cluster else []
                admin.execute_command("ACL", "SETUSER", "lowkiq", *RIGHTS, *more)
        yield url, of_sentinels


def settings_of(place, authority, identity):
    """By Celery's own setting for results, as it is written for every kind of Redis."""
    url, of_sentinels = place
    tls = {"ssl_ca_certs": str(authority.certificate), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    if identity:
        tls |= {"ssl_certfile": str(identity.certificate), "ssl_keyfile": str(identity.key)}
    options = {"sentinel_kwargs": {**of_sentinels, "ssl": True, **tls}} if of_sentinels else {}
    return url, {
        "redis_backend_use_ssl": tls,
        "lowkiq_redis_options": {**options, "socket_timeout": 2.0},
    }


def test_calls_claims_and_reads(place, authority, identity):
    url, settings = settings_of(place, authority, identity)
    with made(url, **settings) as task:
        for number in range(30):
            task.delay(number, "x")
        queue = task.ordered_queue
        assert queue.stats().length == 30
        store, (shard, *_) = context_of(task._get_app()).store, task.queue_spec.shard_refs()
        (seen,) = store.observe([shard])
        lease = store.acquire(task.queue_spec, shard, "me", seen, 0)
        claimed = store.claim(task.queue_spec, lease, 1)
        assert claimed.jobs
        with store.subscribe([task.queue_spec]) as subscription:
            assert subscription is not None
        assert [master.refused for master in store.masters([shard])] == [{}] * len(store.masters([shard]))


def test_no_certificate(place, authority):
    url, settings = settings_of(place, authority, None)
    with made(url, **settings) as task, pytest.raises(StoreUnavailable):
        task.delay(1, "x")


def test_servers_of_another_authority(place, identity, tmp_path):
    url, settings = settings_of(place, Authority(tmp_path, "other"), identity)
    with made(url, **settings) as task, pytest.raises(StoreUnavailable):
        task.delay(1, "x")


def test_a_wrong_password(place, authority, identity):
    url, settings = settings_of(place, authority, identity)
    with made(url.replace("s%2Fecret", "wrong"), **settings) as task:
        with pytest.raises(LoginRefused, match="WRONGPASS") as raised:
            context_of(task._get_app()).store.observe(task.queue_spec.shard_refs())
        assert "wrong" not in str(raised.value)
