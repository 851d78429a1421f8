"""Workers that are started inside of a test, as Celery's own pytest plugin does."""

from __future__ import annotations

import threading

import pytest
import redis
from celery.contrib.testing.worker import start_worker

from celery_lowkiq import ordered_task
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("root_level")

NAME = "the-store"


@pytest.fixture
def store_connections(app, redis_server):
    """How many connections to the store the app has now."""
    app.conf.lowkiq_redis_options = {"client_name": NAME}
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        yield lambda: sum(connection["name"] == NAME for connection in client.client_list())


def test_they_serve_ordered_queues_and_leave_no_thread_and_no_connection(app, store_connections):
    got = []

    @ordered_task(app=app, shared=False)
    def collect(payloads_by_id):
        got.append(payloads_by_id)

    collect.delay("1", "first")
    of_calls = store_connections()
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        eventually(lambda: got)
        assert store_connections() > of_calls
    assert got == [{"1": ["first"]}]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane")]
    eventually(lambda: store_connections() == of_calls)
