"""The bench's proxy: what it adds and what it counts."""

from __future__ import annotations

import time

import redis

from benchmarks.proxy import Proxy


def test_commands_of_a_pipeline_are_one_round_trip(redis_server):
    with Proxy(redis_server.url) as proxy, redis.Redis.from_url(proxy.url) as client:
        client.ping()
        before = proxy.round_trips
        pipe = client.pipeline(transaction=False)
        for _ in range(10):
            pipe.ping()
        assert pipe.execute() == [True] * 10
        assert proxy.round_trips == before + 1


def test_every_round_trip_takes_longer(redis_server):
    with Proxy(redis_server.url, latency=0.02) as proxy, redis.Redis.from_url(proxy.url) as client:
        client.ping()
        began = time.monotonic()
        for _ in range(3):
            client.ping()
        assert time.monotonic() - began >= 0.06
