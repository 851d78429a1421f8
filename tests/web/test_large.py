"""A page looks at as much as it shows, however long the queue is."""

from __future__ import annotations

import time

import pytest
import redis

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call
from celery_lowkiq.store.keys import shard_keys

PAGES = {
    "overview": "/",
    "by due time": "/queue?queue=record",
    "reversed": "/queue?queue=record&reverse=1",
    "by id": "/queue?queue=record&by=id",
    "by state": "/queue?queue=record&state=scheduled",
    "by age": "/queue?queue=record&age=%3C1d",
    "shards": "/queue?queue=record&list=shards",
    "job": "/job?queue=record&id=7",
}
#: Searches that find nothing, so that each reads as much as a page may read; and what all the others show.
SEARCHES = {
    "prefix": "prefix=nothing",
    "failure": "list=retries&failure=0123456789abcdef",
    "all filters": "list=retries&state=due&age=%3E1min&prefix=1&failure=0123456789abcdef",
    "morgue": "list=morgue&age=%3E1min&prefix=nothing",
    "morgue by id": "list=morgue&by=id&prefix=1&state=held",
}
OTHERS = {"failures": "/failures?queue=record", "nodes": "/nodes", "search": "/search?id=7"}
ERROR = b"\0F" + b"a" * 16 + b"\0ValueError: boom"
MILLION, OPENED_S = 1_000_000, 0.3


def fill(app, first, last):
    jobs = [Call(str(n), b'"x"', 1.0, 1e9 + n) for n in range(first, last)]
    for at in range(0, len(jobs), 5000):
        context_of(app).store.push(app.tasks["record"].queue_spec, jobs[at : at + 5000])


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_work_and_size_do_not_grow_with_the_queue(app, browser, redis_server, path):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:

        def opened():
            browser.get(path)
            before = client.info("stats")["total_commands_processed"]
            size = len(browser.get(path).content)
            return client.info("stats")["total_commands_processed"] - before, size

        fill(app, 0, 2000)
        commands, size = opened()
        fill(app, 2000, 60_000)
        more_commands, more_size = opened()
    # A look for a place takes log n steps.
    assert more_commands < commands * 1.3 + 200
    assert more_size < size * 1.2


@pytest.mark.full
def test_pages_open_in_300_ms_at_a_million_jobs(app, browser):
    """As CPU time of the page and of Redis, which work in turn: others make the machine slow."""
    spec, client = app.tasks["record"].queue_spec, context_of(app).store.client.servers.redis
    for first in range(0, MILLION, 50_000):
        fill(app, first, first + 50_000)
    for shard in spec.shard_refs():
        keys = shard_keys(shard)
        for ids in batched(client.zrange(keys["due"], 0, -1), 5000):
            died = time.time() - 3600
            client.zadd(keys["due"], dict.fromkeys(ids[::8], died))
            client.zadd(keys["failed"], dict.fromkeys(ids[::4], 1))
            client.hset(keys["errors"], mapping=dict.fromkeys(ids[::4], ERROR))
            client.zadd(keys["dead"], dict.fromkeys(ids[1::4], died))
            client.zadd(keys["dead_ids"], dict.fromkeys(ids[1::4], 0))
            client.hset(keys["dead_errors"], mapping=dict.fromkeys(ids[1::4], ERROR))

    def cpu_seconds():
        of_redis = client.info("cpu")
        return time.process_time() + of_redis["used_cpu_user"] + of_redis["used_cpu_sys"]

    def seconds(path):
        began = cpu_seconds()
        answer = browser.get(path)
        assert answer.status_code < 400, answer.text
        return cpu_seconds() - began

    searches = {name: f"/queue?queue=record&{query}" for name, query in SEARCHES.items()}
    pages = PAGES | searches | OTHERS
    found = {name: min(seconds(path) for _ in range(5)) for name, path in pages.items()}
    assert max(found.values()) <= OPENED_S, found
    for path in searches.values():
        assert ">Search on<" in browser.get(path).text, path


def batched(found, size):
    return [found[at : at + size] for at in range(0, len(found), size)]
