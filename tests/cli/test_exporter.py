"""``metrics`` as a process that Prometheus scrapes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess

import pytest
import redis

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.keys import shard_keys
from tests.cli import proj
from tests.cli.conftest import done, start
from tests.worker.scraping import scrape

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture
def exporter(queue):
    """The process, and where it answers."""
    process = start("metrics", "--port", "0", **PIPES)
    (url,) = re.findall(r"metrics are at (\S+)", process.stdout.readline())
    yield process, url
    process.kill()
    process.communicate(timeout=30)


def test_the_figures_of_queues_without_a_worker(exporter):
    _, url = exporter
    proj.sync_order.perform_async([{"id": n % 3, "payload": n, "perform_in": 9e9} for n in range(5)])
    found = scrape(url)
    assert found["lowkiq_length", "queue=sync_order"] == 3
    assert found["lowkiq_merged_total", "queue=sync_order"] == 2
    assert found["lowkiq_shards_unowned", "queue=sync_order"] == found["lowkiq_shards", "queue=sync_order"]
    assert not [name for name, *_ in found if "lanes" in name]


def test_a_damaged_queue_takes_no_figures_from_others(exporter, server):
    """O6: a key of another type was told as a Redis that is unreachable."""
    _, url = exporter
    proj.send_mail.delay("1", "x")
    proj.sync_order.delay("1", "x")
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        key = shard_keys(ShardRef("sync_order", 0))["due"]
        client.delete(key)
        client.set(key, "planted")
    found = scrape(url)
    assert found["lowkiq_redis_up",] == 1
    assert found["lowkiq_length", "queue=send_mail"] == 1
    assert ("lowkiq_length", "queue=sync_order") not in found
    damaged = {
        queue: found["lowkiq_shards_damaged", f"queue={queue}"] for queue in ("sync_order", "send_mail")
    }
    assert damaged == {"sync_order": 1, "send_mail": 0}


@pytest.mark.full
def test_a_redis_that_is_away_is_said_and_waited_for(queue, monkeypatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://me:secret@127.0.0.1:1/0")
    process = start("metrics", "--port", "0", **PIPES)
    (url,) = re.findall(r"metrics are at (\S+)", process.stdout.readline())
    assert [scrape(url), scrape(url)] == [{("lowkiq_redis_up",): 0}] * 2
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert errors.count("metrics lack the figures of queues") == 1
    assert "secret" not in errors


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_exporter_ends_on_a_signal(exporter, stop):
    process, _ = exporter
    process.send_signal(stop)
    assert process.wait(30) == 0


@pytest.mark.full
@pytest.mark.parametrize("command", ["metrics", "web"])
def test_a_port_in_use_is_one_line(queue, command):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = done(command, "--port", str(port))
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert found.stderr.startswith(f"Error: --port {port} on 127.0.0.1 cannot be had: ")
