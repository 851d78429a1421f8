"""Verbs on many dead jobs that hold their ids: no script takes long."""

from __future__ import annotations

import contextlib

import pytest
import redis
from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.job_filter import FailureFilter
from celery_lowkiq.rules.models import Call, Disposition
from tests.store.helpers import claim, end, take

JOBS = 100_000
#: Maximum time of a script on the server, in s.
LIMIT_S = 0.020
#: A virtual machine whose host is busy counts the host's time as the server's: a script that is slow is slow
#: each time.
ATTEMPTS = 3


@contextlib.contextmanager
def filled_queue(redis_server):
    """A queue with JOBS dead jobs, each with a payload behind it."""
    app = Celery("many", broker=redis_server.url, set_as_current=False)
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()

    @ordered_task(app=app, shared=False, name="many", shards=8, when_dead="hold")
    def many(payloads_by_id):
        pass

    store, spec = context_of(app).store, many.queue_spec
    ids = [str(number) for number in range(JOBS)]
    store.push(spec, [Call(job_id, b'"dead"') for job_id in ids])
    for index in range(spec.shards):
        lease = take(store, spec, index)
        while (claimed := claim(store, lease, 1000)).jobs:
            error = b"ValueError: bad sku 17"
            end(store, lease, claimed, Disposition.DIE, queue=spec, error=error)
    store.push(spec, [Call(job_id, b'"behind"') for job_id in ids])
    yield many.ordered_queue
    app.close()


def cpu_s(client):
    used = client.info("cpu")
    return used["used_cpu_user"] + used["used_cpu_sys"]


def slowest_of_a_requeue(queue, redis_server, monkeypatch):
    """The longest time of a script in s, and the script's name."""
    assert (queue.stats().held, queue.stats().paused_jobs) == (JOBS, JOBS)
    store_client = queue._context.store.client
    send, spent = store_client.call, []
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:

        def timed(call):
            before = cpu_s(client)
            reply = send(call)
            spent.append((cpu_s(client) - before, call.script.name))
            return reply

        monkeypatch.setattr(store_client, "call", timed)
        wanted = FailureFilter(error="ValueError: bad sku*")
        assert queue.change_matching(queue.requeue, wanted, dead=True) == JOBS
    found = queue.stats()
    assert (found.held, found.morgue_length, found.paused_jobs, found.length) == (0, 0, 0, JOBS)
    assert len(spent) > JOBS / 1000
    return max(spent)


@pytest.mark.full
@pytest.mark.timeout(600 * ATTEMPTS)
def test_100_000_dead_jobs_are_requeued_by_filter_and_no_script_takes_20_ms(redis_server, monkeypatch):
    """Server time is the server's CPU: on a busy machine, others take its turns."""
    slowest = []
    while len(slowest) < ATTEMPTS and (not slowest or slowest[-1][0] >= LIMIT_S):
        with filled_queue(redis_server) as queue:
            slowest.append(slowest_of_a_requeue(queue, redis_server, monkeypatch))
    assert slowest[-1][0] < LIMIT_S, slowest
