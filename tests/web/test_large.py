"""A page looks at as much as it shows, however long the queue is."""

from __future__ import annotations

import pytest
import redis

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.models import NewJob

PAGES = {
    "overview": "/",
    "by due time": "/queue?queue=record",
    "reversed": "/queue?queue=record&reverse=1",
    "by id": "/queue?queue=record&by=id",
    "shards": "/queue?queue=record&list=shards",
    "job": "/job?queue=record&id=7",
}


def fill(app, first, last):
    jobs = [NewJob(str(n), b'"x"', 1.0, 1e9 + n) for n in range(first, last)]
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
