"""The Redis of a chaos run: what a rollback forgets, what its clock says, how a proxy reaches it."""

from __future__ import annotations

import subprocess
import time

import pytest
import redis

from celery_lowkiq.embedded import find_server
from celery_lowkiq.rules.errors import ConfigurationError
from tests.chaos.pair import Pair
from tests.chaos.victim import COMPILER, Clock, Victim, address_of, can_set_clocks, through_proxy
from tests.waiting import eventually

#: In s; the server asks for what it has written to get onto the disk each second.
BUSY = 2.5
SLOW = """
#include <unistd.h>
int fdatasync(int file) { return usleep(500000); }
"""


class SlowDisk:
    """A server on a disk that needs half a second, in the place of a Clock."""

    def __init__(self, directory):
        source, library = directory / "slow.c", directory / "slow.so"
        source.write_text(SLOW)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self.executable = directory / "redis-on-slow-disk"
        self.executable.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {find_server()} "$@"\n')
        self.executable.chmod(0o700)


@pytest.fixture
def start():
    started = []

    def start(clock=None, kind=Victim):
        victim = kind(clock)
        client = redis.Redis(unix_socket_path=victim.start())
        started.append((victim, client))
        return victim, client

    yield start
    for victim, client in started:
        client.close()
        victim.stop()


def test_a_kill_forgets_nothing_that_was_acknowledged(start):
    victim, client = start()
    client.set("a", 1)
    victim.kill()
    victim.restart()
    assert client.get("a") == b"1"


@pytest.mark.full
@pytest.mark.skipif(not can_set_clocks(), reason="needs Linux and cc")
def test_what_is_acknowledged_is_written_though_the_disk_is_busy(start, tmp_path):
    victim, client = start(SlowDisk(tmp_path))
    ends_at = time.monotonic() + BUSY
    while time.monotonic() < ends_at:
        before = victim.written()
        client.set("a", "x")
        assert victim.written() > before


def test_a_rollback_forgets_what_came_since_and_nothing_else(start):
    victim, client = start()
    client.set("before", 1)
    written = victim.written()
    client.set("since", 2)
    victim.kill()
    victim.forget(written)
    victim.restart()
    assert client.mget("before", "since") == [b"1", None]
    client.set("after", 3)
    victim.kill()
    victim.forget(victim.written() + 100)
    victim.restart()
    assert client.mget("before", "after") == [b"1", b"3"]


@pytest.mark.full
def test_a_replica_takes_the_place_of_its_master(start):
    """It has all that was confirmed; what came after it had lagged is lost."""
    pair, client = start(kind=Pair)
    client.set("a", 1)
    assert client.wait(1, 10_000) == 1
    pair.detach()
    client.set("b", 1)
    pair.fail()
    with redis.Redis(unix_socket_path=pair.promote()) as client:
        assert client.mget("a", "b") == [b"1", None]
        pair.add_replica()
        client.set("c", 1)
        assert client.wait(1, 10_000) == 1
        eventually(pair.is_in_sync)
        pair.kill()
        pair.restart()
        assert client.mget("a", "c") == [b"1", b"1"]


@pytest.mark.skipif(not can_set_clocks(), reason="needs Linux and cc")
def test_the_clock_of_redis_jumps_and_comes_back(start, tmp_path):
    clock = Clock(tmp_path)
    _, client = start(clock)
    for seconds in (0.0, 3600.0, -3600.0, 365 * 86400.0, 0.0):
        clock.set(seconds)
        # A server may look at the clock with its next tick only.
        eventually(lambda beside=seconds: abs(client.time()[0] - time.time() - beside) < 30)


@pytest.mark.parametrize(
    ("url", "address", "seen"),
    [
        ("redis://h:7/2?a=b", ("h", 7), "redis://127.0.0.1:9/2?a=b"),
        ("redis://", ("127.0.0.1", 6379), "redis://127.0.0.1:9"),
        ("redis://u:p%40@h/1", ("h", 6379), "redis://u:p%40@127.0.0.1:9/1"),
        ("redis+socket:///tmp/r.sock", "/tmp/r.sock", "redis://127.0.0.1:9/0"),
        ("redis+socket:///tmp/r.sock?virtual_host=3", "/tmp/r.sock", "redis://127.0.0.1:9/3"),
    ],
)
def test_a_users_redis_is_reached_through_the_proxy(url, address, seen):
    assert address_of(url) == address
    assert through_proxy(url, 9) == seen


def test_our_own_redis_is_reached_through_the_proxy():
    assert through_proxy(None, 9) == "redis://127.0.0.1:9/0"


@pytest.mark.parametrize("url", ["rediss://:secret@h/0", "sentinel://:secret@h", "amqp://:secret@h"])
def test_what_no_proxy_can_stand_before_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError, match="redis://") as refused:
        address_of(url)
    assert "secret" not in str(refused.value)
